//! Policies that misbehave under a steady load, one host a policy: every query is answered, the host says
//! which share of answers was not the policy's, and the policy costs no more CPU than its limits allow.
//!
//! Some hundred queries each in `cargo test`; twenty times as many, in all cases:
//!
//!   LOADLINE_STRAIN=20 cargo test --release -p loadline-tests misbehaving -- --nocapture --test-threads 1

use std::time::{Duration, Instant};

use loadline::report::{Report, State};
use serde_json::Value;

use super::strain;
use crate::support::host::HostProcess;
use crate::support::load::{Client, is_native};
use crate::support::{formula, relabelled, report, strategy};

/// Queries of a short run.
const QUERIES: u64 = 600;
const MACHINES: usize = 10;
/// CPU time that the start of a guest may take: what `configure` may, and a bit.
const START: Duration = Duration::from_millis(1_300);
const SPIN: &str = "(loop (br 0)) unreachable";

/// What becomes of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It never serves, for this reason.
    Refused(&'static str),
    /// It serves, fails like this, and is stood in for.
    Fails(&'static str),
    /// It serves, and what it answers cannot be used.
    Unusable,
    /// It serves to the end. (A request may find it busy on a machine that is.)
    Serves,
}

/// What happens to it besides the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Nothing,
    /// Another generation takes over at the end.
    Replaced,
    /// The machine in slot 0 drains.
    Drains,
}

struct Case {
    what: &'static str,
    wasm: Vec<u8>,
    fate: Fate,
    event: Event,
}

fn case(what: &'static str, wasm: Vec<u8>, fate: Fate) -> Case {
    Case { what, wasm, fate, event: Event::Nothing }
}

/// Picks slot 0 of whatever fleet it has.
const PICK: &str = "(func $pick (param i64 i32 f64 i64 i64) (result i32)
    (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
    (if (i32.eqz (global.get $fed)) (then (return (i32.const 128))))";
const SLOT_0: &str = "(i32.store8 (i32.const 200) (i32.const 1))
    (i32.store (i32.const 204) (i32.const 0)) (i32.const 200))";
const FED: &str = "(global $picks (mut i32) (i32.const 0)) (global $fed (mut i32) (i32.const 0))";
const UPDATE: &str = "(func $update (param i64 i32 i32 i32) (global.set $fed (i32.const 1)))";

/// A strategy that picks slot 0 after this code, with these other functions.
fn picking(code: &str, others: &str) -> Vec<u8> {
    let update = if others.contains("$update") { "" } else { UPDATE };
    strategy(&format!("{FED} {PICK} {code} {SLOT_0} {update} {others}"))
}

/// Does this in picks of the farm, which come after the trial's.
fn later(code: &str) -> String {
    format!("(if (i32.gt_u (global.get $picks) (i32.const 50)) (then {code}))")
}

/// Takes all the memory that there is.
const HOARD: &str =
    "(loop (br_if 0 (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0)))) unreachable";

/// One for each function of the contract that never ends.
fn looping_strategies() -> Vec<Case> {
    use Fate::{Fails, Refused, Serves};
    let always = |function: &str| picking("", &format!("(func {function} {SPIN})"));
    let with = |function: &str, code: &str| picking("", &format!("(func {function} {code})"));
    // The trial tells of more than one target at a time.
    let of_one = |parameter: u32| {
        format!("(if (i32.eq (local.get {parameter}) (i32.const 1)) (then {SPIN}))")
    };
    let update = format!("(global.set $fed (i32.const 1)) {}", of_one(3));
    let among = "$pick-among (param i64 i32 f64 i64 i64 i32 i32) (result i32)";
    let least = format!("{} i32.const 128", later(SPIN));
    let (describe, configure) =
        (always("$describe (result i32)"), always("$configure (param i32 i32 i64) (result i32)"));
    let update = with("$update (param i64 i32 i32 i32)", &update);
    let leave = with("$leave (param i32 i32)", &of_one(1));
    let save = with("$save (result i32)", &least);
    let restore = always("$restore (param i32 i32) (result i32)");
    vec![
        case("loops in describe", describe, Refused("describe took longer")),
        case("loops in configure", configure, Refused("configure took longer")),
        case("loops in update", update, Fails("update took longer")),
        case("loops in leave", leave, Fails("leave took longer")),
        case("loops in pick", picking(&later(SPIN), ""), Fails("pick took longer")),
        case("loops in pick-among", with(among, &least), Fails("pick-among took longer")),
        // No host calls these two yet.
        case("loops in admit", always("$admit (param i32) (result i32)"), Serves),
        case("loops in rebalance", always("$rebalance (param i64) (result i32)"), Serves),
        Case { event: Event::Replaced, ..case("loops in save", save, Fails("save took longer")) },
        case("loops in restore", restore, Refused("restore took longer")),
    ]
}

