//! Code that is deep, or long, or much: it is compiled, or refused with a reason, and neither overflows a stack nor
//! hangs; a host serves on meanwhile.

use loadline::policy::{Limits, Module, PolicyEngine};

use super::{check_refused, engine, wat};
use crate::support::{Farm, Queries, built_in, pool, strategy};

/// Many, of whatever it is.
const MANY: usize = 100_000;

/// Blocks within blocks, opened like this.
fn nested(open: &str, depth: usize) -> String {
    let (open, close) = (format!("{open} ").repeat(depth), "end ".repeat(depth));
    format!("(func $leave (param i32 i32) {open}{close})")
}

/// The same code so many times.
fn in_a_row(code: &str, times: usize) -> String {
    format!("(func $leave (param i32 i32) {})", code.repeat(times))
}

const TOO_DEEP: &str = "a function nests more than 1000 blocks: split it";
const TOO_MANY: &str = "a function has more than 50000 blocks and branches: split it";

#[test]
fn a_hundred_thousand_nested_blocks_are_refused() {
    let engine = engine();
    for open in ["block", "loop", "local.get 0 if", "block loop local.get 0 if"] {
        let blocks = open.split(' ').filter(|word| ["block", "loop", "if"].contains(word)).count();
        let body = |depth| {
            let function = nested(open, depth / blocks);
            let ends = "end ".repeat(depth / blocks * (blocks - 1));
            function.replacen("end ", &format!("end {ends}"), 1)
        };
        let good = Module::from_wasm(&engine, &strategy(&body(999)));
        assert!(good.is_ok(), "{open}: {:?}", good.err());
        check_refused(&strategy(&body(MANY - MANY % blocks)), TOO_DEEP);
    }
    let component = format!("(component (core module {}))", nested("block", MANY));
    check_refused(&wat(&component), TOO_DEEP);
}

/// The compiler's time grows with their square.
#[test]
fn a_hundred_thousand_blocks_in_a_row_are_refused_and_some_thousand_compiled() {
    let engine = engine();
    for code in [
        "block end ",
        "block local.get 0 br_if 0 end ",
        "loop local.get 0 br_if 0 end ",
        "local.get 0 if local.get 1 local.set 0 else local.get 0 local.set 1 end ",
        "local.get 0 br_if 0 ",
    ] {
        check_refused(&strategy(&in_a_row(code, MANY)), TOO_MANY);
        let said = Module::from_wasm(&engine, &strategy(&in_a_row(code, 2_000))).map(drop);
        assert!(said.is_ok(), "{code}: {said:?}");
    }
    let component = format!("(component (core module {}))", in_a_row("block end ", MANY));
    check_refused(&wat(&component), TOO_MANY);
    // One that may go to as many places.
    let places = "0 ".repeat(MANY / 2);
    let jump = format!("(func $leave (param i32 i32) (block (br_table {places}(local.get 0))))");
    let said = Module::from_wasm(&engine, &strategy(&jump)).map(drop);
    assert!(said.is_ok(), "{said:?}");
}

