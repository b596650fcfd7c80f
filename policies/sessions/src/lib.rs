//! `sessions`: CPU plus a price for each open session that more than doubles from the tenth on.
//!
//! Use it for session-bound web servers that suffer from many sessions before their CPU shows it.
//! Wants the metrics `cpu` (0 to 1) and `sessions` (a count). The same as text:
//! `cpu * 0.2 + ((sessions < 10) * 0.2 + (sessions >= 10) * 0.5) * sessions`.

use loadline_sdk::formula;

formula!(|cpu, sessions| cpu * 0.2 + if sessions < 10.0 { 0.2 } else { 0.5 } * sessions);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::FormulaHost;

    use super::PolicyFormula;

    #[track_caller]
    fn check(cpu: f64, sessions: f64, expected: f64) {
        let mut host = FormulaHost::<PolicyFormula>::new("{}").expect("no settings");
        let load = host.load(&[("cpu", cpu), ("sessions", sessions)]);
        assert!((load - expected).abs() < 1e-12, "{load} instead of {expected}");
    }

    #[test]
    fn sessions_cost_more_from_the_tenth_on() {
        check(0.5, 0.0, 0.1);
        check(0.5, 9.0, 0.1 + 1.8);
        check(0.5, 10.0, 0.1 + 5.0);
    }

    #[test]
    fn missing_metric_means_no_load() {
        let mut host = FormulaHost::<PolicyFormula>::new("{}").expect("no settings");
        assert!(host.load(&[("cpu", 0.5)]).is_infinite(), "the last choice");
    }
}
