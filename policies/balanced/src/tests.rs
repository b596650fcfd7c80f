//! What `balanced` promises, on farms small enough to follow by hand. The figures that matter come
//! from the simulator.

use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

use super::*;

/// Targets that report counts, after a minute of ten requests a second each, all from here and all
/// done by the next report.
fn counting(targets: u32) -> StrategyHost<Balanced> {
    let mut host = StrategyHost::with_loads(&vec![0.0; targets as usize]);
    let mut done = vec![0; targets as usize];
    for second in 1..=60 {
        let shares = host.shares(10 * done.len());
        host.now_ms = second * 1_000;
        for slot in 0..targets {
            done[slot as usize] += shares[slot as usize] as u64;
            report(&mut host, slot, 0, done[slot as usize]);
        }
    }
    host
}

fn report(host: &mut StrategyHost<Balanced>, slot: u32, inside: u32, completed: u64) {
    host.change(slot, |target| {
        target.in_flight = inside;
        target.load = f64::from(inside);
        target.picks = 0;
        target.completed = completed;
        target.accepted = completed + u64::from(inside);
    });
}

#[test]
fn any_calls_are_answered_well() {
    check_answers::<Balanced>("{}");
}

#[test]
fn shorter_queues_are_filled_first() {
    let mut host = counting(3);
    report(&mut host, 0, 4, 600);
    report(&mut host, 1, 1, 600);
    report(&mut host, 2, 2, 600);
    // 4, 1, 2 become 4, 4, 4 and then all rise together.
    assert_eq!(host.shares(5), [0, 3, 2]);
    assert_eq!(host.shares(6), [2, 2, 2]);
}

#[test]
fn a_queue_drains_by_itself_between_reports() {
    let mut host = counting(2);
    report(&mut host, 0, 200, 600);
    assert_eq!(host.shares(100), [0, 100]);
    host.now_ms += 60_000; // no report, and long done
    let shares = host.shares(100);
    assert!(shares[0].abs_diff(50) <= 1, "{shares:?}");
}

#[test]
fn a_faster_target_gets_more_without_being_told() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.0; 2]);
    // What each can do in a second; 300 requests come in that time.
    let (can, mut inside, mut done) = ([100, 300], [0_usize; 2], [0_u64; 2]);
    let mut last = Vec::new();
    for second in 1..=400 {
        last = host.shares(300);
        host.now_ms = second * 1_000;
        for (slot, index) in [(0, 0), (1, 1)] {
            inside[index] += last[index];
            let completed = inside[index].min(can[index]);
            inside[index] -= completed;
            done[index] += completed as u64;
            report(&mut host, slot, u32::try_from(inside[index]).expect("few"), done[index]);
        }
    }
    assert!((50..=101).contains(&last[0]), "the slow one gets what it can do: {last:?}");
}

#[test]
fn loads_alone_are_taken_in_turns_and_lighter_targets_sooner() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5; 4]);
    let shares = host.shares(400);
    assert_eq!(shares, [100; 4]);
    for second in 1..=200 {
        host.now_ms = second * 1_000;
        for slot in 0..4 {
            host.change(slot, |target| target.load = if slot == 0 { 0.3 } else { 0.6 });
        }
        host.shares(40);
    }
    let shares = host.shares(400);
    assert!(shares[0] > 2 * shares[1], "the light one gets more: {shares:?}");
}

#[test]
fn unknown_load_is_served_like_the_others() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5, f64::NAN, 0.5]);
    assert_eq!(host.shares(300), [100; 3]);
}

#[test]
fn target_that_lacks_a_metric_is_the_last_choice_until_it_reports_it() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5, f64::INFINITY, f64::INFINITY]);
    assert_eq!(host.shares(300), [300, 0, 0]);
    host.change(0, |target| target.eligible = false);
    assert_eq!(host.shares(30), [0, 15, 15]);
    host.now_ms += 1_000;
    host.change(1, |target| target.load = 0.5);
    assert_eq!(host.shares(30), [0, 30, 0]);
    host.change(0, |target| target.eligible = true);
    assert_eq!(host.shares(30), [15, 15, 0], "what it missed is not made good");
}

#[test]
fn slow_start_and_failures_cost_a_target_its_share() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5; 3]);
    host.change(1, |target| target.warm = 0.1);
    host.change(2, |target| target.error_rate = 0.5);
    let shares = host.shares(1_000);
    assert!(shares[1].abs_diff(shares[0] / 10) <= 10, "a tenth: {shares:?}");
    assert!(shares[2].abs_diff(shares[0] / 4) <= 10, "a quarter: {shares:?}");
}

#[test]
fn a_target_that_returns_is_not_flooded() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5; 3]);
    host.change(0, |target| target.eligible = false);
    assert_eq!(host.shares(300), [0, 150, 150]);
    host.change(0, |target| target.eligible = true);
    let shares = host.shares(30);
    assert!(shares[0].abs_diff(10) <= 1, "{shares:?}");
}

#[test]
fn picks_of_other_hosts_are_reckoned_with() {
    let mut host = counting(4);
    // Each second this host picks 40 and the targets accept 400: ten choose.
    let mut accepted = 600;
    for second in 61..=200_u64 {
        host.shares(40);
        accepted += 100;
        host.now_ms = second * 1_000;
        (0..4).for_each(|slot| report(&mut host, slot, 0, accepted));
    }
    report(&mut host, 0, 1, accepted);
    // Alone it would fill up the three others first; with nine more doing the same it does not.
    let shares = host.shares(100);
    assert!(shares.iter().all(|share| (10..45).contains(share)), "{shares:?}");
}

