//! Files of one folder in each other's way: one that is written slowly, or only once, beside one that changes
//! all the time.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{farm, mine, serves};
use crate::support::large::large_strategy;
use crate::support::{Farm, Queries, built_in, relabelled};

/// Writes a file anew again and again, by `mv`, until told to stop.
struct Restless {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Restless {
    fn start(farm: &Farm, name: &str, content: impl Fn(u64) -> Vec<u8> + Send + 'static) -> Self {
        let stop: Arc<AtomicBool> = Arc::default();
        let (is_over, path) = (Arc::clone(&stop), farm.folder().join(name));
        let temporary: PathBuf = farm.folder().join(format!(".{name}.restless"));
        let thread = std::thread::spawn(move || {
            for turn in 0.. {
                fs::write(&temporary, content(turn)).unwrap();
                fs::rename(&temporary, &path).unwrap();
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::park_timeout(Duration::from_millis(20)); // so restless is it
            }
        });
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn loads(farm: &Farm, name: &str) -> u64 {
    farm.get(&format!("/v1/policies/{name}"))["loads"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn file_written_slowly_beside_one_that_changes_all_the_time_is_activated_once_and_whole() {
    let farm = farm(&built_in("p2c")).await;
    let queries = Queries::start(farm.url("/v1/target"), 1);
    // Before and behind it in the folder's order.
    let formula = |turn: u64| format!("cpu * {turn}").into_bytes();
    let before = Restless::start(&farm, "a.formula", formula);
    let behind = Restless::start(&farm, "weighted.formula", formula);
    let served = |farm: &Farm| (farm.policy("formula")["swaps"].as_u64() >= Some(2)).then_some(());
    farm.until("the neighbour", served).await;
    let next = relabelled(&built_in("round-robin"), 1);
    let (path, written) = (farm.folder().join("mine.wasm"), next.clone());
    let loads_before = loads(&farm, "weighted");
    let writer = std::thread::spawn(move || {
        let mut file = File::create(path).unwrap();
        for part in written.chunks(1 << 10) {
            file.write_all(part).unwrap();
            std::thread::park_timeout(Duration::from_millis(50)); // so slow is the writer
        }
    });
    writer.join().unwrap();
    let loads_meanwhile = loads(&farm, "weighted") - loads_before;
    serves(&farm, &next).await;
    let policy = mine(&farm);
    assert_eq!((&policy["loads"], &policy["refusals"]), (&2.into(), &0.into()), "{policy}");
    assert!(loads_meanwhile >= 1, "the neighbour did not wait for it");
    before.stop();
    behind.stop();
    assert!(queries.stop().bad.is_empty());
    farm.stop().await;
}

/// Whoever is new again when its turn is over does not get the next one.
#[tokio::test(flavor = "multi_thread")]
async fn file_gets_its_turn_beside_one_that_is_always_new_and_takes_long_to_compile() {
    let farm = farm(&built_in("p2c")).await;
    let large = large_strategy(200 << 10, 1);
    let restless = Restless::start(&farm, "a.wasm", move |turn| {
        turn.to_le_bytes().iter().take(3).fold(large.clone(), |wasm, byte| relabelled(&wasm, *byte))
    });
    let loaded = |farm: &Farm| {
        let all = farm.get("/v1/policies");
        let mut all = all.as_array().unwrap().iter();
        all.any(|policy| policy["name"] == "a" && policy["loads"].as_u64() >= Some(1)).then_some(())
    };
    farm.until("the neighbour", loaded).await;
    let next = built_in("round-robin");
    farm.drop_in("mine.wasm", &next);
    serves(&farm, &next).await;
    let before = loads(&farm, "a");
    let goes_on = |farm: &Farm| (loads(farm, "a") > before).then_some(());
    farm.until("the neighbour again", goes_on).await;
    restless.stop();
    farm.stop().await;
}
