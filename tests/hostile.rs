//! Guests that want too much, answer nonsense or misuse what they are given, on the engine itself and in a
//! farm. From fault reports of other hosts of WebAssembly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use loadline::config::Wasi;
use loadline::pick::{PickRequest, pick};
use loadline::policy::guest::{Request, TargetView};
use loadline::policy::{Limits, Module, PolicyEngine, StartError, StrategyGuest, built_in_names};
use wit_component::ComponentEncoder;

use crate::support::{Farm, built_in, formula, importing_strategy, pool, relabelled, strategy};

const REQUEST: Request = Request { key: 0, class: 0, cost: 1.0, now_ms: 0, random: 0 };

fn engine(limits: Limits) -> PolicyEngine {
    PolicyEngine::new(Limits { compile_last: false, ..limits }).unwrap()
}

fn start(engine: &PolicyEngine, wasm: &[u8]) -> Result<StrategyGuest, StartError> {
    let module = Module::from_wasm(engine, wasm).unwrap();
    StrategyGuest::start(engine, &Arc::from("mine"), &module, "{}", 1)
}

fn targets(loads: &[f64]) -> Vec<TargetView> {
    (0..).zip(loads).map(|(slot, load)| TargetView::new(slot, *load)).collect()
}

#[test]
fn memory_that_grows_anywhere_ends_at_its_limit() {
    let grow = "(loop (br_if 0 (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0))))";
    let limits = Limits { memory_bytes: 1 << 20, ..Limits::default() };
    let engine = engine(limits);
    let configure =
        format!("(func $configure (param i32 i32 i64) (result i32) {grow} unreachable)");
    let refused = start(&engine, &strategy(&configure)).map(drop).unwrap_err().to_string();
    assert!(refused.contains("configure needed more than the 1048576 bytes"), "{refused}");

    let leak = "(func $update (param i64 i32 i32 i32)
        (if (i32.lt_s (memory.grow (i32.const 1)) (i32.const 0)) (then unreachable)))";
    let mut guest = start(&engine, &strategy(leak)).unwrap();
    let updates = (0..100).map(|_| guest.update(0, 1, &[]));
    let faults: Vec<_> = updates.filter_map(Result::err).collect();
    assert_eq!(faults.len(), 100 - 12, "4 pages of 16 are there from the start");
    assert_eq!(faults[0].reason(), "memory");
    assert!(faults[1].to_string().contains("an earlier call failed"), "never entered again");
}

#[test]
fn tables_instances_and_locals_without_end_do_no_harm() {
    let engine = engine(Limits::default());
    let grow = "(table 1 funcref) (func $configure (param i32 i32 i64) (result i32)
        (loop (br_if 0 (i32.ge_s (table.grow (ref.null func) (i32.const 1000)) (i32.const 0))))
        i32.const 128)";
    assert!(start(&engine, &strategy(grow)).is_ok(), "what it may not have it does not get");
    for count in [50, 1_000] {
        let tables = strategy_or_error(&"(table 1 funcref)".repeat(count));
        let started = tables.and_then(|wasm| {
            let module = Module::from_wasm(&engine, &wasm).map_err(|error| error.to_string())?;
            let started = StrategyGuest::start(&engine, &Arc::from("x"), &module, "{}", 1);
            started.map(drop).map_err(|error| error.to_string())
        });
        assert!(started.is_err(), "{count} tables");
    }
    let mut core = ComponentEncoder::default().module(&built_in("random")).unwrap();
    let text = wasmprinter::print_bytes(core.encode().unwrap()).unwrap();
    let (rest, _) = text.rsplit_once(')').unwrap();
    let instances = "(core instance (instantiate $empty))".repeat(5_000);
    let many = wat::parse_str(format!("{rest} (core module $empty) {instances})")).unwrap();
    let refused = match Module::from_wasm(&engine, &many) {
        Err(error) => error.to_string(),
        Ok(module) => {
            let started = StrategyGuest::start(&engine, &Arc::from("x"), &module, "{}", 1);
            started.map(drop).expect_err("5,000 instances").to_string()
        }
    };
    assert!(!refused.is_empty());

    let locals = format!("(local {})", "i64 ".repeat(40_000));
    let deep = format!(
        "(func $pick (param i64 i32 f64 i64 i64) (result i32) {locals}
        (call $pick (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4)))"
    );
    let fault = start(&engine, &strategy(&deep)).unwrap().pick(REQUEST).unwrap_err();
    assert_eq!(fault.reason(), "trap", "{fault}");
}

