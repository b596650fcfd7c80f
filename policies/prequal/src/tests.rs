//! What `prequal` picks on small farms: who is hot, what a latency is taken for, and what failures cost.

use loadline_sdk::testing::{
    StrategyHost, check_answers, check_best_ties, check_ties, share_of_failing,
};

use super::*;

fn farm(settings: &str, targets: &[(u32, u32)]) -> StrategyHost<Prequal> {
    let mut host = StrategyHost::new(settings, 1).expect("good settings");
    for (requests, latency_us) in targets {
        let slot = host.add(0.5);
        report(&mut host, slot.0, (*requests, *latency_us));
    }
    host
}

fn report(host: &mut StrategyHost<Prequal>, slot: u32, (requests, latency_us): (u32, u32)) {
    host.change(slot, |target| {
        (target.in_flight, target.latency_us) = (requests, latency_us);
    });
}

#[track_caller]
fn check(settings: &str, targets: &[(u32, u32)], expected: u32) {
    assert_eq!(farm(settings, targets).pick(), Some(Slot(expected)));
}

#[test]
fn fastest_cold_target_wins_and_the_emptiest_of_hot_ones() {
    check("{}", &[(3, 900), (3, 100), (3, 500)], 1);
    // The fastest holds more than the 0.5 quantile.
    check(r#"{"quantile":0.5}"#, &[(3, 900), (9, 100), (3, 500)], 2);
    // Only the emptiest are cold, whatever their latency.
    check(r#"{"quantile":0}"#, &[(2, 900), (3, 100), (4, 50)], 0);
    // Nobody is hot.
    check(r#"{"quantile":1}"#, &[(2, 900), (3, 800), (4, 50)], 2);
    // Five are drawn; of the other candidates all are hot: the emptiest.
    let mut host = farm(r#"{"quantile":0.5}"#, &[(0, 1), (0, 1), (0, 1), (8, 9), (7, 99)]);
    assert_eq!(host.pick_among(&[3, 4]), Some(Slot(4)));
    assert_eq!(host.pick_among(&[8]), None);
}

#[test]
fn average_is_not_taken_for_the_latency_of_a_fuller_target() {
    // Nobody is hot, and both had as many requests when they took so long.
    let mut host = farm(r#"{"quantile":1}"#, &[(2, 1_000), (2, 1_500)]);
    assert_eq!(host.pick(), Some(Slot(0)));
    let shares = host.shares(100);
    assert!((50..70).contains(&shares[0]), "{shares:?}");
    // What is slower with as many requests stays slower.
    let mut host = farm(r#"{"quantile":1}"#, &[(2, 1_000), (2, 9_000)]);
    let shares = host.shares(400);
    assert!((260..360).contains(&shares[0]), "{shares:?}");
}

#[test]
fn few_outcomes_say_little() {
    let mut host = farm(r#"{"quantile":1}"#, &[(0, 0), (0, 0)]);
    for _ in 0..10 {
        host.pick();
        // The first ones are of one request each, and chance made the one faster.
        report(&mut host, 0, (0, 500));
        report(&mut host, 1, (0, 1_500));
    }
    let few = host.shares(1_000);
    assert!((500..750).contains(&few[0]), "a third of the other's latency: {few:?}");
}

#[test]
fn own_picks_make_a_target_hot() {
    let mut host = farm("{}", &[(0, 100), (0, 200), (0, 200), (0, 200)]);
    assert_eq!(host.pick(), Some(Slot(0)));
    assert_ne!(host.pick(), Some(Slot(0)), "it holds more than the others now");
    let shares = host.shares(80);
    assert!(shares.iter().all(|share| share.abs_diff(20) <= 1), "{shares:?}");
}

#[test]
fn quantile_is_that_of_a_sorted_list() {
    let mut spread = Spread::default();
    let mut model = std::collections::BTreeMap::new();
    for random in math::draws(1).take(5_000) {
        let slot = Slot(u32::try_from(random % 100).unwrap());
        let fullness = (random >> 32) % 30;
        let is_in = !random.is_multiple_of(7);
        spread.set(slot, is_in.then_some(fullness as f64));
        if is_in {
            model.insert(slot, fullness)
        } else {
            model.remove(&slot)
        };
        let mut sorted: Vec<_> = model.values().copied().collect();
        sorted.sort_unstable();
        let place = 84 * sorted.len().saturating_sub(1) / 100;
        let expected = sorted.get(place).copied().unwrap_or(0);
        // At a whole number rounding may decide.
        if sorted.len() % 25 != 1 {
            assert_eq!(spread.quantile(0.84), bucket(expected as f64));
        }
    }
}

#[test]
fn buckets_order_like_what_is_in_them() {
    let whole: Vec<_> = (0..32).map(f64::from).map(bucket).collect();
    assert!(whole.is_sorted_by(|a, b| a < b));
    assert!(bucket(100.0) < bucket(107.0));
    assert_eq!(bucket(f64::INFINITY), bucket(1e300));
    assert!(bucket(0.25) < bucket(0.5));
}

#[test]
fn weight_warmth_and_failures_count() {
    check(r#"{"quantile":0.5}"#, &[(9, 100), (3, 200), (3, 250)], 1);
    let mut host = farm(r#"{"quantile":0.5}"#, &[(9, 100), (3, 200), (3, 250)]);
    host.change(0, |target| target.weight = 3.0);
    assert_eq!(host.pick(), Some(Slot(0)));
    host.change(0, |target| target.warm = 0.3);
    assert_ne!(host.pick(), Some(Slot(0)));
    let mut host = farm("{}", &[(3, 100), (3, 200)]);
    host.change(0, |target| target.error_rate = 0.5);
    assert_eq!(host.pick(), Some(Slot(1)), "100 / 0.5² is dearer than 200");
}

#[test]
fn unknown_latency_counts_as_the_mean() {
    check("{}", &[(1, 100), (1, 0), (1, 300)], 0);
    check("{}", &[(1, 300), (1, 0), (1, 310)], 0);
    check(r#"{"quantile":0.5}"#, &[(9, 100), (1, 0), (1, 300), (1, 310)], 2);
    let mut host = farm("{}", &[(0, 0), (0, 0), (0, 0)]);
    assert_eq!(host.shares(300), [100; 3], "without outcomes the emptiest");
}

#[test]
fn large_farm_is_sampled() {
    let targets: Vec<_> = (0..100).map(|place| (1, 100 + place)).collect();
    let mut host = farm(r#"{"quantile":1}"#, &targets);
    let mut shares = vec![0_usize; targets.len()];
    for _ in 0..20_000 {
        let slot = host.pick().expect("somebody");
        shares[slot.index()] += 1;
        host.change(slot.0, |target| target.picks = 0);
    }
    // The fastest of 100 is among five drawn with probability 1 - 0.99^5.
    assert!(shares[0].abs_diff(980) < 155, "{shares:?}");
    assert!(shares[50..].iter().sum::<usize>() < 1_000, "{shares:?}");
}

#[test]
fn only_eligible_targets_are_picked_and_counted() {
    let idle = (0, 90);
    let targets = [idle, idle, (5, 100), (5, 50), idle, idle];
    let mut host = farm(r#"{"quantile":0.5}"#, &targets);
    [0, 1].into_iter().for_each(|slot| host.change(slot, |target| target.eligible = false));
    [4, 5].into_iter().for_each(|slot| host.leave(slot));
    for _ in 0..20 {
        assert_eq!(host.pick(), Some(Slot(3)), "without the idle ones neither is hot");
        report(&mut host, 3, (5, 50));
    }
    host.leave(2);
    host.leave(3);
    assert_eq!(host.pick(), None);
}

#[test]
fn bad_settings_are_named() {
    for (bad, named) in [(r#"{"quantile":1.1}"#, "quantile"), (r#"{"sample":0}"#, "sample")] {
        let error = StrategyHost::<Prequal>::new(bad, 1).map(drop).expect_err(bad);
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn every_answer_is_a_target_that_may_be_picked() {
    check_answers::<Prequal>("{}");
    check_answers::<Prequal>(r#"{"quantile":0,"sample":1}"#);
}

#[test]
fn fast_failures_attract_nothing() {
    let share = share_of_failing::<Prequal>("{}");
    assert!(share < 0.5, "{share}");
}

#[test]
fn equals_have_equal_shares() {
    check_ties::<Prequal>("{}");
    check_best_ties::<Prequal>("{}");
}