fn failing_strategies() -> Vec<Case> {
    use Fate::Fails;
    let every_hundredth =
        "(if (i32.eqz (i32.rem_u (global.get $picks) (i32.const 100))) (then unreachable))";
    let leak = "(if (i32.lt_s (memory.grow (i32.const 8)) (i32.const 0)) (then unreachable))";
    let nowhere = "(i32.store8 (i32.const 200) (i32.const 1))
        (i32.store (i32.const 204) (i32.const -1)) (return (i32.const 200))";
    // A pointer that no memory has.
    let torn = "(return (i32.const -4))";
    let from_then_on = |code: &str| picking(&later(code), "");
    let needed = "pick needed more than";
    vec![
        case("traps on 1 % of picks", picking(every_hundredth, ""), Fails("pick trapped")),
        case("leaks half a megabyte in a pick", from_then_on(leak), Fails(needed)),
        case("takes all memory in a pick", from_then_on(HOARD), Fails(needed)),
        case("picks a slot that nobody has", from_then_on(nowhere), Fails("holds no target")),
        Case {
            event: Event::Drains,
            ..case("picks a machine that drains", picking("", ""), Fails("may not be picked"))
        },
        case("answers out of its memory", from_then_on(torn), Fails("pick trapped")),
    ]
}

fn formulas() -> Vec<Case> {
    use Fate::{Fails, Refused, Serves, Unusable};
    let signature = "(param i64 i32 i32 i32 i32) (result i32)";
    let answer = "(i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (local.get 2)) i32.const 192";
    // The trial has four rows and none, the farm's reports come one by one.
    let evaluating = |code: &str| {
        formula(&format!(
            "(global $rows (mut i32) (i32.const 0))
             (func $evaluate {signature}
                (if (i32.eq (local.get 2) (i32.const 1)) (then
                    (global.set $rows (i32.add (global.get $rows) (i32.const 1))) {code}))
                {answer})"
        ))
    };
    let every_fiftieth =
        "(if (i32.eqz (i32.rem_u (global.get $rows) (i32.const 50))) (then unreachable))";
    let load = |code: &str| format!("(f64.store (local.get 3) {code})");
    let few = "(i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (i32.const 0)) (return (i32.const 192))";
    let looping = |function: &str| formula(&format!("(func {function} {SPIN})"));
    vec![
        case("traps on 2 % of its batches", evaluating(every_fiftieth), Fails("evaluate trapped")),
        case(
            "loops in describe",
            looping("$describe (result i32)"),
            Refused("describe took longer"),
        ),
        case("loops in metrics", looping("$metrics (result i32)"), Refused("metrics took longer")),
        case(
            "loops in configure",
            looping("$configure (param i32 i32) (result i32)"),
            Refused("configure took longer"),
        ),
        case("loops in evaluate", evaluating(SPIN), Fails("evaluate took longer")),
        case(
            "loops in leave",
            formula(&format!(
                "(func $leave (param i32 i32) (if (i32.eq (local.get 1) (i32.const 1)) (then {SPIN})))"
            )),
            Fails("leave took longer"),
        ),
        case("loops in save", looping("$save (result i32)"), Refused("save took longer")),
        case(
            "loops in restore",
            looping("$restore (param i32 i32) (result i32)"),
            Refused("restore took longer"),
        ),
        case("takes all memory", evaluating(HOARD), Fails("evaluate needed more than")),
        case("answers for nobody", evaluating(few), Fails("0 loads for 1 targets")),
        case("answers NaN", evaluating(&load("(f64.const nan)")), Unusable),
        case("answers less than nothing", evaluating(&load("(f64.const -1)")), Unusable),
        case("answers infinity", evaluating(&load("(f64.const inf)")), Unusable),
        case(
            "answers the largest number",
            evaluating(&load("(f64.const 0x1.fffffffffffffp+1023)")),
            Serves,
        ),
    ]
}

/// What was seen of one run.
struct Seen {
    cpu: Duration,
    took: Duration,
    /// Answers that said they were not the strategy's.
    native: u64,
    /// Of the pool's policy.
    status: Value,
    /// The host's words when a guest failed.
    faults: Vec<String>,
}

