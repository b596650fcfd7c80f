//! The choice without a guest: lowest load plus own picks.
//!
//! Each pick since the last report is priced at the mean known load, because what one pick adds is
//! not known: where loads are alike this goes round, where one is far below it fills up first, and no
//! herd forms either way. What loads count as, where they are not known, old, or of targets that fail, is the same
//! as in strategies that go by loads ([`loadline_sdk::belief`]). A pick is dearer the less its target can
//! take; ties go to the fewest picks by that measure, then to anyone. Cost O(n).

use std::cell::OnceCell;

use loadline_sdk::belief::{self, Said, Usual};
use loadline_sdk::{Slot, Target, math};

use super::table::{Row, Table};
use crate::policy::guest::Request;

/// The best target of those that may be picked.
pub(super) fn best(
    table: &Table,
    request: &Request,
    may: impl Fn(u32, &Row) -> bool,
) -> Option<u32> {
    let price = mean_load(table);
    let usual = OnceCell::new();
    let cost = |slot: u32, row: &Row| {
        let target = target(slot, row, request.now_ms);
        let interval_ms = f64::from(row.fresh.interval_ms);
        let trust = belief::trust(f64::from(target.age_ms), interval_ms);
        let said = Said { load: target.load, error_rate: target.error_rate, trust };
        let load = if said.is_plain() {
            said.load
        } else {
            said.counts_as(*usual.get_or_init(|| usual_load(table)))
        };
        let share = target.picks_per_share();
        // No pick costs nothing, whatever the price.
        let picks = if share > 0.0 { share * price } else { 0.0 };
        (load + picks, share)
    };
    let allowed = table.rows().filter(|(slot, row)| may(*slot, row));
    let scored = allowed.map(|(slot, row)| (cost(slot, row), slot));
    let toss = |slot: u32| math::mix(request.random ^ u64::from(slot));
    let best = scored.min_by(|((a_load, a_share), a), ((b_load, b_share), b)| {
        let order = a_load.total_cmp(b_load).then(a_share.total_cmp(b_share));
        order.then_with(|| toss(*a).cmp(&toss(*b)))
    });
    best.map(|(_, slot)| slot)
}

/// As a strategy knows it, as far as it matters here.
fn target(slot: u32, row: &Row, now_ms: u64) -> Target {
    let (_, error_rate) = row.health.averages(now_ms);
    let age_ms = now_ms.saturating_sub(row.fresh.captured_ms);
    Target {
        weight: row.fresh.weight,
        picks: row.picks(),
        age_ms: u32::try_from(age_ms).unwrap_or(u32::MAX),
        error_rate,
        warm: row.health.warm(now_ms),
        ..Target::new(Slot(slot), row.fresh.load)
    }
}

/// The median of the known loads of targets that may be picked.
fn usual_load(table: &Table) -> f64 {
    let known = |row: &Row| Some(row.fresh.load).filter(|load| load.is_finite());
    let eligible = table.rows().map(|(_, row)| row).filter(|row| row.eligible);
    Usual::of(table.tally().eligible, eligible.map(known))
}