/// As the helper does it, where even the text may be refused.
fn strategy_or_error(body: &str) -> Result<Vec<u8>, String> {
    std::panic::catch_unwind(|| strategy(body)).map_err(|_| "no module".to_owned())
}

/// The loads that are odd and good.
#[tokio::test(flavor = "multi_thread")]
async fn loads_at_the_ends_of_the_range_are_loads() {
    for load in [0.0, -0.0, 5e-324, 1e308, f64::MAX] {
        let pools = vec![pool("default", "mine", "least-loaded")];
        let mut farm = Farm::with_files(pools, &[("mine.wasm", &formula(""))]).await;
        farm.report(&["a"], &[("cpu", load)]);
        farm.eligible(1).await;
        assert_eq!(farm.get("/v1/target")["load"].as_f64(), Some(load));
        assert_eq!(farm.get("/v1/pools")[0]["bad_loads"], 0);
        farm.stop().await;
    }
}

#[test]
fn every_strategy_chooses_among_loads_of_any_size() {
    let engine = engine(Limits::default());
    let loads = [0.0, -0.0, 5e-324, 1e308, f64::MAX, f64::MAX, f64::NAN];
    for name in built_in_names() {
        let module = Module::from_wasm(&engine, &built_in(name)).unwrap();
        let Ok(mut guest) = StrategyGuest::start(&engine, &Arc::from(name), &module, "{}", 1)
        else {
            continue; // a formula
        };
        guest.update(0, 1, &targets(&loads)).unwrap();
        for round in 0..200_u64 {
            let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let slot = guest.pick(Request { key: round, random, ..REQUEST });
            assert!(matches!(slot, Ok(Some(0..=6))), "{name}: {slot:?}");
        }
    }
}

/// Answers the slot with this number once it has seen a fleet, from the fiftieth pick on.
fn answers(slot: i64) -> Vec<u8> {
    strategy(&format!(
        "(global $picks (mut i32) (i32.const 0))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
            (if (i32.lt_u (global.get $picks) (i32.const 50)) (then (return (i32.const 128))))
            (i32.store8 (i32.const 200) (i32.const 1))
            (i32.store (i32.const 204) (i32.const {slot}))
            (i32.const 200))"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_nobody_are_not_believed() {
    // Two targets: the number of them, u32::MAX, and who has left.
    for (slot, words) in [(2, "slot 2"), (-1, "slot 4294967295"), (0, "slot 0")] {
        let pools = vec![pool("default", "weighted", "mine")];
        let mut farm = Farm::with_files(pools, &[("mine.wasm", &answers(slot))]).await;
        for name in ["a", "b"] {
            farm.report(&[name], &[("cpu", 0.5), ("memory", 0.5)]);
            farm.until(name, |farm| {
                let machines = farm.get("/v1/machines");
                machines.as_array()?.iter().any(|machine| machine["name"] == *name).then_some(())
            })
            .await;
        }
        farm.eligible(2).await;
        if slot == 0 {
            let left = loadline::report::Report {
                state: loadline::report::State::Leaving,
                ..crate::support::report("a", &[("cpu", 0.5), ("memory", 0.5)])
            };
            farm.send(&left);
            farm.eligible(1).await;
        }
        for _ in 0..60 {
            farm.target("");
        }
        let policy = farm.policy("strategy");
        assert!(policy["trouble"].as_str().is_some_and(|why| why.contains(words)), "{policy}");
        farm.stop().await;
    }
}

/// Once a swap is told, no request on any thread is answered by the old generation.
#[tokio::test(flavor = "multi_thread")]
async fn swap_holds_for_every_thread_at_once() {
    let pools = vec![pool("default", "weighted", "mine")];
    let wasm = built_in("round-robin");
    let mut farm = Farm::with_files(pools, &[("mine.wasm", &wasm)]).await;
    farm.report(&["a", "b"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(2).await;
    for label in 0..3 {
        let next = relabelled(&wasm, label);
        let generation = loadline::policy::Generation::of(&next).to_string();
        farm.drop_in("mine.wasm", &next);
        let told =
            |farm: &Farm| (farm.policy("strategy")["generation"] == *generation).then_some(());
        farm.until("the swap", told).await;
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let answer = pick(farm.host().pools(), &PickRequest::default()).unwrap();
                        // Busy for a moment is no answer by the old one.
                        if let Ok(decider) = answer.strategy {
                            assert_eq!(decider.generation.to_string(), generation);
                        }
                    }
                });
            }
        });
    }
    farm.stop().await;
}

