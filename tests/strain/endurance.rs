//! Guests that are called for long: no deadline strikes who does not deserve it, and no memory is lost.
//!
//! A minute of ticks and half a million calls in `cargo test`; ten minutes of ticks and ten million calls:
//!
//!   LOADLINE_STRAIN=20 cargo test --release -p loadline-tests endurance -- --nocapture

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadline::policy::guest::{Request, TargetView};
use loadline::policy::{FormulaGuest, Limits, Module, PolicyEngine, StrategyGuest};

use super::strain;
use crate::support::{built_in, strategy};

const REQUEST: Request = Request { key: 0, class: 0, cost: 1.0, now_ms: 0, random: 0 };
/// In a short run; the ticks of ten minutes in a long one.
const TICKS: u64 = 6_000;
/// Calls with a list in a short run, of each of four.
const LIST_CALLS: u64 = 125_000;
/// Short calls in a short run.
const CALLS: u64 = 500_000;

fn strategy_guest(engine: &PolicyEngine, wasm: &[u8]) -> StrategyGuest {
    let module = Module::from_wasm(engine, wasm).unwrap();
    StrategyGuest::start(engine, &Arc::from("mine"), &module, "{}", 1).unwrap()
}

fn targets(count: u32) -> Vec<TargetView> {
    (0..count).map(|slot| TargetView::new(slot, f64::from(slot) / 4.0)).collect()
}

/// Ticks pass an idle guest by, and calls with ticks at any moment.
#[test]
fn deadlines_spare_guests_that_were_idle_and_calls_that_are_short() {
    let ticks: Arc<AtomicU64> = Arc::default();
    let ticked = Arc::clone(&ticks);
    let beat = move || {
        ticked.fetch_add(1, Ordering::Relaxed);
        std::thread::park_timeout(Duration::from_micros(1)); // some 50 in truth
    };
    let limits = Limits { compile_last: false, ..Limits::default() };
    let engine = PolicyEngine::with_beat(limits, beat).unwrap();
    let mut guest = strategy_guest(&engine, &built_in("least-loaded"));
    guest.update(0, 1, &targets(2)).unwrap();
    let idle = TICKS * strain();
    while ticks.load(Ordering::Relaxed) < idle {
        std::thread::yield_now();
    }
    let (begin, before) = (Instant::now(), ticks.load(Ordering::Relaxed));
    let calls = CALLS * strain();
    for call in 0..calls {
        guest.pick(REQUEST).unwrap_or_else(|fault| panic!("call {call}: {fault}"));
    }
    let during = ticks.load(Ordering::Relaxed) - before;
    eprintln!(
        "{idle} ticks idle, then {calls} calls in {:.1?} and {during} ticks",
        begin.elapsed()
    );
}

/// Each line takes as long as a tick: it asks for one and waits until it was.
struct Ticking(Arc<Mutex<(Sender<()>, Receiver<()>)>>);

impl std::io::Write for Ticking {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let beat = self.0.lock().unwrap();
        beat.0.send(()).unwrap();
        beat.1.recv().unwrap();
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The least budget is one tick, and a tick comes in each call.
#[test]
fn call_right_before_a_tick_keeps_its_budget() {
    let ((tick, ticks), (done, is_done)) = (mpsc::channel(), mpsc::channel());
    // A beat begins when the tick before it is over; the watchdog must not think that it is held.
    let mut asked = false;
    let beat = move || {
        if asked {
            done.send(()).ok();
        }
        asked = ticks.recv_timeout(Duration::from_millis(5)).is_ok();
    };
    let pick = Duration::from_millis(1);
    let limits = Limits { pick, compile_last: false, ..Limits::default() };
    let engine = PolicyEngine::with_beat(limits, beat).unwrap();
    let logs = "(func $pick (param i64 i32 f64 i64 i64) (result i32)
        (call $log (i32.const 1) (i32.const 224) (i32.const 3)) i32.const 128)";
    let beat = Arc::new(Mutex::new((tick, is_done)));
    let subscriber = tracing_subscriber::fmt().with_writer(move || Ticking(Arc::clone(&beat)));
    tracing::subscriber::with_default(subscriber.finish(), || {
        // Twenty lines are what a guest may log in a while.
        for _ in 0..10 {
            let mut guest = strategy_guest(&engine, &strategy(logs));
            for _ in 0..20 {
                assert_eq!(guest.pick(REQUEST), Ok(None));
            }
        }
    });
}

/// What comes in as lists is given back, by guests of the SDK and by formulas of text.
#[test]
fn lists_without_number_leave_a_guests_memory_as_it_is() {
    // A page or two more than they start with.
    let limits = Limits { memory_bytes: 1_400 << 10, compile_last: false, ..Limits::default() };
    let engine = PolicyEngine::new(limits).unwrap();
    let mut guest = strategy_guest(&engine, &built_in("p2c"));
    let formula =
        |module: &Module| FormulaGuest::start(&engine, &Arc::from("theirs"), module, "{}").unwrap();
    let mut built_in = formula(&Module::from_wasm(&engine, &built_in("weighted")).unwrap());
    let mut text = formula(&Module::from_text(&engine, "cpu * 2 + memory").unwrap());
    let (views, slots, values) = (targets(32), (0..32).collect::<Vec<_>>(), vec![0.5; 64]);
    let growths = || engine.tolls().growths.all().iter().map(|(_, growths)| growths).sum::<u64>();
    let (mut before, calls) = (0, LIST_CALLS * strain());
    for call in 0..calls {
        guest.update(call, 1, &views).unwrap();
        guest.pick_among(REQUEST, &slots).unwrap();
        assert_eq!(built_in.evaluate(call, &slots, &values).unwrap().len(), 32);
        assert_eq!(text.evaluate(call, &slots, &values).unwrap().len(), 32);
        if call == 1_000 {
            before = growths();
        }
    }
    let after = growths();
    eprintln!(
        "{} calls with lists: {before} growths in the first 4,000, then {}",
        4 * calls,
        after - before
    );
    assert_eq!(after, before, "memory grows with calls");
}
