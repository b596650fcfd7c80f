//! NAME: a formula for Loadline. The load is what the busier one of processor and memory has to do.
//!
//! When to use it: say here for which targets it is good, and which metrics they must report.

use loadline_sdk::formula;

// A load is finite and >= 0; lower is better. A target that lacks one of the metrics has no load.
formula!(|cpu, memory| cpu.max(memory));

#[cfg(test)]
mod tests {
    use super::PolicyFormula;
    use loadline_sdk::testing::FormulaHost;

    #[test]
    fn the_busier_one_counts() {
        let mut host = FormulaHost::<PolicyFormula>::new("{}").expect("it takes no settings");
        let load = host.load(&[("cpu", 0.2), ("memory", 0.6)]);
        assert!((load - 0.6).abs() < 1e-12, "{load}");
    }
}
