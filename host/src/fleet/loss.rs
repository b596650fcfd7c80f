//! Which of a machine's last 128 reports were lost: sequence gaps in, counts and a bit history out.
//!
//! The newest report is the lowest bit; 1 means lost. A report that comes late fills its gap.

/// Reports received and lost since the machine was first seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Reports received, late ones included.
    pub received: u64,
    /// Reports that never came.
    pub lost: u64,
    /// The last 128, newest lowest; 1: lost.
    pub history: u128,
}

impl Default for Loss {
    /// After the first report.
    fn default() -> Self {
        Self { received: 1, lost: 0, history: 0 }
    }
}

impl Loss {
    /// A report came whose sequence is `gap` above the last one, >= 1.
    pub(super) fn received(&mut self, gap: u64) {
        let missing = gap.saturating_sub(1);
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

    /// Share of the last 128 reports that were lost, 0 to 1.
    #[must_use]
    pub fn recent(&self) -> f64 {
        let seen = (self.received.saturating_add(self.lost)).clamp(1, 128);
        #[expect(clippy::cast_precision_loss, reason = "at most 128")]
        let seen = seen as f64;
        f64::from(self.history.count_ones()) / seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_lost_and_a_late_report_fills_its_gap() {
        let mut loss = Loss::default();
        loss.received(1);
        loss.received(4);
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
            loss.received(gap);
            assert_eq!(loss.history, !1);
        }
        let mut loss = Loss::default();
        loss.received(u64::MAX);
        loss.received(u64::MAX);
        assert!(loss.recent() <= 1.0, "forged sequences: {}", loss.recent());
        let mut loss = Loss::default();
        loss.received(127);
        assert_eq!(loss.history.count_ones(), 126);
    }
}
