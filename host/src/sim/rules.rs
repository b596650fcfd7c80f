//! Rules of the literature that go by reports, to hold this simulator and strategies against.
//!
//! They know what no strategy is told: how long a request takes on average and, where it counts, how
//! many requests all hosts get; and for them nobody is ever gone. *Interpreted load* is Dahlin's (ICDCS
//! 1999, TPDS 2000): as many requests as will come until the next reports, or came since the last ones,
//! fill the lowest queues like water. *Own* counts this host's picks since the capture; *drained* takes
//! off what a server will have done since: it keeps the time at which a server will be free. Times are in
//! units.

use std::collections::VecDeque;

use super::chooser::{Chooser, Servers, drawn, lowest};
use super::setup::Setup;
use crate::policy::guest::{Request, TargetView};

/// How to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The lowest report and own picks.
    Own,
    /// The first to be free.
    Drained,
    /// The one of two drawn that is free first.
    DrainedOfTwo,
    /// The lowest report of three drawn.
    LowestOfThree,
    /// In proportion to what is missing to the level of the period's end.
    BasicInterpretation,
    /// Any of those that are below the level of now.
    AggressiveInterpretation,
}

/// A rule's choice.
pub(super) struct RuleChooser {
    rule: Rule,
    random: fastrand::Rng,
    /// Milliseconds of a unit.
    unit_ms: f64,
    /// Requests a unit, of all hosts.
    rate: f64,
    every: f64,
    known: Vec<Known>,
    /// The latest capture.
    captured: f64,
    /// What the rule made of the last reports.
    shares: Option<Shares>,
}

/// What is known of a server.
#[derive(Debug, Clone)]
struct Known {
    queue: f64,
    speed: f64,
    /// Times of own picks since the capture.
    own: VecDeque<f64>,
    free: f64,
}

impl Default for Known {
    fn default() -> Self {
        Self { queue: 0.0, speed: 1.0, own: VecDeque::new(), free: 0.0 }
    }
}

impl Known {
    fn pick(&mut self, now: f64) {
        self.own.push_back(now);
        self.free = self.free_after(now);
    }

    /// When it will have done one more.
    fn free_after(&self, now: f64) -> f64 {
        self.free.max(now) + 1.0 / self.speed
    }

    fn hear(&mut self, captured: f64, view: &TargetView) {
        (self.queue, self.speed) = (view.load, view.weight);
        while self.own.front().is_some_and(|time| *time <= captured) {
            self.own.pop_front();
        }
        self.free = captured + self.queue / self.speed;
        let again = std::mem::take(&mut self.own);
        again.into_iter().for_each(|time| self.pick(time));
    }
}

/// Servers by their queue, and what each is to get.
struct Shares {
    order: Vec<usize>,
    /// Sums of the probabilities, or of what is missing to the next one's queue.
    sums: Vec<f64>,
}

impl RuleChooser {
    pub(super) fn new(rule: Rule, setup: &Setup, speeds: f64, seed: u64) -> Self {
        Self {
            rule,
            random: fastrand::Rng::with_seed(seed),
            unit_ms: setup.service_ms,
            rate: setup.utilisation * speeds,
            every: setup.every,
            known: Vec::new(),
            captured: f64::NEG_INFINITY,
            shares: None,
        }
    }

    fn units(&self, ms: u64) -> f64 {
        ms as f64 / self.unit_ms
    }

    /// The lowest queues first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.known.len()).collect();
        order.sort_by(|a, b| self.known[*a].queue.total_cmp(&self.known[*b].queue));
        order
    }

    /// Fills the lowest queues with what comes in a period.
    fn basic(&self) -> Shares {
        let order = self.order();
        let water = self.rate * self.every;
        let (mut sum, mut level) = (0.0, f64::INFINITY);
        for (count, server) in (1..).zip(&order) {
            let queue = self.known[*server].queue;
            if queue >= level {
                break;
            }
            sum += queue;
            level = (water + sum) / f64::from(count);
        }
        let mut filled = 0.0;
        let sums = order.iter().map(|server| {
            filled += (level - self.known[*server].queue).max(0.0);
            filled
        });
        let sums = sums.collect();
        Shares { order, sums }
    }

    /// What it takes to fill all before each server up to its queue.
    fn aggressive(&self) -> Shares {
        let order = self.order();
        let mut sum = 0.0;
        let sums = (0..).zip(&order).map(|(before, server)| {
            let queue = self.known[*server].queue;
            let missing = queue * f64::from(before) - sum;
            sum += queue;
            missing
        });
        let sums = sums.collect();
        Shares { order, sums }
    }

    fn interpret(&mut self, now: f64) -> usize {
        let is_basic = self.rule == Rule::BasicInterpretation;
        let shares = match self.shares.take() {
            Some(shares) => shares,
            None if is_basic => self.basic(),
            None => self.aggressive(),
        };
        let Shares { order, sums } = self.shares.insert(shares);
        let place = if is_basic {
            let water = self.random.f64() * sums.last().copied().unwrap_or_default();
            sums.partition_point(|sum| *sum <= water)
        } else {
            let water = self.rate * (now - self.captured).max(0.0);
            let reached = sums.partition_point(|missing| *missing <= water);
            self.random.usize(..reached.max(1))
        };
        order[place.min(order.len() - 1)]
    }
}

