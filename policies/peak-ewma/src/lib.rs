//! `peak-ewma`: of two targets drawn at random the one that will likely answer sooner.
//!
//! *Use it* for latencies that differ and change: machines of several generations, noisy neighbours,
//! garbage collectors. The cost of a target is its latency * (requests in it + picks since its
//! report + 1) / (weight * slow-start share), and the lower one of two wins; the first drawn where
//! they are equal. Latencies are outcomes that clients report: in a pool without outcomes the rule is
//! `p2c` on requests per weight. Loads do not count. A few outcomes of targets that are alike differ by
//! chance, and a peak is believed at once: with outcomes the mean response is then up to 15 % higher than
//! without; where half of the targets are three times as fast as the others it is 17 to 47 % lower.
//!
//! The host's moving average is the sample. One above the estimate replaces it at once; below it the
//! estimate falls by the share 1 - e^(-dt / `decay_ms`), dt since the target's last report. A target
//! without work, failures and a new average counts as a sample of 0, so that one that was slow once is
//! tried again. When the host knows no average any more, with work or without, the estimate moves to
//! the default by the same share: a target that hangs is no fast one. Failing is often fast and must
//! not attract work: the cost is divided by (1 - error rate)², once because failures leave a target
//! emptier than its work would, once for the attempts until one succeeds; and who fails holds no fewer
//! requests than is usual.
//!
//! *Source*: Peak EWMA of Finagle, as in tower and linkerd.
//!
//! *Settings*: `decay_ms` (milliseconds, 1 to 3,600,000, default 10,000: slower than a burst, faster
//! than a deployment), `default_latency_ms` (milliseconds, 0.001 to 3,600,000, default 30: of a target
//! without outcomes). No state: after a reload the host's averages are the estimates.
//!
//! *Cost* of a pick: O(1).

use loadline_sdk::index::PerSlot;
use loadline_sdk::{math, prelude::*, settings};
use serde::Deserialize;

/// The strategy.
#[derive(Debug, Default)]
pub struct PeakEwma {
    settings: Settings,
    estimates: PerSlot<Estimate>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    decay_ms: f64,
    default_latency_ms: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { decay_ms: 10_000.0, default_latency_ms: 30.0 }
    }
}

impl Settings {
    fn default_latency_us(&self) -> f64 {
        self.default_latency_ms * 1e3
    }
}

/// What is believed of a target's latency.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    latency_us: f64,
    /// The average it was last made from, as the host told it.
    sample_us: u32,
    at_ms: u64,
}

/// With no latency at all the queue would not count.
const LATENCY_US_MIN: f64 = 1.0;

impl Strategy for PeakEwma {
    const GOES_BY: GoesBy = GoesBy::Requests;
    const SETTINGS_SCHEMA: &'static str = r#"{
        "type": "object", "additionalProperties": false,
        "properties": {
            "decay_ms": {"type": "number", "minimum": 1, "maximum": 3600000, "default": 10000,
                "description": "in milliseconds: the time in which an old peak loses all but 1/e of its weight"},
            "default_latency_ms": {"type": "number", "minimum": 0.001, "maximum": 3600000, "default": 30,
                "description": "in milliseconds: the latency of a target of which none is known"}
        }
    }"#;

    fn configure(&mut self, settings: &str, _seed: u64) -> Result<(), String> {
        self.settings = settings::parse(settings)?;
        settings::in_range("decay_ms", self.settings.decay_ms, 1.0..=3.6e6)?;
        settings::in_range("default_latency_ms", self.settings.default_latency_ms, 1e-3..=3.6e6)?;
        Ok(())
    }

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for target in changed.iter().filter_map(|slot| fleet.get(*slot)) {
            self.learn(&target, fleet.now_ms());
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        for slot in slots {
            self.estimates.remove(*slot);
        }
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let (first, second) = fleet.eligible().random_pair(request.draws())?;
        let cost =
            |drawn: &Candidate| fleet.get(drawn.slot).map(|target| self.cost(fleet, &target));
        let lower = if cost(second) < cost(first) { second } else { first };
        Some(lower.slot)
    }
}

