//! Leases: exact under any order of calls, threads and faults, and seen by the next pick.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadline::config::{HealthConfig, PoolConfig};
use loadline::pick::feedback::{Feedback, FeedbackTarget};
use loadline::pick::health::Outcome;
use loadline::pick::{PickRequest, pick};
use loadline::report::{Keyring, Report, State, wire};
use serde_json::json;

use super::{IN_FLIGHT, lowest, one_pool, pool_named, target};
use crate::support::{Farm, delete, get, pool};

/// Opens a lease; its id and machine.
fn lease(farm: &Farm, query: &str) -> (String, String) {
    let answer = farm.get(&format!("/v1/target?lease=30s{query}"));
    let text = |name: &str| answer[name].as_str().unwrap().to_owned();
    (text("lease"), text("machine"))
}

fn end(farm: &Farm, lease: &str) -> u16 {
    delete(&farm.url(&format!("/v1/leases/{lease}")))
}

fn leases(farm: &Farm, machines: &[&str]) -> Vec<u64> {
    machines.iter().map(|m| target(farm, m, "default")["leases"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_counted_end_once_and_with_their_time() {
    let farm = one_pool(&lowest(IN_FLIGHT, 1), &["a", "b"]).await;
    let (first, machine) = lease(&farm, "");
    assert_eq!(machine, "a");
    let (second, machine) = lease(&farm, "&n=2");
    assert_eq!(machine, "b");
    assert_eq!(leases(&farm, &["a", "b"]), [1, 1]);
    assert!(get(&farm.url("/metrics"), "").1.contains("loadline_leases_open{pool=\"default\"} 2"));
    assert_eq!(end(&farm, &first), 204);
    assert_eq!((end(&farm, &first), end(&farm, "nothing")), (404, 404), "never twice");
    assert_eq!(leases(&farm, &["a", "b"]), [0, 1]);
    // A short one ends by itself.
    farm.get("/v1/target?lease=1s");
    assert_eq!(leases(&farm, &["a", "b"]), [1, 1]);
    let over = |farm: &Farm| (leases(farm, &["a", "b"]) == [0, 1]).then_some(());
    farm.until("the end of its time", over).await;
    assert_eq!(farm.host().pools().open_leases(), 1);
    assert_eq!(end(&farm, &second), 204);
    assert_eq!(farm.host().pools().open_leases(), 0);
    assert!(farm.get("/v1/target").get("lease").is_none());
    // An address alone has its lease in a header.
    let text = ureq::get(farm.url("/v1/target?lease=30s")).header("accept", "text/plain").call();
    let id = text.unwrap().headers()["loadline-lease"].to_str().unwrap().to_owned();
    assert_eq!(end(&farm, &id), 204);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fewest_in_flight_sees_every_release_before_the_next_pick() {
    check_fewest("mine", &[("mine.wasm", &lowest(IN_FLIGHT, 1))]).await;
    check_fewest("fewest-clients", &[]).await;
}

async fn check_fewest(strategy: &str, files: &[(&str, &[u8])]) {
    let machines = ["a", "b", "c", "d"];
    let mut farm = Farm::with_files(vec![pool("default", "weighted", strategy)], files).await;
    farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(machines.len()).await;
    let open: Vec<_> = (0..8).map(|_| lease(&farm, "")).collect();
    assert_eq!(leases(&farm, &machines), [2, 2, 2, 2]);
    for (id, machine) in &open {
        assert_eq!(end(&farm, id), 204);
        assert_eq!(&lease(&farm, "").1, machine, "the one with room");
    }
    // A report in between moves them from `picks` to `in-flight`: still counted once.
    farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
    let captured = |farm: &Farm| {
        let picks = |machine: &str| target(farm, machine, "default")["picks"] == 0;
        machines.iter().all(|machine| picks(machine)).then_some(())
    };
    farm.until("the report", captured).await;
    assert_eq!(leases(&farm, &machines), [2, 2, 2, 2]);
    let (next, machine) = lease(&farm, "&exclude=a,b,d");
    assert_eq!(machine, "c");
    let mut others: Vec<_> = (0..3).map(|_| lease(&farm, "").1).collect();
    others.sort();
    assert_eq!(others, ["a", "b", "d"]);
    assert_eq!(end(&farm, &next), 204);
    assert_eq!(lease(&farm, "").1, "c");
    assert_eq!(pool_named(&farm, "default")["strategy"]["faults"], 0);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_exact_under_sixteen_threads() {
    const ROUNDS: usize = 24;
    let machines = ["a", "b", "c", "d", "e"];
    let farm = one_pool(&lowest(IN_FLIGHT, 1), &machines).await;
    let kept: Vec<String> = std::thread::scope(|scope| {
        let open_and_close = |thread: usize| {
            let farm = &farm;
            move || {
                let mut kept = Vec::new();
                for round in 0..ROUNDS {
                    let (id, machine) = lease(farm, "");
                    if (thread + round).is_multiple_of(3) {
                        kept.push(machine);
                    } else {
                        assert_eq!((end(farm, &id), end(farm, &id)), (204, 404));
                    }
                }
                kept
            }
        };
        let threads: Vec<_> = (0..16).map(|thread| scope.spawn(open_and_close(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(kept.len(), 16 * ROUNDS / 3);
    let mut expected: BTreeMap<&str, u64> = machines.map(|machine| (machine, 0)).into();
    kept.iter().for_each(|machine| *expected.get_mut(&**machine).unwrap() += 1);
    assert_eq!(leases(&farm, &machines), expected.values().copied().collect::<Vec<_>>());
    // From here on one at a time: the strategy levels the counts out exactly.
    let level = leases(&farm, &machines).into_iter().max().unwrap();
    let open = || leases(&farm, &machines).iter().sum::<u64>();
    while open() < level * 5 {
        lease(&farm, "");
    }
    assert_eq!(leases(&farm, &machines), [level; 5]);
    assert_eq!(pool_named(&farm, "default")["strategy"]["faults"], 0);
    farm.stop().await;
}

/// Strategies that count are exact however many ask at once. A thread that does not run for 20 ms while it
/// waits for the guest is answered natively, on a machine that is busy with other things: in few of the
/// picks, beside which the guest's turns stay exact, and of which `fewest-clients` knows.
#[tokio::test(flavor = "multi_thread")]
async fn turns_and_counts_are_exact_under_sixteen_threads() {
    const PICKS: u64 = 16 * 500;
    let machines = ["a", "b", "c", "d", "e"];
    for strategy in ["round-robin", "smooth-weighted", "fewest-clients"] {
        let mut farm = Farm::new("weighted", strategy).await;
        farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
        farm.eligible(machines.len()).await;
        let picks = std::sync::Mutex::new(BTreeMap::<_, [u64; 2]>::new());
        let ask = |count: u64| {
            for _ in 0..count {
                let answer = pick(farm.host().pools(), &PickRequest::default()).unwrap();
                let by_guest = usize::from(answer.strategy.is_ok());
                picks.lock().unwrap().entry(answer.target.machine).or_default()[by_guest] += 1;
            }
        };
        let sums = |by: &[usize]| -> Vec<u64> {
            let sum = |counts: &[u64; 2]| by.iter().map(|by| counts[*by]).sum();
            picks.lock().unwrap().values().map(sum).collect()
        };
        std::thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(|| ask(PICKS / 16)))));
        let (native, guest) = (sums(&[0]), sums(&[1]));
        let by_native: u64 = native.iter().sum();
        assert_eq!(guest.iter().sum::<u64>() + by_native, PICKS, "{strategy}");
        assert!(by_native <= PICKS / 20, "{strategy}: the guest chooses: {native:?} natively");
        if strategy == "fewest-clients" {
            // What is missing to the fullest, one at a time: then all have alike, to the last pick.
            let most = sums(&[0, 1]).into_iter().max().unwrap();
            ask(most * machines.len() as u64 - PICKS);
            assert_eq!(sums(&[0, 1]), [most; 5], "{native:?} natively");
            assert!(most <= PICKS / machines.len() as u64 + by_native, "{native:?} natively");
        } else {
            // All 1,600, or what is left of that: nobody two ahead of another.
            let [least, most] = [guest.iter().min(), guest.iter().max()].map(|of| *of.unwrap());
            assert!(most - least <= 1, "{strategy}: {guest:?}, {native:?} natively");
        }
        farm.stop().await;
    }
}

/// Everything at once: targets come, go, are ejected and return while threads pick, lease and report.
async fn check_storm(strategy: &str) {
    let health = HealthConfig {
        consecutive_failures: 2,
        ejection_time: Duration::from_millis(10),
        max_ejected: 1.0,
        slow_start: Duration::from_millis(20),
        ..HealthConfig::default()
    };
    let mut farm =
        Farm::with_pools(vec![PoolConfig { health, ..pool("default", "weighted", strategy) }])
            .await;
    let machines = ["a", "b", "c", "d", "e", "f"];
    farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(machines.len()).await;
    let storm = |farm: &Farm, thread: u64| {
        let pools = farm.host().pools();
        let mut request =
            PickRequest { lease: Some(Duration::from_secs(60)), ..PickRequest::default() };
        for round in 0..1_500_u64 {
            let number = thread.wrapping_mul(7_919) + round;
            request.exclude =
                if number.is_multiple_of(5) { vec!["b".to_owned()] } else { Vec::new() };
            let answer = pick(pools, &request).unwrap();
            let target = FeedbackTarget::Decision(answer.decision);
            let outcome = Outcome { latency_us: 10, ok: number.is_multiple_of(3) };
            // Its machine may have left meanwhile, and its decision be forgotten.
            pools.record(&[Feedback { target, outcome }]).ok();
            assert!(pools.close_lease(&answer.lease.unwrap()), "it was open");
        }
    };
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (hosts, done) = (&farm, &done);
        for thread in 0..4 {
            scope.spawn(move || {
                storm(hosts, thread);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut seq = 1_000;
        while done.load(Ordering::Relaxed) < 4 {
            for (machine, state) in [
                ("b", State::Draining),
                ("c", State::Leaving),
                ("b", State::Ready),
                ("c", State::Ready),
                ("d", State::Ready),
            ] {
                seq += 1;
                let report = crate::support::report(machine, &[("cpu", 0.5), ("memory", 0.1)]);
                let report = Report { state, seq, ..report };
                hosts.deliver(wire::encode(&[report], &Keyring::default()).unwrap());
                std::thread::yield_now();
            }
            // A queue that is full drops the newest: the last word of each machine must not be lost.
            while hosts.get("/v1/machines/d")["seq"] != seq {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(farm.host().pools().open_leases(), 0);
    farm.eligible(machines.len()).await;
    assert_eq!(leases(&farm, &machines), [0; 6]);
    let pool = pool_named(&farm, "default");
    assert_eq!((&pool["strategy"]["faults"], &pool["leases"]), (&json!(0), &json!(0)), "{pool}");
    assert_eq!(pool["picks"]["nobody_eligible"], 0);
    assert!(pool["picks"]["by_strategy"].as_u64().unwrap() > 1_000, "{pool}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pick_fails_and_no_lease_is_lost_whatever_happens() {
    check_storm("least-loaded").await;
    check_storm("p2c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_outlive_a_machine_that_goes_and_returns() {
    let mut farm = one_pool(&lowest(IN_FLIGHT, 1), &["a", "b"]).await;
    let (kept, _) = lease(&farm, "&exclude=b");
    let (ended, _) = lease(&farm, "&exclude=b");
    let leaving = crate::support::report("a", &[]);
    farm.send(&Report { state: State::Leaving, ..leaving });
    farm.eligible(1).await;
    assert_eq!(end(&farm, &ended), 204);
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(2).await;
    assert_eq!(leases(&farm, &["a", "b"]), [1, 0]);
    assert_eq!(farm.target(""), "b");
    assert_eq!(end(&farm, &kept), 204);
    assert_eq!(leases(&farm, &["a", "b"]), [0, 0]);
    farm.stop().await;
}