#[test]
fn own_picks_show_beside_very_many_of_others() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.0; 10]);
    let (mut done, mut left_out) = (0, 0);
    for second in 1..=200 {
        let shares = host.shares(10);
        // Forty hosts send one request each to everybody.
        done += 40;
        host.now_ms = second * 1_000;
        (0..10).for_each(|slot| report(&mut host, slot, 0, done));
        if second > 100 {
            left_out += shares.iter().filter(|share| **share == 0).count();
        }
    }
    assert!(left_out < 30, "{left_out} of a thousand turns, at random 350");
}

#[test]
fn what_was_learned_is_carried_over_and_nothing_else_is_accepted() {
    let mut host = counting(3);
    report(&mut host, 0, 5, 600);
    let state = host.runner().save();
    assert_eq!(host.reload("{}"), Ok(true));
    assert_eq!(host.runner().save(), state);
    assert_eq!(host.shares(10)[0], 0, "the queue of the first is known");
    let mut fresh = Balanced::default();
    assert!(fresh.restore(&[]));
    for bad in [&state[..state.len() - 1], &[9][..], &[&state[..1], &[0xff; 40][..]].concat()] {
        assert!(!fresh.restore(bad), "{} bytes", bad.len());
    }
}

#[test]
fn one_failure_costs_a_turn_and_not_ten_thousand() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5; 4]);
    host.change(0, |target| target.error_rate = 1.0);
    host.shares(100);
    host.change(0, |target| target.error_rate = 0.0);
    assert_eq!(host.shares(400), [100; 4]);
}

#[test]
fn leases_alone_do_not_hide_the_loads() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5; 2]);
    host.change(0, |target| target.weight = 3.0);
    (0..2).for_each(|slot| host.change(slot, |target| target.in_flight = 5));
    assert_eq!(host.shares(400), [300, 100], "by weight");
}

#[test]
fn the_next_best_is_not_its_turn() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5; 2]);
    let mut firsts = [0; 2];
    for _ in 0..100 {
        let first = host.pick().expect("two targets");
        firsts[first.index()] += 1;
        let other = 1 - first.0;
        assert_eq!(host.pick_among(&[other]), Some(Slot(other)));
        host.change(other, |target| target.picks = 0); // it was not used
    }
    assert_eq!(firsts, [50, 50]);
}

#[test]
fn a_target_without_counts_is_served_among_counting_ones() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.0; 3]);
    let mut done = [0_u64; 2];
    let mut silent = 0;
    for second in 1..=100 {
        let shares = host.shares(30);
        host.now_ms = second * 1_000;
        for slot in [0, 1] {
            done[slot as usize] += shares[slot as usize] as u64;
            report(&mut host, slot, 0, done[slot as usize]);
        }
        host.change(2, |target| target.picks = 0);
        silent += if second > 50 { shares[2] } else { 0 };
    }
    assert!((350..650).contains(&silent), "a third of 1500: {silent}");
}

#[test]
fn a_lease_that_ends_is_not_taken_for_another_host() {
    let mut host = counting(3);
    let mut done = [600; 3];
    for second in 61..=120_u64 {
        let shares = host.shares(30);
        host.now_ms = second * 1_000 - 500;
        // The host no longer counts picks whose lease has ended.
        (0..3).for_each(|slot| host.change(slot, |target| target.picks = 0));
        host.now_ms = second * 1_000;
        for slot in 0..3 {
            assert!(shares[slot as usize].abs_diff(10) <= 1, "alone, nearly in turn: {shares:?}");
            done[slot as usize] += shares[slot as usize] as u64;
            report(&mut host, slot, 0, done[slot as usize]);
        }
    }
}

#[test]
fn idle_loads_train_nothing() {
    let mut host = StrategyHost::<Balanced>::with_loads(&[0.5; 4]);
    host.shares(40);
    for second in 1..=1_000 {
        host.now_ms = second * 1_000;
        for slot in 0..4 {
            host.change(slot, |target| target.load = if slot == 0 { 0.01 } else { 0.03 });
        }
    }
    let shares = host.shares(40);
    assert!(shares.iter().all(|share| (8..=13).contains(share)), "{shares:?}");
}

#[test]
fn after_a_pause_a_large_pool_is_found_free_at_once() {
    let mut host = counting(2_000);
    host.now_ms += 3_600_000;
    let shares = host.shares(2_000);
    assert!(shares.iter().all(|share| (0..=2).contains(share)), "spread over the idle ones");
    assert!(shares.iter().filter(|share| **share > 0).count() > 1_900);
}

#[test]
fn fast_failures_attract_nothing() {
    let share = share_of_failing::<Balanced>("{}");
    assert!(share < 0.5, "{share}");
}

#[test]
fn equals_have_equal_shares() {
    check_ties::<Balanced>("{}");
}

#[test]
fn fast_failures_attract_nothing_where_counts_are_known() {
    for failing in [5, 9, 10] {
        // Of ten requests so many fail.
        let mut host = counting(4);
        let (mut done, mut inside, mut last) = ([600_u64; 4], [0_usize; 4], Vec::new());
        for second in 61..=300 {
            last = host.shares(36);
            host.now_ms = second * 1_000;
            for slot in 0..4 {
                let at = slot as usize;
                // Failures take no time; of the rest each can do ten a second.
                let fails = if slot == 0 { last[at] * failing / 10 } else { 0 };
                inside[at] += last[at] - fails;
                let served = inside[at].min(10);
                inside[at] -= served;
                done[at] += (served + fails) as u64;
                let left = u32::try_from(inside[at]).expect("few");
                report(&mut host, slot, left, done[at]);
                let error_rate = if slot == 0 { failing as f32 / 10.0 } else { 0.0 };
                host.change(slot, |target| target.error_rate = error_rate);
            }
        }
        assert!(last[0] < 9, "{failing}: {last:?}");
    }
}