impl PeakEwma {
    fn learn(&mut self, target: &Target, now_ms: u64) {
        let estimate = match self.estimates.get(target.slot) {
            Some(old) => old.next(target, now_ms, &self.settings),
            None if target.latency_us == 0 => return,
            None => Estimate::first(target, now_ms),
        };
        self.estimates.set(target.slot, estimate);
    }

    fn cost(&self, fleet: &Fleet, target: &Target) -> f64 {
        let known = self.estimates.get(target.slot).map(|estimate| estimate.latency_us);
        let latency_us = known.unwrap_or(self.settings.default_latency_us());
        let picked = Target { picks: target.picks.saturating_add(1), ..*target };
        latency_us * fleet.fullness(&picked)
    }
}

impl Estimate {
    fn first(target: &Target, now_ms: u64) -> Self {
        let sample_us = target.latency_us;
        Self { latency_us: f64::from(sample_us).max(LATENCY_US_MIN), sample_us, at_ms: now_ms }
    }

    fn next(&self, target: &Target, now_ms: u64, settings: &Settings) -> Self {
        let dt_ms = now_ms.saturating_sub(self.at_ms) as f64;
        let kept = math::exp_minus(dt_ms / settings.decay_ms);
        let nearer_to = |sample: f64| self.latency_us * kept + sample * (1.0 - kept);
        let has_nothing = target.in_use() <= 0.0 && target.error_rate <= 0.0;
        let is_idle = target.latency_us == self.sample_us && has_nothing;
        let latency_us = match f64::from(target.latency_us) {
            // Not known any more, which is not fast: it may hang.
            _ if target.latency_us == 0 => nearer_to(settings.default_latency_us()),
            _ if is_idle => nearer_to(0.0),
            sample if sample > self.latency_us => sample,
            sample => nearer_to(sample),
        };
        let sample_us = target.latency_us;
        Self { latency_us: latency_us.max(LATENCY_US_MIN), sample_us, at_ms: now_ms }
    }
}