impl Chooser for RuleChooser {
    fn update(&mut self, now_ms: u64, _hosts: u32, targets: &[TargetView]) -> Result<(), String> {
        for target in targets {
            let slot = target.slot as usize;
            if self.known.len() <= slot {
                self.known.resize_with(slot + 1, Known::default);
            }
            let captured = self.units(now_ms.saturating_sub(u64::from(target.age_ms)));
            self.known[slot].hear(captured, target);
            if captured > self.captured {
                self.captured = captured;
            }
            self.shares = None;
        }
        Ok(())
    }

    fn leave(&mut self, _slot: u32) -> Result<(), String> {
        Ok(())
    }

    fn pick(&mut self, request: &Request, _servers: &Servers<'_>) -> Result<Option<u32>, String> {
        let now = self.units(request.now_ms);
        let Self { random, known, .. } = self;
        let server = match self.rule {
            Rule::Own => lowest(random, known.len(), |server| {
                known[server].queue + known[server].own.len() as f64
            }),
            Rule::Drained => lowest(random, known.len(), |server| known[server].free_after(now)),
            Rule::DrainedOfTwo => {
                let [first, second] = drawn(random, known.len());
                let after = |server: usize| known[server].free_after(now);
                if after(second) < after(first) { second } else { first }
            }
            Rule::LowestOfThree => {
                let three: [usize; 3] = drawn(random, known.len());
                three[lowest(random, three.len(), |place| known[three[place]].queue)]
            }
            Rule::BasicInterpretation | Rule::AggressiveInterpretation => self.interpret(now),
        };
        self.known[server].pick(now);
        Ok(u32::try_from(server).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chooser(rule: Rule, queues: &[f64]) -> RuleChooser {
        let servers = queues.len();
        let setup = Setup { servers, utilisation: 0.5, every: 2.0, ..Setup::default() };
        let mut chooser = RuleChooser::new(rule, &setup, servers as f64, 1);
        let views: Vec<_> =
            (0..).zip(queues).map(|(slot, queue)| TargetView::new(slot, *queue)).collect();
        chooser.update(1_000, 1, &views).expect("no failure");
        chooser
    }

    /// How often each is picked, all at this time.
    fn shares(chooser: &mut RuleChooser, now_ms: u64) -> Vec<usize> {
        let mut shares = vec![0; chooser.known.len()];
        for _ in 0..10_000 {
            shares[chooser.interpret(now_ms as f64 / 1_000.0)] += 1;
        }
        shares
    }

    #[test]
    fn water_fills_the_lowest_queues() {
        // Four come in a period: (4 + 0 + 1) / 2 = 2.5 is the level, below 4.
        let mut basic = chooser(Rule::BasicInterpretation, &[4.0, 0.0, 9.0, 1.0]);
        let shares_of = shares(&mut basic, 1_500);
        assert!(shares_of[1].abs_diff(6_250) < 200 && shares_of[3].abs_diff(3_750) < 200);
        assert_eq!((shares_of[0], shares_of[2]), (0, 0));
        // One has come after half a unit: the second lowest is just reached.
        let mut aggressive = chooser(Rule::AggressiveInterpretation, &[4.0, 0.0, 9.0, 1.0]);
        assert_eq!(shares(&mut aggressive, 1_499), [0, 10_000, 0, 0]);
        assert!(shares(&mut aggressive, 1_500)[3].abs_diff(5_000) < 200);
    }

    #[test]
    fn drained_forgets_what_is_done_and_replays_what_came_after_the_capture() {
        let mut known = Known::default();
        known.hear(1.0, &TargetView::new(0, 2.0));
        assert!((known.free_after(2.0) - 4.0).abs() < 1e-9, "one of two is left");
        assert!((known.free_after(9.0) - 10.0).abs() < 1e-9, "idle");
        known.pick(2.0);
        known.pick(2.5);
        known.hear(2.2, &TargetView::new(0, 1.0));
        assert_eq!(known.own, [2.5]);
        assert!((known.free - 4.2).abs() < 1e-9, "3.2 and one more");
    }
}