/// The load: queries one after the other, with each fifth a report, and a machine that comes and goes.
async fn run(kind: &str, case: &Case) -> Seen {
    let begin = Instant::now();
    let pool = format!("[[pool]]\nname = \"default\"\n{kind} = \"mine\"\n");
    let host = HostProcess::with(&pool, &[("mine.wasm", &case.wasm)]);
    let names: Vec<_> = (0..MACHINES).map(|number| format!("m-{number}")).collect();
    for name in &names {
        host.report(1, &[(&**name, 0.5)]).await; // in this order of slots
    }
    let (mut client, mut native, queries) = (Client::of(&host), 0, QUERIES * strain());
    for query in 0..queries {
        let seq = query + 2;
        if query % 5 == 0 {
            let number = usize::try_from(query / 5).unwrap() % MACHINES;
            let drains = case.event == Event::Drains && number == 0 && query > queries / 2;
            let state = if drains { State::Draining } else { State::Ready };
            host.send(&Report {
                seq,
                state,
                ..report(&names[number], &[("cpu", 0.5), ("memory", 0.5)])
            });
        }
        if query % 50 == 0 {
            let state = if query % 100 == 0 { State::Ready } else { State::Leaving };
            host.send(&Report { seq, state, ..report("guest", &[("cpu", 0.9), ("memory", 0.5)]) });
            // A machine that comes and goes at one look was never there.
            let is_heard = |host: &HostProcess| {
                let machines = host.get("/v1/machines");
                let mut machines = machines.as_array().unwrap().iter();
                machines.any(|one| one["name"] == "guest" && one["seq"] == seq)
            };
            host.until("the guest", is_heard).await;
        }
        let ranks = if query % 10 == 9 { "?n=2" } else { "" };
        match client.target(ranks) {
            Ok(answer) => native += u64::from(is_native(answer)),
            Err(answer) => panic!("{}: query {query} was not answered: {answer}", case.what),
        }
    }
    if case.event == Event::Replaced {
        host.drop_in("mine.wasm", &relabelled(&case.wasm, 1));
        let swaps = |host: &HostProcess| host.get("/v1/policies/mine")["pools"][0]["swaps"] == 2;
        host.until("the next generation", swaps).await;
    }
    let status = host.get("/v1/policies/mine")["pools"][0].clone();
    let (cpu, took) = (host.cpu_clock().now(), begin.elapsed());
    let faults = host.lines().into_iter().filter(|line| line.contains("policy failed")).collect();
    Seen { cpu, took, native, status, faults }
}

/// What the policy may cost beside a good one: as much again, and its starts. Those come with waits that
/// double from a second on.
fn cpu_max(good: Duration, took: Duration) -> Duration {
    let starts = 2.0 + (took.as_secs_f64() + 1.0).log2();
    good * 2 + START.mul_f64(starts)
}

fn check(kind: &str, case: &Case, seen: &Seen, good: Duration) {
    let Seen { cpu, took, native, status, faults } = seen;
    let lately = &status["last_minute"];
    let share = lately["native_share"].as_f64();
    eprintln!(
        "{kind:>8} {:<28} native {:>5.1} % of {:>5}, {} faults, {cpu:>5.1?} of CPU in {took:.1?}",
        case.what,
        share.unwrap_or(1.0) * 100.0,
        lately["answers"],
        status["faults"]
    );
    let is_told = |words| faults.iter().any(|line: &String| line.contains(words));
    let trouble = status["trouble"].as_str().unwrap_or_default();
    let stood_in = lately["native"].as_u64().unwrap();
    let is_as_expected = match case.fate {
        Fate::Refused(words) => {
            trouble.contains(words) && stood_in == lately["answers"] && status["faults"] == 0
        }
        Fate::Fails(words) => is_told(words) && (stood_in > 0 || case.event == Event::Replaced),
        Fate::Unusable => stood_in > 0 && status["faults"] == 0,
        Fate::Serves => {
            share.is_some_and(|share| share <= 0.01)
                && faults.is_empty()
                && status["state"] == "active"
        }
    };
    assert!(is_as_expected, "{}: {:?}: {status:#} {faults:#?}", case.what, case.fate);
    if kind == "strategy" && *took < Duration::from_mins(1) {
        let shown = (lately["answers"].as_u64(), stood_in);
        assert_eq!(shown, (Some(QUERIES * strain()), *native), "{}: as clients saw it", case.what);
    }
    let most = cpu_max(good, *took);
    assert!(*cpu <= most, "{}: {cpu:?} of CPU, and {most:?} are enough", case.what);
}

async fn check_all(kind: &str, good: Case, cases: Vec<Case>) {
    let seen = run(kind, &good).await;
    check(kind, &good, &seen, seen.cpu);
    for case in cases {
        check(kind, &case, &run(kind, &case).await, seen.cpu);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn misbehaving_strategies_are_stood_in_for_and_bounded() {
    let good = case("behaves well", picking("", ""), Fate::Serves);
    let cases = looping_strategies().into_iter().chain(failing_strategies()).collect();
    check_all("strategy", good, cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn misbehaving_formulas_are_stood_in_for_and_bounded() {
    let good = case("behaves well", formula(""), Fate::Serves);
    check_all("formula", good, formulas()).await;
}
