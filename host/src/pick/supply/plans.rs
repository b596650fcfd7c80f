//! What each pool wants now: its own policies, or those of the entry of its schedule that is in force.
//!
//! A change of the entry is a change of what is wanted, and so an ordinary swap: what serves goes on until
//! the new policy has started, and for good where it does not.

use std::time::{Duration, Instant};

use super::super::make::Make;
use super::super::pool::{Wanted, index};
use super::super::schedule::{Standing, Timetable};
use super::{Served, Supply, no_policy};
use crate::config::{EntryConfig, PoolConfig};
use crate::policy::Kind;

/// A pool's policies at all times.
#[derive(Default)]
pub(super) struct Plan {
    /// Formula and strategy: the pool's own, then those of its entries.
    wanted: Vec<[Wanted; 2]>,
    timetable: Timetable,
    /// The place in `wanted` of what is wanted now.
    place: usize,
}

impl Plan {
    /// As configured; what is wanted at this time.
    pub(super) fn of(config: &PoolConfig, now_ms: u64) -> Self {
        let own = [
            Wanted::new(&config.formula, &config.formula_settings),
            Wanted::new(&config.strategy, &config.strategy_settings),
        ];
        let of_entry = |entry: &EntryConfig| {
            [
                Wanted::new(&entry.formula, &entry.formula_settings),
                Wanted::new(&entry.strategy, &entry.strategy_settings),
            ]
        };
        let wanted = std::iter::once(own).chain(config.schedule.iter().map(of_entry)).collect();
        let times = config.schedule.iter().map(|entry| entry.at.clone()).collect();
        let timetable = Timetable::new(config.time_zone.clone(), times);
        let mut plan = Self { wanted, timetable, place: 0 };
        plan.look(now_ms);
        plan
    }

    /// Formula and strategy that are wanted now.
    pub(super) fn wanted(&self) -> &[Wanted; 2] {
        &self.wanted[self.place]
    }

    /// Looks at the time; whether another entry is in force now.
    fn look(&mut self, now_ms: u64) -> bool {
        let standing = self.timetable.at(now_ms);
        let place = standing.and_then(|standing| standing.place()).map_or(0, |entry| entry + 1);
        std::mem::replace(&mut self.place, place) != place
    }

    /// Says what is in force.
    fn tell(&self, pool: &str, Standing { zone, entry, next }: &Standing) {
        let [formula, strategy] = self.wanted().each_ref().map(|wanted| &*wanted.policy);
        let entry = entry.as_ref().map_or("the pool's own", |entry| entry.at.as_str());
        let next = next.as_ref().map_or("never".to_owned(), |next| zone.show(next.ms));
        tracing::info!(pool, entry, formula, strategy, next, "policies by the schedule");
    }

    /// Policies that entries name, each once.
    fn names(&self) -> impl Iterator<Item = (Kind, &str)> {
        let mut all: Vec<_> = (self.wanted.iter().skip(1))
            .flat_map(|both| [Kind::Formula, Kind::Strategy].into_iter().zip(both))
            .map(|(kind, wanted)| (kind, &*wanted.policy))
            .collect();
        all.sort_unstable_by_key(|(kind, name)| (*name, index(*kind)));
        all.dedup();
        all.into_iter()
    }
}

impl Supply {
    /// When the next entry of any pool begins, if the wall clock goes on as it should.
    pub(super) fn next_entry(&self) -> Option<Instant> {
        let now_ms = self.wall.now_ms();
        let waits =
            self.served.iter().filter_map(|served| served.plan.timetable.until_next(now_ms));
        waits.min().and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)))
    }

    /// Looks at the wall clock; pools get the policies of the entries that are in force now.
    pub(super) fn follow_schedules(&mut self) {
        let now_ms = self.wall.now_ms();
        let mut any_switches = false;
        for Served { pool, plan, .. } in &mut self.served {
            let switches = plan.look(now_ms);
            let standing = plan.timetable.at(now_ms).cloned();
            if switches {
                pool.want(plan.wanted().clone());
                pool.note_switch();
                any_switches = true;
            }
            if let Some(standing) = &standing
                && (switches || pool.schedule().is_none())
            {
                plan.tell(pool.name(), standing);
            }
            pool.show_schedule(standing);
        }
        if any_switches {
            self.supply();
        }
    }

    /// The schedule comes back to a policy whose newest generation failed too often: the last good one of
    /// its name serves.
    pub(super) fn seat_last_good(&mut self, place: usize, kind: Kind, bad: &Make) {
        if let Some(good) = self.last_good(place, kind, bad) {
            return self.seat(place, kind, good);
        }
        let why = format!("generation {} failed too often here", bad.module.generation);
        self.served[place].pool.note_trouble(kind, &why);
    }

    /// Says which policies of entries to come are not there: by their time it would be late.
    pub(super) fn say_missing(&mut self) {
        for Served { pool, plan, .. } in &self.served {
            for (kind, name) in plan.names() {
                let why = match self.library.module(name) {
                    Some(module) if module.kind() == kind => continue,
                    Some(module) => format!("it is a {}", module.kind()),
                    None => no_policy(&self.library, &self.folder, name),
                };
                tracing::warn!(
                    pool = pool.name(), policy = name, %kind, why,
                    "the schedule names a policy that cannot serve"
                );
            }
        }
    }
}
