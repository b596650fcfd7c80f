//! The dead rule: how many reports in a row may be missing before a machine is called gone.
//!
//! `miss_limit` for a machine whose reports arrive. For one whose reports get lost, as many as are
//! lost in a row at most once in [`REPORTS_A_RUN`] reports, by its loss history: the share `p` of lost
//! reports and the share `q` of lost ones after a lost one (Gilbert's model) give a run of `m` the
//! share `p * q^(m - 1)`. Where losses do not come in bursts `q` is `p`, to which it is drawn while
//! few were lost. Three bounds keep the estimate from being fooled: a long run is an outage and tells
//! nothing of single losses; the next run may be a little longer than the longest brief one lately;
//! and nobody gets more than [`MISSES_FACTOR_MAX`] times the limit, so that who is dead is found.
//! Silence that ends in death is no loss: only a later report of the same agent makes it one.
//!
//! A machine of which little is known has no such history, and the limit alone would call one behind
//! 10 % loss gone once in a thousand reports until the first of them are missed. So what is missing to
//! [`KNOWN_REPORTS`] heard ones counts as if [`SUPPOSED_SHARE`] of it had been lost: with a limit of
//! 3 a machine may miss 6 at first, and 3 again from the 58th of reports of which none was lost. The
//! price is a dead newcomer that is found after 6.5 intervals instead of 3.5. A machine whose agent
//! is started again is no newcomer: the way that its reports take is the same.

use std::sync::LazyLock;

use super::loss::{Loss, Tally};

/// One run that is too long in so many reports is borne: three weeks at one each two seconds. By the
/// share in the last 128 reports, which is not the true one, it is twice as often.
const REPORTS_A_RUN: f64 = 1_000_000.0;
/// Reports that are heard until only they count: of ways that lose a tenth, one in a thousand loses
/// none of so many.
const KNOWN_REPORTS: usize = 64;
/// Share of reports that a way may lose as far as nothing is known of it.
const SUPPOSED_SHARE: f64 = 0.1;
/// Misses allowed at most, in miss limits: half of all reports lost needs six of them.
pub const MISSES_FACTOR_MAX: u32 = 8;
/// Longer runs are outages, in miss limits.
const OUTAGE_FACTOR: u32 = 4;
/// Longest run that is remembered, in miss limits.
const BRIEF_FACTOR: u32 = 2;
/// Lost reports that it takes to believe that losses come in bursts.
const DOUBT: f64 = 16.0;

/// The configured part of the rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadRule {
    /// Missed reports that make a machine without loss gone.
    pub(crate) miss_limit: u32,
}

impl DeadRule {
    /// Silence after which a machine is gone: the misses and half an interval, in milliseconds.
    pub(crate) fn silence_ms(self, loss: &Loss, interval_ms: u32) -> u64 {
        let interval_ms = u64::from(interval_ms);
        interval_ms * u64::from(self.misses(loss)) + interval_ms / 2
    }

    /// Longest run of lost reports that is remembered.
    pub(crate) fn brief_max(self) -> u32 {
        self.miss_limit.saturating_mul(BRIEF_FACTOR)
    }

    fn misses(self, loss: &Loss) -> u32 {
        let heard = usize::try_from(loss.received).unwrap_or(usize::MAX);
        let borne = if loss.history == 0 && loss.longest_run() == 0 {
            WITHOUT_LOSS[heard.min(KNOWN_REPORTS)]
        } else {
            let tally = loss.tally(self.miss_limit.saturating_mul(OUTAGE_FACTOR));
            borne(tally, KNOWN_REPORTS.saturating_sub(heard)).max(loss.longest_run() + 1)
        };
        borne.clamp(self.miss_limit, self.miss_limit.saturating_mul(MISSES_FACTOR_MAX))
    }
}

/// What is borne of a machine that has lost nothing, by the reports that were heard: asked for with nearly
/// every report of a farm.
static WITHOUT_LOSS: LazyLock<[u32; KNOWN_REPORTS + 1]> = LazyLock::new(|| {
    std::array::from_fn(|heard| {
        let reports = u32::try_from(heard).unwrap_or(u32::MAX);
        borne(Tally { reports, lost: 0, lost_again: 0 }, KNOWN_REPORTS - heard)
    })
});

/// Length of a run of losses that is rare enough, by what is known and so many supposed reports.
fn borne(tally: Tally, supposed: usize) -> u32 {
    let supposed = f64::from(u32::try_from(supposed).unwrap_or(u32::MAX));
    let lost = f64::from(tally.lost);
    let reports = f64::from(tally.reports) + supposed;
    let share = (lost + supposed * SUPPOSED_SHARE) / reports.max(1.0);
    if share * REPORTS_A_RUN <= 1.0 {
        return 0;
    }
    let again = (f64::from(tally.lost_again) + DOUBT * share) / (lost + DOUBT);
    let further = (share * REPORTS_A_RUN).ln() / -again.ln();
    // A share of 1 or near it gives infinity: the conversion saturates, the caller bounds it.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let further = further.ceil() as u32;
    further.saturating_add(1)
}
