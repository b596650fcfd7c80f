//! Which of a machine's last 128 reports were lost: sequence gaps in, counts and a bit history out.
//!
//! The newest report is the lowest bit; 1 means lost. A report that comes late fills its gap. The
//! longest brief run of lost reports is remembered beyond the history: what happened once in that
//! time may happen again.

/// Reports for which a run is remembered: half an hour at one each two seconds.
const RUN_MEMORY: u64 = 1_024;

/// Reports received and lost since the machine was first seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Reports received, late ones included.
    pub received: u64,
    /// Reports that never came.
    pub lost: u64,
    /// The last 128, newest lowest; 1: lost.
    pub history: u128,
    /// Longest brief run of lost reports, and how many reports ago it ended.
    run: u32,
    run_age: u64,
}

/// Reports of the history by what became of them, long runs left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    /// All of them.
    pub(super) reports: u32,
    /// The lost ones.
    pub(super) lost: u32,
    /// Those that were lost after a lost one.
    pub(super) lost_again: u32,
}

impl Default for Loss {
    /// After the first report.
    fn default() -> Self {
        Self { received: 1, lost: 0, history: 0, run: 0, run_age: 0 }
    }
}

impl Loss {
    /// A report came whose sequence is `gap` above the last one, >= 1. A run of more than `brief_max`
    /// lost reports is not remembered.
    pub(crate) fn received(&mut self, gap: u64, brief_max: u32) {
        let missing = gap.saturating_sub(1);
        self.run_age = self.run_age.saturating_add(gap);
        if self.run_age > RUN_MEMORY {
            self.run = 0;
        }
        if let Ok(run) = u32::try_from(missing)
            && (self.run.max(1)..=brief_max).contains(&run)
        {
            (self.run, self.run_age) = (run, 0);
        }
        self.received = self.received.saturating_add(1);
        self.lost = self.lost.saturating_add(missing);
        self.history = match u32::try_from(gap) {
            // The new low bits are the gap's lost reports and, lowest, the received one.
            Ok(gap @ 0..=127) => (self.history << gap) | ((1_u128 << gap) - 1) & !1,
            _ => !1,
        };
    }

    /// A report came that is `behind` the newest one, >= 1.
    pub(super) fn late(&mut self, behind: u64) {
        let bit = u32::try_from(behind).ok().and_then(|behind| 1_u128.checked_shl(behind));
        if let Some(bit) = bit.filter(|bit| self.history & bit != 0) {
            self.history &= !bit;
            self.lost = self.lost.saturating_sub(1);
            self.received += 1;
        }
    }

    /// The longest brief run of lost reports within the last [`RUN_MEMORY`].
    pub(super) fn longest_run(&self) -> u32 {
        self.run
    }

    /// What the history holds, runs of more than `run_max` lost reports left out.
    pub(super) fn tally(&self, run_max: u32) -> Tally {
        let mut tally = Tally { reports: self.seen(), lost: 0, lost_again: 0 };
        let mut history = self.history;
        while history != 0 {
            history >>= history.trailing_zeros();
            let run = history.trailing_ones();
            history = history.checked_shr(run).unwrap_or(0);
            if run > run_max {
                tally.reports = tally.reports.saturating_sub(run);
            } else {
                tally.lost += run;
                tally.lost_again += run - 1;
            }
        }
        tally
    }

    /// Share of the last 128 reports that were lost, 0 to 1.
    #[must_use]
    pub fn recent(&self) -> f64 {
        f64::from(self.history.count_ones()) / f64::from(self.seen())
    }

    /// Reports of the history that were sent, 1 to 128.
    fn seen(&self) -> u32 {
        let sent = self.received.saturating_add(self.lost).clamp(1, 128);
        u32::try_from(sent).unwrap_or(128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_lost_and_a_late_report_fills_its_gap() {
        let mut loss = Loss::default();
        loss.received(1, 6);
        loss.received(4, 6);
        assert_eq!((loss.received, loss.lost, loss.history), (3, 3, 0b1110));
        loss.late(2);
        assert_eq!((loss.received, loss.lost, loss.history), (4, 2, 0b1010));
        loss.late(2);
        assert_eq!(loss.lost, 2, "the same late report again fills nothing");
        assert!((loss.recent() - 2.0 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn a_gap_beyond_the_history_is_all_lost_but_the_newest() {
        for gap in [128, 129, u64::MAX] {
            let mut loss = Loss::default();
            loss.received(gap, 6);
            assert_eq!(loss.history, !1);
        }
        let mut loss = Loss::default();
        loss.received(u64::MAX, 6);
        loss.received(u64::MAX, 6);
        assert!(loss.recent() <= 1.0, "forged sequences: {}", loss.recent());
        let mut loss = Loss::default();
        loss.received(127, 6);
        assert_eq!(loss.history.count_ones(), 126);
    }

    #[test]
    fn long_runs_are_not_in_the_tally_and_brief_ones_are_remembered_beyond_it() {
        let mut loss = Loss::default();
        for gap in [4, 1, 2, 20, 1] {
            loss.received(gap, 6);
        }
        assert_eq!(loss.tally(12), Tally { reports: 29 - 19, lost: 4, lost_again: 2 });
        assert_eq!(loss.tally(19), Tally { reports: 29, lost: 23, lost_again: 20 });
        assert_eq!(loss.longest_run(), 3);
        (0..200).for_each(|_| loss.received(1, 6));
        assert_eq!((loss.tally(12).lost, loss.longest_run()), (0, 3));
        (0..RUN_MEMORY).for_each(|_| loss.received(1, 6));
        assert_eq!(loss.longest_run(), 0);
        let mut all_lost = Loss::default();
        all_lost.received(u64::MAX, 6);
        assert_eq!(all_lost.tally(12), Tally { reports: 1, lost: 0, lost_again: 0 });
    }
}
