//! Formula texts compiled and run in the engine.

use std::sync::Arc;

use crate::policy::{FormulaGuest, Limits, Module, PolicyEngine, StartError};

fn start(text: &str, settings: &str) -> Result<FormulaGuest, StartError> {
    let engine = PolicyEngine::new(Limits::default()).expect("an engine");
    let module = Module::from_text(&engine, text).expect("a good text");
    FormulaGuest::start(&engine, &Arc::from("test"), &module, settings)
}

/// Loads of rows, through the engine.
#[track_caller]
fn loads(text: &str, rows: &[&[f64]]) -> Vec<f64> {
    let mut guest = start(text, "{}").expect("a formula that starts");
    assert!(rows.iter().all(|row| row.len() == guest.metrics().len()), "{:?}", guest.metrics());
    let slots: Vec<_> = (0..).take(rows.len()).collect();
    guest.evaluate(7, &slots, &rows.concat()).expect("loads")
}

/// `text` has no metrics.
#[track_caller]
fn check(text: &str, expected: f64) {
    let load = loads(text, &[&[]])[0];
    let same = load.to_bits() == expected.to_bits() || (load - expected).abs() <= 1e-12;
    assert!(same || (load.is_nan() && expected.is_nan()), "{text} = {load}, not {expected}");
}

#[test]
fn operators_bind_as_written_down() {
    check("1 + 2 * 3 - 4 / 2", 5.0);
    check("(1 + 2) * 3", 9.0);
    check("10 - 3 - 2", 5.0);
    check("7 % 4 + -7 % 4", 0.0);
    check("- - 2", 2.0);
    check("!0 + !5", 1.0);
    check("1 < 2 && 2 <= 2 && 3 > 2 && 3 >= 3 && 1 == 1 && 1 != 2", 1.0);
    check("0 || 0 && 1", 0.0);
    check("1 ? 2 : 0 ? 3 : 4", 2.0);
    check("0 ? 2 : 0 ? 3 : 4", 4.0);
    check("1 + 1 ? 5 : 6", 5.0);
    check("1 / 0", f64::INFINITY);
    check("0 / 0", f64::NAN);
    check("1e3 + .5 + 1.5E-1", 1_000.65);
    check("\u{feff}1 // a comment\n + 1 // another", 2.0);
    check("let a = 2; let b = a * 3; // six\n a + b", 8.0);
}

#[test]
fn functions_are_those_of_mathematics() {
    check("min(3, 1, 2) + max(3, 1, 2)", 4.0);
    check("abs(-2) + sqrt(9)", 5.0);
    check("floor(-1.5) + ceil(1.2) + round(2.4)", 2.0);
    check("clamp(5, 0, 1) + clamp(-5, 0, 1) + clamp(0.25, 0, 1)", 1.25);
    check("pow(3, 2)", 9.0);
    check("pow(-2, 3)", -8.0);
    check("pow(2, -2)", 0.25);
    check("pow(0, 0)", 1.0);
    check("pow(0, -1)", f64::INFINITY);
    check("pow(-8, 1 / 3)", f64::NAN);
    check("ln(0)", f64::NEG_INFINITY);
    check("ln(-1)", f64::NAN);
    check("exp(1000)", f64::INFINITY);
    check("exp(-1000)", 0.0);
    check("exp(0 / 0)", f64::NAN);
    check("ln(1 / 0)", f64::INFINITY);
}

#[track_caller]
fn check_against(
    text: &str,
    arguments: &[[f64; 2]],
    tolerance: f64,
    expected: fn(f64, f64) -> f64,
) {
    let rows: Vec<&[f64]> = arguments.iter().map(|row| &row[..]).collect();
    for (row, load) in arguments.iter().zip(loads(text, &rows)) {
        let expected = expected(row[0], row[1]);
        let error = ((load - expected) / expected).abs();
        let same = load.to_bits() == expected.to_bits();
        assert!(same || error <= tolerance, "{text} of {row:?}: {load}, not {expected}: {error:e}");
    }
}

#[test]
fn exp_ln_and_pow_are_as_exact_as_stated() {
    let spread = |low: f64, high: f64| -> Vec<[f64; 2]> {
        let step = |i: u32| low + (high - low) * f64::from(i) / 4_999.0;
        (0..5_000).map(|i| [step(i), 0.7 + f64::from(i % 7)]).collect()
    };
    check_against("exp(x) + 0 * y", &spread(-700.0, 709.0), 1e-15, |x, _| x.exp());
    check_against("exp(x) + 0 * y", &spread(-0.4, 0.4), 1e-15, |x, _| x.exp());
    check_against("ln(x) + 0 * y", &spread(1e-3, 20.0), 1e-15, |x, _| x.ln());
    let extremes = [f64::MIN_POSITIVE, 5e-324, 1e-310, f64::MAX, 1.0, 0.999_999, 1.000_001];
    let extremes = extremes.map(|x| [x, 1.0]);
    check_against("ln(x) + 0 * y", &extremes, 2e-15, |x, _| x.ln());
    check_against("pow(x, y)", &spread(1e-3, 50.0), 1e-13, f64::powf);
}

#[test]
fn expression_of_the_old_plans_is_a_formula() {
    let text = "cpu * 0.2 + ((sessions < 10) * 0.2 + (sessions >= 10) * 0.5) * sessions";
    let loads = loads(text, &[&[0.5, 9.0], &[0.5, 10.0]]);
    assert!((loads[0] - 1.9).abs() < 1e-12 && (loads[1] - 5.1).abs() < 1e-12, "{loads:?}");
}

#[test]
fn optional_metrics_are_asked_for_with_not_a_number() {
    let text = "has(gpu) * 100 + (gpu ?? 7) + cpu";
    let guest = start(text, "{}").expect("a formula that starts");
    let metrics: Vec<_> = guest.metrics().iter().map(|m| (&*m.name, m.fallback)).collect();
    assert!(matches!(metrics[..], [("gpu", Some(nan)), ("cpu", None)] if nan.is_nan()));
    assert_eq!(loads(text, &[&[2.0, 1.0], &[f64::NAN, 1.0]]), [103.0, 8.0]);
}

#[test]
fn longest_chains_and_deepest_nests_are_compiled() {
    let chain = vec!["1"; 1_900].join("+");
    check(&chain, 1_900.0);
    let nest = format!("{}1{}", "(1+".repeat(40), ")".repeat(40));
    check(&nest, 41.0);
    let choices = format!("{}2{}", "0 ? 1 : (".repeat(40), ")".repeat(40));
    check(&choices, 2.0);
}

#[test]
fn a_text_takes_no_settings() {
    let error = start("1", r#"{"a":1}"#).map(|_| ()).expect_err("settings");
    assert!(error.to_string().contains("a: unknown setting: there are none here"), "{error}");
}

#[test]
fn many_batches_of_any_size_leave_no_memory_behind() {
    let mut guest = start("a + b", "{}").expect("a formula that starts");
    for batch in 0..200_u32 {
        let rows = batch * 7 % 1_024;
        let slots: Vec<_> = (0..rows).collect();
        let values: Vec<_> = slots.iter().flat_map(|slot| [f64::from(*slot), 1.0]).collect();
        let loads = guest.evaluate(0, &slots, &values).expect("loads");
        assert_eq!(loads.len(), slots.len());
        assert_eq!(loads.last().copied(), slots.last().map(|slot| f64::from(*slot) + 1.0));
        guest.leave(&slots).expect("left");
        assert_eq!(guest.save(), Ok(Vec::new()));
        assert_eq!(guest.restore(&[1]), Ok(false));
        assert_eq!(guest.restore(&[]), Ok(true));
    }
}