fn mean_load(table: &Table) -> f64 {
    let loads = table.rows().map(|(_, row)| row.fresh.load).filter(|load| load.is_finite());
    let (sum, count) = loads.fold((0.0, 0.0_f64), |(sum, count), load| (sum + load, count + 1.0));
    (sum / count.max(1.0)).min(f64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::health::Outcome;
    use super::super::table::Fresh;
    use super::*;
    use crate::config::HealthConfig;

    fn table(loads: &[f64]) -> Table {
        let mut table = Table::default();
        for (slot, load) in (0..).zip(loads) {
            let fresh = Fresh::of(format!("m{slot}"), *load);
            table.put(slot, fresh, 0);
        }
        table
    }

    fn best(table: &Table, now_ms: u64, random: u64) -> Option<u32> {
        let request = Request { key: 0, class: 0, cost: 1.0, now_ms, random };
        super::best(table, &request, |_, row| row.eligible)
    }

    fn picks_from(table: &mut Table, count: usize) -> Vec<u32> {
        let pick = |now_ms| {
            let slot = best(table, now_ms, now_ms)?;
            table.count_pick(slot, false, now_ms);
            Some(slot)
        };
        (1..).take(count).filter_map(pick).collect()
    }

    fn picks(loads: &[f64], count: usize) -> Vec<u32> {
        picks_from(&mut table(loads), count)
    }

    #[track_caller]
    fn check(loads: &[f64], rounds: &[&[u32]]) {
        let mut picks = picks(loads, rounds.iter().map(|round| round.len()).sum());
        for round in rounds {
            let rest = picks.split_off(round.len());
            picks.sort_unstable(); // of equals anyone is first
            assert_eq!(picks, *round);
            picks = rest;
        }
    }

    #[test]
    fn lowest_first_then_round_and_never_a_herd() {
        check(&[0.5, 0.1, 0.5], &[&[1], &[1], &[0, 2]]);
        check(&[0.0, 0.0], &[&[0, 1], &[0, 1]]);
    }

    #[test]
    fn of_equals_each_is_as_often_the_first() {
        let table = table(&[0.5, 0.9, 0.5, 0.9]);
        let mut counts = [0_u32; 4];
        for random in math::draws(1).take(2_000) {
            counts[best(&table, 0, random).expect("four are eligible") as usize] += 1;
        }
        // Five standard deviations of a binomial(2 000, 1/2).
        assert!(counts[0].abs_diff(1_000) < 112 && counts[0] + counts[2] == 2_000, "{counts:?}");
    }

    #[test]
    fn incomplete_targets_serve_when_there_is_no_other() {
        let lacking = f64::INFINITY;
        check(&[lacking, 5.0], &[&[1, 1, 1]]);
        check(&[lacking, f64::NAN], &[&[1, 1, 1]]);
        check(&[lacking, lacking], &[&[0, 1], &[0, 1]]);
        assert!(picks(&[], 1).is_empty());
    }

    #[test]
    fn unknown_load_counts_as_the_median() {
        check(&[f64::NAN, f64::NAN], &[&[0, 1]]);
        // 0.5 is the median, and the mean what a pick costs: 0.7 and 0.5 are next.
        check(&[f64::NAN, 0.5, 0.2, 0.8], &[&[2], &[0, 1], &[2]]);
    }

    #[test]
    fn old_load_is_neither_trusted_nor_a_reason_to_starve() {
        let mut table = table(&[0.1, 0.5, 0.9, 0.5]);
        assert_eq!(best(&table, 2_000, 1), Some(0), "reports come each second");
        for slot in [1, 2, 3] {
            let fresh = Fresh { captured_ms: 4_000, ..Fresh::of(format!("m{slot}"), 0.5) };
            table.put(slot, fresh, 4_000);
        }
        table.count_pick(0, false, 4_000);
        assert_ne!(best(&table, 4_000, 1), Some(0), "as the median, and picked once");
    }

    #[test]
    fn slow_start_gets_its_share() {
        let slow_start = Duration::from_secs(60);
        let config = HealthConfig { slow_start, slow_start_min: 0.25, ..HealthConfig::default() };
        let mut table = Table::new(config);
        (0..2).for_each(|slot| table.put(slot, Fresh::of(format!("m{slot}"), 0.5), 0));
        let later_ms = 1_000_000; // what is there at the start is warm
        table.put(2, Fresh::of("m2".to_owned(), 0.5), later_ms);
        let mut counts = [0; 3];
        for _ in 0..900 {
            let slot = best(&table, later_ms, 1).expect("three are eligible");
            counts[slot as usize] += 1;
            table.count_pick(slot, false, later_ms);
        }
        assert_eq!(counts, [400, 400, 100]);
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let mut table = table(&[0.0, 0.5, 0.5]);
        for ok in [true, false] {
            table.record(0, Outcome { latency_us: 1, ok }, 0);
        }
        // It counts as 1, and each of its picks as four.
        assert!(!picks_from(&mut table, 7).contains(&0));
    }
}
