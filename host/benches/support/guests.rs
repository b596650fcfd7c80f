//! A pick and a formula's batch through their guests, against the same code natively.

use std::hint::black_box;
use std::sync::Arc;

use loadline::policy::guest::{Request, TargetView};
use loadline::policy::{FormulaGuest, Limits, Module, PolicyEngine, StrategyGuest, built_in};
use loadline_sdk::{FormulaRunner, Slot, Strategy};
use policy_weighted::Weighted;

use crate::native::{self, Native};
use crate::turns::{Goal, compare};

/// Goal of a batch, in nanoseconds a row above the native twin.
const FORMULA_ABOVE_NS: f64 = 60.0;

fn engine() -> PolicyEngine {
    PolicyEngine::new(Limits::default()).expect("an engine")
}

fn module(engine: &PolicyEngine, name: &str) -> Module {
    Module::from_wasm(engine, built_in(name).expect("a built-in")).expect("a good module")
}

/// One pick of a strategy through its guest and natively, at a tenth less than what the targets can
/// do, as far as the strategy learns that from their reports; of every `hosts` requests one comes to
/// this host.
pub(crate) fn bench_pick<S: Strategy>(
    name: &str,
    targets: u32,
    hosts: u32,
    goals: &[Goal],
) -> bool {
    let engine = engine();
    let module = module(&engine, name);
    let mut guest = StrategyGuest::start(&engine, &Arc::from(name), &module, "{}", 1)
        .expect("a strategy that starts");
    let Native(mut native) = Native::<S>::start("{}", 1).expect("no settings");
    let mut requests = Requests::new(targets, hosts);
    let mut accepted = vec![0_u64; targets as usize];
    for second in 0..5_u32 {
        let view = |slot: u32| {
            let accepted = accepted[slot as usize];
            let in_flight = accepted.min(u64::from(slot % 3));
            TargetView {
                in_flight: slot % 3,
                accepted,
                completed: accepted - in_flight,
                ..TargetView::new(slot, f64::from(slot % 97) / 97.0)
            }
        };
        let (now_ms, views) = (u64::from(second) * 1_000, (0..targets).map(view));
        let views: Vec<_> = views.collect();
        for views in views.chunks(1_024) {
            guest.update(now_ms, hosts, views).expect("an update");
            native.update(now_ms, hosts, views.iter().map(native::target));
        }
        while requests.now_ms < f64::from(second + 1) * 1e3 {
            let request = requests.next();
            let picked = guest.pick(request).expect("a pick");
            let twin = native.pick(&native::request(request)).map(|slot| slot.0);
            assert_eq!(picked, twin, "guest and twin choose alike");
            accepted[picked.expect("a target") as usize] += u64::from(hosts);
        }
    }
    let mut twins = requests.clone();
    compare(
        &format!("{name}, {targets} targets, {}", of_hosts(hosts)),
        1.0,
        goals,
        || {
            black_box(guest.pick(requests.next()).expect("a pick"));
        },
        || {
            black_box(native.pick(&native::request(twins.next())));
        },
    )
}

fn of_hosts(hosts: u32) -> String {
    if hosts == 1 { "this host alone".to_owned() } else { format!("1 host of {hosts}") }
}

/// Requests that a target completes in a second.
const PER_SECOND: u32 = 5;

/// Requests to one of `hosts`, at nine tenths of what so many targets complete.
#[derive(Clone)]
struct Requests {
    random: fastrand::Rng,
    now_ms: f64,
    gap_ms: f64,
}

impl Requests {
    fn new(targets: u32, hosts: u32) -> Self {
        let all = 0.9 * f64::from(targets) * f64::from(PER_SECOND);
        let gap_ms = 1e3 * f64::from(hosts) / all;
        Self { random: fastrand::Rng::with_seed(7), now_ms: 0.0, gap_ms }
    }

    fn next(&mut self) -> Request {
        self.now_ms += self.gap_ms;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some hours")]
        let now_ms = self.now_ms as u64;
        Request { key: 0, class: 0, cost: 1.0, now_ms, random: self.random.u64(..) }
    }
}

/// `weighted` as Rust, or the same as text.
pub(crate) fn bench_formula(form: &str, rows: u32) -> bool {
    let engine = engine();
    let module = match form {
        "text" => Module::from_text(&engine, "0.5 * max(cpu, 0) + 0.5 * max(memory, 0)")
            .expect("a good text"),
        name => module(&engine, name),
    };
    let mut guest = FormulaGuest::start(&engine, &Arc::from(form), &module, "{}")
        .expect("a formula that starts");
    let mut native = FormulaRunner::<Weighted>::default();
    native.configure("{}").expect("good settings");
    let slots: Vec<_> = (0..rows).collect();
    let values: Vec<_> = (0..rows * 2).map(|value| f64::from(value % 89) / 89.0).collect();
    let loads = guest.evaluate(0, &slots, &values).expect("loads");
    let twins = native.evaluate(0, slots.iter().copied().map(Slot), &values);
    assert_eq!(loads, twins, "guest and twin compute alike");
    // A single row pays for the whole call: the goal is for batches.
    let goal = Goal::Above(if rows < 64 { f64::INFINITY } else { FORMULA_ABOVE_NS });
    compare(
        &format!("{form}, {rows} a batch"),
        f64::from(rows),
        &[goal],
        || {
            black_box(guest.evaluate(0, &slots, black_box(&values)).expect("loads"));
        },
        || {
            let slots = slots.iter().copied().map(Slot);
            black_box(native.evaluate(0, slots, black_box(&values)));
        },
    )
}
