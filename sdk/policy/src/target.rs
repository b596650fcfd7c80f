//! One target as the contract tells it, and one request for a target.
//!
//! A load is finite and >= 0, NaN (not known yet) or infinite (it lacks a metric): the host guarantees it,
//! and nothing here depends on it.

use crate::{belief, math};

/// Dense number of a target inside one guest; given to another target only after `leave`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Whose turn was last, as a state to save.
    #[must_use]
    pub fn save(last: Option<Self>) -> Vec<u8> {
        last.map_or_else(Vec::new, |slot| slot.0.to_le_bytes().to_vec())
    }

    /// Takes over what [`save`](Self::save) made; false: it is something else, and `last` stays. An
    /// empty state says nothing and changes nothing.
    pub fn restore(last: &mut Option<Self>, state: &[u8]) -> bool {
        match <[u8; 4]>::try_from(state) {
            Ok(bytes) => *last = Some(Self(u32::from_le_bytes(bytes))),
            Err(_) => return state.is_empty(),
        }
        true
    }
}

/// What a strategy knows of one target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// Names the target towards the host.
    pub slot: Slot,
    /// The formula's answer, lower is better; NaN: not known yet; infinity: its report lacks a metric that
    /// the formula needs. What it counts as stands in [`Candidate::load`].
    pub load: f64,
    /// Capacity relative to the others, > 0, default 1.
    pub weight: f64,
    /// Requests inside the target: as it reported them or, where it reports no counts, the leases
    /// open now.
    pub in_flight: u32,
    /// Picks made after the report was captured, this guest's own included.
    pub picks: u32,
    /// Milliseconds since the report was captured, at the time of the update.
    pub age_ms: u32,
    /// Moving average of reported outcomes in microseconds, 0: none.
    pub latency_us: u32,
    /// Share of failed outcomes, 0 to 1.
    pub error_rate: f32,
    /// Alive, ready, not draining, not ejected.
    pub eligible: bool,
    /// Slow-start share, 0 to 1; 1: warm.
    pub warm: f32,
    /// Requests accepted since the target started, from all hosts, as it reported them.
    pub accepted: u64,
    /// Requests completed likewise. Both 0: the target reports no counts.
    pub completed: u64,
    /// Hash of machine and service: the same on every host and after every restart, which a slot is
    /// not.
    pub identity: u64,
}

impl Target {
    /// A fresh, warm, eligible target of weight 1.
    #[must_use]
    pub fn new(slot: Slot, load: f64) -> Self {
        Self {
            slot,
            load,
            weight: 1.0,
            in_flight: 0,
            picks: 0,
            age_ms: 0,
            latency_us: 0,
            error_rate: 0.0,
            eligible: true,
            warm: 1.0,
            accepted: 0,
            completed: 0,
            identity: u64::from(slot.0),
        }
    }

    /// What the target can take relative to the others: its weight, less while it warms up. Positive
    /// and finite, so that it can be divided by.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        (self.weight * self.warmth()).clamp(f64::MIN_POSITIVE, f64::MAX)
    }

    /// Its slow-start share, above 0 to 1: of what it would get it gets so much.
    #[must_use]
    pub fn warmth(&self) -> f64 {
        f64::from(self.warm).clamp(WARM_MIN, 1.0)
    }

    /// Requests that it works on, as far as is known: those reported and the picks since.
    #[must_use]
    pub fn in_use(&self) -> f64 {
        f64::from(self.in_flight) + f64::from(self.picks)
    }

    /// Requests that it works on per capacity: how full it says it is. [`Fleet::fullness`](crate::Fleet::fullness)
    /// is for choosing: it reckons with failures.
    #[must_use]
    pub fn fullness(&self) -> f64 {
        self.in_use() / self.capacity()
    }

    /// How much dearer its failures make it, from 1 on: 1 / (1 - error rate)².
    ///
    /// Failing is often fast, so that a broken target looks like the fastest one. If failures take no
    /// time, the mean latency is the good requests' latency times (1 - error rate): the first factor
    /// takes that illusion away. The second counts the attempts until one succeeds.
    #[must_use]
    pub fn failure_price(&self) -> f64 {
        let success = belief::success(self.error_rate);
        1.0 / (success * success)
    }

    /// What it can take next to the others where nothing but shares are given: its capacity, less what its
    /// failures cost.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.capacity() / self.failure_price()).max(f64::MIN_POSITIVE)
    }

    /// Picks since its report per [`share`](Self::share), by which ties are broken; of those without any,
    /// who fails comes last.
    #[must_use]
    pub fn picks_per_share(&self) -> f64 {
        (f64::from(self.picks) + f64::from(self.error_rate.max(0.0))) / self.share()
    }
}

/// A target that has just started is offered a little, or it would never become warm.
const WARM_MIN: f64 = 0.01;

/// An eligible target, with what most choices need; [`Fleet::get`](crate::Fleet::get) has the rest. Kept small: a
/// random choice reads only these, and how many of them fit the cache is what it costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Names the target towards the host.
    pub slot: Slot,
    /// Picks made after the report was captured, this guest's own included.
    pub picks: u32,
    /// What its load counts as, lower is better: as [`belief`] has it in a strategy that goes
    /// by loads ([`Strategy::GOES_BY`](crate::Strategy::GOES_BY)), else as reported.
    pub load: f64,
}

impl From<&Target> for Candidate {
    fn from(target: &Target) -> Self {
        let Target { slot, picks, load, .. } = *target;
        Self { slot, picks, load }
    }
}

/// One request for a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Hash of the client's key, 0: none.
    pub key: u64,
    /// Request class from the pool's configuration, 0: none.
    pub class: u32,
    /// Expected work relative to other requests, default 1.
    pub cost: f64,
    /// The host's monotonic clock in milliseconds.
    pub now_ms: u64,
    /// Fresh random bits.
    pub random: u64,
}

impl Request {
    /// The client's key, or random bits where there is none: who has no key goes anywhere.
    #[must_use]
    pub fn key_or_random(&self) -> u64 {
        if self.key == 0 { self.random } else { self.key }
    }

    /// Two independent 32-bit draws from the request's random bits.
    #[must_use]
    pub fn draws(&self) -> (u32, u32) {
        math::halves(self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_the_weight_that_is_warm() {
        let target = |weight, warm| Target { weight, warm, ..Target::new(Slot(0), 0.0) };
        assert_eq!(target(3.0, 1.0).capacity().to_bits(), 3.0_f64.to_bits());
        assert_eq!(target(3.0, 0.5).capacity().to_bits(), 1.5_f64.to_bits());
        for (weight, warm) in [(3.0, 0.0), (f64::MIN_POSITIVE, 0.1), (f64::MAX, 1.0)] {
            let capacity = target(weight, warm).capacity();
            assert!(capacity > 0.0 && (1.0 / capacity).is_finite(), "{weight} {warm}");
        }
    }

    #[test]
    fn failures_make_a_target_dearer_but_never_infinitely() {
        let price = |error_rate| Target { error_rate, ..Target::new(Slot(0), 0.0) }.failure_price();
        assert_eq!([0.0, 0.5].map(|rate| price(rate).to_bits()), [1.0, 4.0].map(f64::to_bits));
        assert!(price(1.0) > 9_000.0 && price(1.0).is_finite());
    }
}