/// A few kilobytes for which the compiler would take gigabytes.
#[test]
fn code_that_costs_the_compiler_too_much_memory_is_refused() {
    let engine = engine();
    let locals = |count: usize| format!("(local {})", "i32 ".repeat(count));
    let set = |count: usize| -> String {
        let one = |local| format!("local.get 0 local.get {local} i32.add local.set {local} ");
        (2..count).map(one).collect()
    };
    let used = |count: usize| -> String {
        (2..count).map(|local| format!("local.get {local} i32.add ")).collect()
    };
    let loops = |count: usize, depth: usize| {
        let (open, close) = ("loop ".repeat(depth), "local.get 0 br_if 0 end ".repeat(depth));
        format!("{} {open} {} {close}", locals(count), set(count))
    };
    let ways = |count: usize, ways: usize| {
        let ways = "local.get 0 br_if 0 ".repeat(ways);
        format!(
            "{} block {} {ways} end i32.const 0 {} drop",
            locals(count),
            set(count),
            used(count)
        )
    };
    let alive = |count: usize, blocks: usize| {
        let blocks = "block local.get 0 br_if 0 end ".repeat(blocks);
        format!("{} {} {blocks} i32.const 0 {} drop", locals(count), set(count), used(count))
    };
    let function = |code: String| strategy(&format!("(func $other (param i32 i32) {code})"));
    let sets = "a function sets too many locals in too many blocks: split it, or build it with";
    let lives = "a function has too many locals and blocks: split it, or build it with";
    for (code, words) in [
        (loops(1_000, 900), sets),
        (loops(49_000, 900), sets),
        (ways(10_000, 10_000), sets),
        (alive(40_000, 10_000), lives),
    ] {
        check_refused(&function(code), words);
    }
    // Many of what is little alone.
    check_refused(
        &strategy(&format!("(func (param i32 i32) {})", loops(500, 100)).repeat(101)),
        sets,
    );
    for code in [loops(200, 20), ways(500, 100), alive(500, 1_000)] {
        let said = Module::from_wasm(&engine, &function(code)).map(drop);
        assert!(said.is_ok(), "{said:?}");
    }
}

#[test]
fn long_code_and_much_of_it_is_compiled_and_a_long_file_refused() {
    let engine = engine();
    // One expression of a hundred thousand operators, and as many functions as a large policy has.
    let chain = "(local.get 1) i32.add ".repeat(MANY);
    let long = strategy(&format!("(func $leave (param i32 i32) local.get 0 {chain} drop)"));
    assert!(Module::from_wasm(&engine, &long).is_ok());
    let many = strategy(&"(func (param i32) (result i32) local.get 0)".repeat(5_000));
    assert!(Module::from_wasm(&engine, &many).is_ok());
    let limits = Limits { file_bytes: 1_000, ..Limits::default() };
    let small = PolicyEngine::new(limits).unwrap();
    let error = Module::from_wasm(&small, &built_in("p2c")).expect_err("too long").to_string();
    assert!(error.contains("more than 1000 bytes: raise host.limits.file"), "{error}");
}

/// Components within each other are read without a recursion of ours.
#[test]
fn components_within_components_are_refused() {
    for depth in [100, 10_000] {
        // A component's header, and the header of a section with another one in it, from within.
        let header = b"\0asm\x0d\0\x01\0";
        let nested = (0..depth).fold(header.to_vec(), |inner, _| {
            let mut section = Vec::new();
            wasm_encoder::Encode::encode(&inner[..], &mut section);
            [&header[..], &[4], &section].concat()
        });
        check_refused(&nested, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_serves_on_while_deep_and_long_files_come() {
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", &built_in("p2c"))]).await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    farm.drop_in("mine.wasm", &strategy(&nested("block", MANY)));
    let refused = |farm: &Farm| {
        let policy = farm.get("/v1/policies/mine");
        policy["refused"]["reason"].as_str().map(str::to_owned)
    };
    let reason = farm.until("the refusal", refused).await;
    assert!(reason.contains(TOO_DEEP), "{reason}");
    farm.drop_in("mine.wasm", &strategy(&in_a_row("block end ", MANY)));
    let refused_again = |farm: &Farm| refused(farm).filter(|other| *other != reason);
    let other = farm.until("the other refusal", refused_again).await;
    assert!(other.contains(TOO_MANY), "{other}");
    let long = strategy(&in_a_row("block local.get 0 br_if 0 end ", 4_000));
    let generation = loadline::policy::Generation::of(&long).to_string();
    farm.drop_in("mine.wasm", &long);
    let serves = |farm: &Farm| (farm.policy("strategy")["generation"] == *generation).then_some(());
    farm.until("the long one", serves).await;
    let answered = queries.stop();
    assert!(answered.bad.is_empty() && answered.good > 10, "{answered:?}");
    farm.stop().await;
}