/// One guest serves all threads: its sequence is right for all of them together.
#[tokio::test(flavor = "multi_thread")]
async fn round_robin_is_one_round_for_all_threads() {
    let mut farm = Farm::new("weighted", "round-robin").await;
    farm.report(&["a", "b", "c", "d"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(4).await;
    let picked: Mutex<BTreeMap<String, i64>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let answer = pick(farm.host().pools(), &PickRequest::default()).unwrap();
                    let machine = answer.target.machine.to_string();
                    *picked.lock().unwrap().entry(machine).or_default() += 1;
                }
            });
        }
    });
    let picks = farm.get("/v1/pools")[0]["picks"].clone();
    // On a machine that is short of CPU some may find the guest busy.
    let native = picks["native"].as_i64().unwrap();
    assert_eq!(picks["by_strategy"].as_i64().unwrap() + native, 1_600);
    for (machine, count) in picked.into_inner().unwrap() {
        assert!((count - 400).abs() <= native, "{machine}: {count} of 400, {native} natively");
    }
    farm.stop().await;
}

/// Counts lines and remembers the longest.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<(usize, usize)>>);

impl std::io::Write for Counted {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut counted = self.0.lock().unwrap();
        let lines = line.iter().filter(|byte| **byte == b'\n').count();
        *counted = (counted.0 + lines, counted.1.max(line.len()));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_neither_floods_nor_forges_nor_blocks() {
    let engine = engine(Limits::default());
    let body = "(func $configure (param i32 i32 i64) (result i32) (local $left i32)
            (local.set $left (i32.const 1000000))
            (loop
                (call $log (i32.const 3) (i32.const 512) (i32.const 6))
                (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
            i32.const 128)
        (func $save (result i32)
            (drop (memory.grow (i32.const 20)))
            (call $log (i32.const 3) (i32.const 262144) (i32.const 1048576)) i32.const 128)
        (func $leave (param i32 i32)
            (call $log (i32.const 3) (i32.const 600) (i32.const 2)))
        (data (i32.const 512) \"a\\0ab\\1b[31mc\") (data (i32.const 600) \"\\ff\\fe\")";
    let counted = Counted::default();
    let writer = counted.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        // A million lines in its start: it is done or stopped, and twenty of them are seen.
        let started = start(&engine, &strategy(body));
        let (lines, longest) = *counted.0.lock().unwrap();
        assert!(lines <= 21 && longest < 300, "{lines} lines, {longest} bytes");
        assert!(lines > 0, "{:?}", started.map(drop));
        let quiet = body.replace("1000000", "1");
        let mut guest = start(&engine, &strategy(&quiet)).unwrap();
        guest.save().unwrap();
        let (_, longest) = *counted.0.lock().unwrap();
        // A control character is escaped to up to six.
        assert!((1_024..8_192).contains(&longest), "{longest} bytes");
        let fault = guest.leave(&[]).unwrap_err();
        assert_eq!(fault.reason(), "trap", "no text: {fault}");
    });
}

/// Who allocates in each pick is seen.
#[tokio::test(flavor = "multi_thread")]
async fn memory_that_grows_with_picks_is_counted() {
    let grows = "(func $pick (param i64 i32 f64 i64 i64) (result i32)
        (drop (memory.grow (i32.const 1))) i32.const 128)";
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", &strategy(grows))]).await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let growths = |farm: &Farm| farm.metric("policy_memory_growths_total{policy=\"mine\"}");
    let before = growths(&farm);
    (0..10).for_each(|_| drop(farm.target("")));
    assert_eq!(growths(&farm), before + 10);
    farm.stop().await;
}

/// Who logs in each pick is cut off, and that is seen, whether it goes on logging or not.
#[tokio::test(flavor = "multi_thread")]
async fn log_lines_that_are_dropped_are_counted() {
    let logs = "(global $picks (mut i32) (i32.const 0))
        (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
            (if (i32.gt_u (global.get $picks) (i32.const 50))
                (then (call $log (i32.const 0) (i32.const 224) (i32.const 3))))
            i32.const 128)";
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", &strategy(logs))]).await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let dropped = |farm: &Farm| farm.metric("policy_log_lines_dropped_total{policy=\"mine\"}");
    assert_eq!(dropped(&farm), 0);
    // Fifty picks without a line, twenty lines that a guest may have, and more than those of a second window.
    (0..50 + 20 + 30).for_each(|_| drop(farm.target("")));
    let dropped = dropped(&farm);
    assert!((10..=30).contains(&dropped), "{dropped}");
    farm.stop().await;
}