export_strategy!(PeakEwma);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

    use super::*;

    fn farm(latencies_ms: &[u32]) -> StrategyHost<PeakEwma> {
        let mut host = StrategyHost::with_loads(&vec![0.5; latencies_ms.len()]);
        for (slot, latency_ms) in (0..).zip(latencies_ms) {
            report(&mut host, slot, *latency_ms);
        }
        host
    }

    /// A report of a target that is at work.
    fn report(host: &mut StrategyHost<PeakEwma>, slot: u32, latency_ms: u32) {
        host.change(slot, |target| {
            target.latency_us = latency_ms * 1_000;
            target.in_flight = 1;
        });
    }

    /// What the strategy believes after these averages, one a second.
    fn believed_ms(averages_ms: &[u32]) -> f64 {
        let mut strategy = PeakEwma::default();
        for (second, average_ms) in (0..).zip(averages_ms) {
            let mut target = Target::new(Slot(0), 0.5);
            target.latency_us = average_ms * 1_000;
            target.in_flight = 1;
            strategy.learn(&target, second * 1_000);
        }
        strategy.estimates.get(Slot(0)).map_or(f64::NAN, |estimate| estimate.latency_us / 1e3)
    }

    #[test]
    fn estimate_rises_at_once_and_falls_slowly() {
        assert!((believed_ms(&[10, 500]) - 500.0).abs() < 1e-9);
        let fallen = 10.0 + 490.0 * (-0.3_f64).exp();
        assert!((believed_ms(&[10, 500, 10, 10, 10]) - fallen).abs() < 1e-3);
        assert!((believed_ms(&[10; 50]) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn work_goes_where_it_is_answered_sooner() {
        let mut host = farm(&[10, 30]);
        // Both are always the pair: requests + 1 in them settle at 3 to 1.
        let shares = host.shares(4_000);
        assert!(shares[0].abs_diff(3_000) <= 2, "{shares:?}");
    }

    #[test]
    fn slower_of_each_pair_gets_nothing_until_queues_make_up_for_it() {
        let mut host = farm(&[10, 1_000, 10]);
        assert_eq!(host.shares(60)[1], 0);
    }

    #[test]
    fn weight_and_warmth_divide_the_cost() {
        let mut host = farm(&[10, 10]);
        host.change(0, |target| target.weight = 3.0);
        let shares = host.shares(4_000);
        assert!(shares[0].abs_diff(3_000) <= 2, "{shares:?}");
        host.change(0, |target| target.warm = 0.1);
        host.change(1, |target| target.picks = 0);
        let shares = host.shares(1_300);
        assert!(shares[0].abs_diff(300) <= 2, "{shares:?}");
    }

    #[test]
    fn fast_failures_do_not_attract_work() {
        let mut host = farm(&[10, 1]);
        host.change(1, |target| target.error_rate = 0.95);
        // 1 ms / 0.05² = 400 ms.
        assert!(host.shares(410)[1].abs_diff(10) <= 2);
    }

    #[test]
    fn slow_target_is_tried_again_when_it_has_long_been_idle() {
        let mut host = farm(&[10, 1_000]);
        for _ in 0..100 {
            host.now_ms += 1_000;
            report(&mut host, 0, 10);
            host.change(1, |target| target.in_flight = 0);
        }
        assert_eq!(host.pick(), Some(Slot(1)));
        host.now_ms += 1_000;
        report(&mut host, 1, 1_001);
        assert_eq!(host.shares(20), [20, 0], "and is as slow as ever");
    }

    #[test]
    fn target_that_gets_no_outcomes_any_more_does_not_become_the_cheapest() {
        // Whether it counts what is in it or not.
        for in_flight in [1, 0] {
            let mut host = farm(&[10, 10]);
            for _ in 0..120 {
                host.now_ms += 1_000;
                report(&mut host, 0, 10);
                host.change(1, |target| (target.latency_us, target.in_flight) = (0, in_flight));
            }
            host.change(1, |target| target.in_flight = 1);
            let shares = host.shares(400);
            assert!(shares[1].abs_diff(100) <= 2, "30 ms to 10 ms: {shares:?}");
        }
    }

    #[test]
    fn newcomer_gets_its_share_where_outcomes_have_stopped() {
        let mut host = farm(&[10, 500]);
        for _ in 0..200 {
            host.now_ms += 1_000;
            (0..2).for_each(|slot| {
                host.change(slot, |target| (target.latency_us, target.in_flight) = (0, 0));
            });
        }
        host.add(0.5);
        let shares = host.shares(300);
        assert!(shares.iter().all(|share| share.abs_diff(100) <= 15), "{shares:?}");
    }

    #[test]
    fn unknown_latency_counts_as_the_default() {
        let mut host = farm(&[29, 0]);
        assert_eq!(host.pick(), Some(Slot(0)));
        let mut host = farm(&[31, 0]);
        assert_eq!(host.pick(), Some(Slot(1)));
        host.leave(0);
        host.leave(1);
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn newcomer_in_an_old_slot_is_judged_by_itself() {
        let mut host = farm(&[1_000, 20]);
        host.leave(0);
        report(&mut host, 0, 10);
        assert_eq!(host.pick(), Some(Slot(0)));
    }

    #[test]
    fn candidates_are_compared_likewise() {
        let mut host = farm(&[10, 30, 20]);
        assert_eq!(host.pick_among(&[1, 2]), Some(Slot(2)));
        assert_eq!(host.pick_among(&[1]), Some(Slot(1)));
    }

    #[test]
    fn bad_settings_are_named() {
        for (bad, named) in
            [(r#"{"decay_ms":0}"#, "decay_ms"), (r#"{"default_latency_ms":0}"#, "default_latency")]
        {
            let error = StrategyHost::<PeakEwma>::new(bad, 1).map(drop).expect_err(bad);
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<PeakEwma>("{}");
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<PeakEwma>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<PeakEwma>("{}");
    }
}
