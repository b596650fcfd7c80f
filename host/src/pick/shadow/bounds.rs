//! When a candidate is promoted by itself: stated bounds over what its shadow run has shown.

use super::figures::Figures;
use crate::config::PromoteConfig;

/// What becomes of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not enough was seen, or nobody wants a verdict.
    Open,
    /// All bounds hold, with the figures.
    Promote(String),
    /// A bound is broken.
    Stop(String),
}

/// Judges: faults at any time, everything else when enough picks were compared.
pub(super) fn judge(bounds: &PromoteConfig, figures: &Figures) -> Verdict {
    let faults = figures.fault_count();
    if faults > bounds.faults {
        let allowed = bounds.faults;
        return Verdict::Stop(format!("{faults} faults, {allowed} are allowed"));
    }
    if figures.picks < bounds.picks {
        return Verdict::Open;
    }
    let (picks, agreement, p99) = (figures.picks, figures.agreement(), figures.time(0.99));
    if agreement < bounds.agreement {
        let least = bounds.agreement;
        let what = format!("agreement {agreement:.4} over {picks} picks, {least} is the least");
        return Verdict::Stop(what);
    }
    if p99 > bounds.p99 {
        let most = bounds.p99;
        return Verdict::Stop(format!("p99 {p99:?} over {picks} picks, {most:?} is allowed"));
    }
    Verdict::Promote(format!(
        "{picks} picks, agreement {agreement:.4}, {faults} faults, p99 {p99:?}"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn check(picks: u64, agreed: u64, faults: u64, time_us: f64, expected: &str) {
        let bounds =
            PromoteConfig { picks: 100, faults: 1, agreement: 0.9, p99: Duration::from_micros(50) };
        let mut figures = Figures { picks, agreed, ..Figures::default() };
        figures.faults.extend((faults > 0).then_some(("trap", faults)));
        figures.time_us.add(time_us);
        let found = match judge(&bounds, &figures) {
            Verdict::Open => "open".to_owned(),
            Verdict::Promote(_) => "promote".to_owned(),
            Verdict::Stop(why) => why,
        };
        assert!(found.starts_with(expected), "{found}");
    }

    #[test]
    fn promoted_when_all_bounds_hold_and_stopped_when_one_is_broken() {
        check(99, 0, 1, 900.0, "open");
        check(100, 90, 1, 49.0, "promote");
        check(100, 89, 0, 49.0, "agreement 0.8900 over 100 picks, 0.9 is the least");
        check(100, 100, 0, 60.0, "p99 60");
        check(1, 1, 2, 1.0, "2 faults, 1 are allowed");
    }
}
