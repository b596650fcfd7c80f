//! What a shadow hears of a table: every target that its strategy is told of, every pick, in their order.
//!
//! Written under the table's lock by those who change it, taken whole by the shadow. Invariants: nobody
//! waits here; memory is bounded: when the buffer is full everything is dropped and counted until it is
//! taken, so that what is in it is the beginning of what happened, without a hole. Which picks the
//! candidate is to be asked about is drawn from the request's random number.

use super::Table;
use crate::policy::guest::{Request, TargetView};

/// What waits for the shadow at most, 1.6 MB. Taken a hundred times a second.
pub(in crate::pick) const HEARD_MAX: usize = 16_384;
/// Room from the start: no pick waits for memory but in a burst.
const HEARD_USUAL: usize = 1_024;

/// One thing that happened.
#[derive(Debug, Clone, Copy)]
pub(in crate::pick) enum Heard {
    /// The strategy is told of a target.
    Told {
        /// As it is.
        view: TargetView,
        /// When.
        now_ms: u64,
    },
    /// The target of this slot is gone.
    Left(u32),
    /// A target was picked.
    Picked {
        /// Of the target.
        slot: u32,
        /// By native code.
        is_native: bool,
        /// When.
        now_ms: u64,
        /// What was asked, if the candidate is to be asked the same.
        request: Option<Request>,
    },
}

/// The buffer between a table and a shadow.
#[derive(Debug)]
pub(in crate::pick) struct Tap {
    /// Whose it is.
    serial: u64,
    heard: Vec<Heard>,
    /// A pick is asked about if 32 random bits are below this.
    below: u64,
    dropped: Dropped,
}

/// What found the buffer full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::pick) struct Dropped {
    /// Targets told or gone, and picks that were not asked about.
    pub(in crate::pick) updates: u64,
    /// Picks that the candidate was to be asked about.
    pub(in crate::pick) picks: u64,
}

impl Tap {
    /// For this shadow, which is asked about this share of the picks.
    pub(in crate::pick) fn new(serial: u64, share: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^32")]
        let below = (share.clamp(0.0, 1.0) * 2_f64.powi(32)) as u64;
        let heard = Vec::with_capacity(HEARD_USUAL);
        Self { serial, heard, below, dropped: Dropped::default() }
    }

    fn hear(&mut self, heard: Heard) {
        if self.dropped == Dropped::default() && self.heard.len() < HEARD_MAX {
            self.heard.push(heard);
        } else if matches!(heard, Heard::Picked { request: Some(_), .. }) {
            self.dropped.picks += 1;
        } else {
            self.dropped.updates += 1;
        }
    }

    fn wants(&self, request: &Request) -> bool {
        // Mixed, because strategies draw by the same number.
        let mixed = (request.random ^ (request.random >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> 32 < self.below
    }
}

impl Table {
    /// Lets a shadow hear from now on, instead of any other.
    pub(in crate::pick) fn attach(&mut self, tap: Tap) {
        self.tap = Some(tap);
    }

    /// Lets this shadow hear no more.
    pub(in crate::pick) fn detach(&mut self, serial: u64) {
        self.tap.take_if(|tap| tap.serial == serial);
    }

    /// Takes all that this shadow has heard, for an empty buffer, and what was dropped since the last
    /// time; `None`: it does not hear any more.
    pub(in crate::pick) fn take_heard(
        &mut self,
        serial: u64,
        buffer: &mut Vec<Heard>,
    ) -> Option<Dropped> {
        let tap = self.tap.as_mut().filter(|tap| tap.serial == serial)?;
        std::mem::swap(&mut tap.heard, buffer);
        Some(std::mem::take(&mut tap.dropped))
    }

    pub(super) fn hear(&mut self, heard: Heard) {
        if let Some(tap) = &mut self.tap {
            tap.hear(heard);
        }
    }

    /// A target was picked; `request`: what somebody else can be asked as well.
    pub(in crate::pick) fn hear_pick(
        &mut self,
        slot: u32,
        is_native: bool,
        now_ms: u64,
        request: Option<Request>,
    ) {
        if let Some(tap) = &mut self.tap {
            let request = request.filter(|request| tap.wants(request));
            tap.hear(Heard::Picked { slot, is_native, now_ms, request });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(random: u64) -> Request {
        Request { key: 0, class: 0, cost: 1.0, now_ms: 0, random }
    }

    #[test]
    fn full_buffer_drops_and_counts_until_it_is_taken() {
        let mut table = Table::default();
        table.attach(Tap::new(7, 1.0));
        for pick in 0..HEARD_MAX as u64 + 3 {
            table.hear_pick(0, false, 0, Some(request(pick)));
        }
        table.hear(Heard::Left(0));
        let mut buffer = Vec::new();
        assert_eq!(table.take_heard(8, &mut buffer), None, "another shadow's");
        let dropped = table.take_heard(7, &mut buffer);
        assert_eq!(dropped, Some(Dropped { updates: 1, picks: 3 }));
        assert_eq!(buffer.len(), HEARD_MAX);
        buffer.clear();
        table.hear(Heard::Left(1));
        assert_eq!(table.take_heard(7, &mut buffer), Some(Dropped::default()));
        assert_eq!(buffer.len(), 1);
        table.detach(7);
        assert_eq!(table.take_heard(7, &mut buffer), None);
    }

    #[test]
    fn the_share_of_picks_is_drawn_evenly() {
        let mut random = fastrand::Rng::with_seed(1);
        for share in [0.0, 0.1, 0.5, 1.0] {
            let tap = Tap::new(1, share);
            let wanted = (0..100_000).filter(|_| tap.wants(&request(random.u64(..)))).count();
            assert!((wanted as f64 / 1e5 - share).abs() < 0.01, "{wanted} for {share}");
        }
    }
}