/// What a guest has no use for it need not answer: every call that is not needed would fail here.
#[tokio::test(flavor = "multi_thread")]
async fn host_makes_no_call_that_nothing_needs() {
    let late = "(if (i32.gt_u (global.get $picks) (i32.const 20)) (then unreachable))";
    let wasm = strategy(&format!(
        "(global $picks (mut i32) (i32.const 0)) (global $fed (mut i32) (i32.const 0))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
            (if (i32.eqz (global.get $fed)) (then (return (i32.const 128))))
            (i32.store8 (i32.const 200) (i32.const 1)) (i32.store (i32.const 204) (i32.const 0))
            i32.const 200)
         (func $update (param i64 i32 i32 i32) (global.set $fed (i32.const 1)) {late})
         (func $pick-among (param i64 i32 f64 i64 i64 i32 i32) (result i32) {late} i32.const 128)
         (func $leave (param i32 i32) {late})
         (func $save (result i32) {late} i32.const 128)
         (func $admit (param i32) (result i32) unreachable)
         (func $rebalance (param i64) (result i32) unreachable)"
    ));
    let evaluated = "(func $evaluate (param i64 i32 i32 i32 i32) (result i32)
            (if (i32.eqz (local.get 2)) (then (global.set $tried (i32.const 1))))
            (if (i32.and (global.get $tried) (i32.gt_u (local.get 2) (i32.const 1))) (then unreachable))
            (i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (local.get 2))
            i32.const 192)
         (global $tried (mut i32) (i32.const 0))
         (func $leave (param i32 i32))";
    let pools = vec![pool("default", "theirs", "mine")];
    let files: [(&str, &[u8]); 2] = [("mine.wasm", &wasm), ("theirs.wasm", &formula(evaluated))];
    let mut farm = Farm::with_files(pools, &files).await;
    farm.report(&["a"], &[("cpu", 0.5)]);
    farm.eligible(1).await;
    for _ in 0..100 {
        assert_eq!(farm.target(""), "a");
    }
    // It looks each 50 ms whether there is anything to be told; and a look at the folder changes nothing.
    let looked = farm.host().pools().clock().now_ms() + 300;
    while farm.host().pools().clock().now_ms() < looked {
        assert_eq!(farm.target(""), "a");
    }
    for kind in ["formula", "strategy"] {
        assert_eq!(farm.policy(kind)["faults"], 0, "{}", farm.policy(kind));
    }
    assert_eq!(farm.get("/v1/pools")[0]["picks"]["native"], 0);
    farm.stop().await;
}

/// A guest that was built for WASI and never asks it for anything is taken where an operator says so; one that
/// asks fails like any other, and what is not WASI is refused in any case.
#[test]
fn wasi_is_refused_or_traps_as_the_operator_says() {
    let refusing = engine(Limits::default());
    let trapping = engine(Limits { wasi: Wasi::Trap, ..Limits::default() });
    let import = "(import \"wasi_snapshot_preview1\" \"fd_write\"
            (func $fd_write (param i32 i32 i32 i32) (result i32)))
        (import \"wasi_snapshot_preview1\" \"proc_exit\" (func $proc_exit (param i32)))";
    let body = "(func $leave (param i32 i32)
            (drop (call $fd_write (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))))
        (func $save (result i32) i32.const 128)";
    let wasm = importing_strategy(import, body);
    let refused = Module::from_wasm(&refusing, &wasm).unwrap_err().to_string();
    assert!(
        refused.contains("imports wasi_snapshot_preview1, which a policy does not get"),
        "{refused}"
    );
    assert!(refused.contains("wasi = \"trap\" in its [[host.policy]]"), "{refused}");
    let mut guest = start(&trapping, &wasm).unwrap();
    assert_eq!(guest.pick(REQUEST), Ok(None));
    assert_eq!(guest.leave(&[1]).unwrap_err().reason(), "trap");

    let other = importing_strategy("(import \"env\" \"now\" (func $now))", "");
    let refused = Module::from_wasm(&trapping, &other).unwrap_err().to_string();
    assert!(refused.contains("imports env, which a policy does not get"), "{refused}");

    let core = ComponentEncoder::default().module(&built_in("random")).unwrap().encode().unwrap();
    let component = wasmprinter::print_bytes(core).unwrap();
    let clocks = "(import \"wasi:clocks/wall-clock@0.2.0\" (instance
        (export \"now\" (func (result u64)))))";
    let (rest, _) = component.rsplit_once(')').unwrap();
    let component = wat::parse_str(format!("{rest} {clocks})")).unwrap();
    let refused = Module::from_wasm(&refusing, &component).unwrap_err().to_string();
    assert!(refused.contains("imports wasi:clocks/wall-clock@0.2.0"), "{refused}");
    start(&trapping, &component).unwrap();
}
