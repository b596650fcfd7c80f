//! Targets that report counts: how fast they are.
//!
//! Invariant: a rate is positive and finite once the pool has one. Times are in milliseconds of the
//! host's clock, rates in requests a millisecond.

use loadline_sdk::{Slot, Target};

use super::Heard;

/// Reports of every target that the pool's averages remember.
const MEMORY_REPORTS: f64 = 20.0;
/// Completed requests a target that a first rate is taken from, and the utilisation assumed for it.
const FIRST_COMPLETED: f64 = 2.0;
const FIRST_UTILISATION: f64 = 0.7;
/// Variance of a new target's rate around the pool's, relative to its square.
const FIRST_DOUBT: f64 = 0.1;
/// The doubt never falls below this, so that a target that changes is noticed.
const LEAST_DOUBT: f64 = 1e-4;
/// Mean deviation, in standard deviations, after which a rate is doubted anew.
const SURPRISE: f64 = 2.5;
/// Idle time, in requests of the pool's rate, after which a slow target is given another chance.
const PARDON_REQUESTS: f64 = 50.0;
/// Range of a rate around the pool's.
const SLOWEST: f64 = 0.02;
const FASTEST: f64 = 50.0;
/// Of the picks that others make unseen on a target: the share that is reckoned with, and the most, in
/// their roots. Not all, because others avoid what this host's reports show full, too; and of many only what
/// they differ by from target to target, because what all get alike moves nobody. With more of them the
/// level is so high that own picks do not show in it, and choosing is as bad as at random. Both are the
/// best of what was tried in the simulator.
const UNSEEN_SHARE: f64 = 0.5;
const UNSEEN_ROOTS: f64 = 0.7;
/// Most that completions are taken to scatter, over what requests that are alike would.
const SCATTER_MAX: f64 = 100.0;
/// Most requests that one pick is taken to stand for.
const HOSTS_MAX: f64 = 64.0;
/// Rates that are saved at most: what the host takes as a state.
const SAVED_MAX: usize = 100_000;
/// While no rate is known: so low that nothing drains, and requests alone decide.
const NO_RATE: f64 = 1e-9;

/// What the pool has learned.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// Mean rate of a target; 0: not known yet.
    rate: f64,
    /// Until then: requests completed, and the time of that.
    completed: f64,
    observed_ms: f64,
    /// Means of a report: requests accepted, picks known.
    accepted: f64,
    picks: f64,
    targets: f64,
    /// Picks of others on a target that no report shows yet, as far as they are reckoned with.
    unseen: f64,
    /// Squared deviation of a queue from the expected one, over the completions in between.
    scatter: f64,
    /// As told by the host.
    hosts: f64,
}

/// What is known of one target.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    rate: f64,
    /// Variance of the rate.
    doubt: f64,
    /// Recent deviations from the expected queue, in standard deviations.
    surprise: f64,
    /// Of the last report.
    inside: f64,
    accepted: u64,
    completed: u64,
}

impl Pace {
    /// How many requests a pick stands for: all that targets accepted over the picks known, or the
    /// hosts that choose, where nothing is accepted yet.
    pub(crate) fn all_over_known(&self) -> f64 {
        if self.accepted <= 0.0 {
            return self.hosts.max(1.0);
        }
        let ratio = if self.picks > 0.0 { self.accepted / self.picks } else { 1.0 };
        ratio.clamp(1.0, HOSTS_MAX)
    }

    /// Picks of others that no report shows yet, as far as they are reckoned with.
    pub(crate) fn unseen_picks(&self) -> f64 {
        self.unseen * self.targets
    }

    /// Half of those in a report period are unseen on average.
    fn reckon_with_others(&mut self) {
        let unseen = (self.accepted - self.picks).max(0.0) / 2.0;
        self.unseen = (UNSEEN_SHARE * unseen).min(UNSEEN_ROOTS * unseen.sqrt());
    }

    /// Whether it is known how fast targets are.
    pub(crate) fn is_known(&self) -> bool {
        self.rate > 0.0
    }

    pub(crate) fn rate_or_none(&self) -> f64 {
        if self.rate > 0.0 { self.rate } else { NO_RATE }
    }

    /// One more report.
    fn learn(&mut self, accepted: f64, completed: f64, heard: &Heard) {
        let memory = MEMORY_REPORTS * self.targets;
        self.accepted += (accepted - self.accepted) / memory;
        self.picks += (heard.picks - self.picks) / memory;
        self.reckon_with_others();
        if self.rate <= 0.0 {
            self.completed += completed;
            self.observed_ms += heard.elapsed_ms;
            if self.completed > FIRST_COMPLETED * (self.targets + 4.0) {
                self.rate = self.completed / self.observed_ms / FIRST_UTILISATION;
            }
        }
    }

    /// What the next generation starts from: the pool's rate, then slot and rate of each target.
    pub(crate) fn save<'k>(&self, known: impl Iterator<Item = (Slot, &'k Counted)>) -> Vec<u8> {
        let mut state = vec![FORMAT];
        for number in [self.rate, self.accepted, self.picks] {
            state.extend(number.to_le_bytes());
        }
        for (slot, counted) in known.filter(|(_, counted)| counted.rate > 0.0).take(SAVED_MAX) {
            state.extend(slot.0.to_le_bytes());
            #[expect(clippy::cast_possible_truncation, reason = "a rate needs no more digits")]
            state.extend((counted.rate as f32).to_le_bytes());
        }
        state
    }

    /// What a generation of this policy saved; `None`: something else.
    pub(crate) fn restore(state: &[u8]) -> Option<(Self, Vec<(Slot, f64)>)> {
        let (head, rest) = state.strip_prefix(&[FORMAT])?.split_at_checked(24)?;
        let (numbers, _) = head.as_chunks::<8>();
        let [rate, accepted, picks] = <[_; 3]>::try_from(numbers).ok()?.map(f64::from_le_bytes);
        let is_good = |number: f64| number.is_finite() && number >= 0.0;
        if ![rate, accepted, picks].into_iter().all(is_good) {
            return None;
        }
        let (pairs, left) = rest.as_chunks::<8>();
        let pair = |pair: &[u8; 8]| {
            let [slot, rate] = [&pair[..4], &pair[4..]].map(|half| <[u8; 4]>::try_from(half).ok());
            let rate = f64::from(f32::from_le_bytes(rate?));
            (rate > 0.0 && rate.is_finite())
                .then(|| Some((Slot(u32::from_le_bytes(slot?)), rate)))?
        };
        let rates = pairs.iter().map(pair).collect::<Option<Vec<_>>>()?;
        let mut pace = Self { rate, accepted, picks, ..Self::default() };
        pace.reckon_with_others();
        left.is_empty().then_some((pace, rates))
    }
}

/// First byte of a saved state.
const FORMAT: u8 = 1;

impl Counted {
    /// A report; learned from if it `learns` something about the time since the last one.
    pub(crate) fn hear(
        &mut self,
        heard: &Heard,
        learns: bool,
        pace: &mut Pace,
        targets: usize,
        hosts: u32,
    ) {
        (pace.targets, pace.hosts) = (targets as f64, f64::from(hosts));
        let target = &heard.target;
        // A counter that falls: the target has started anew.
        let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now) as f64;
        let accepted = grown(target.accepted, self.accepted);
        let inside = f64::from(target.in_flight);
        if learns {
            pace.learn(accepted, grown(target.completed, self.completed), heard);
            if self.rate > 0.0 {
                self.learn(accepted, inside, heard, pace);
            }
        }
        if self.rate <= 0.0 && pace.rate > 0.0 {
            self.rate = pace.rate;
            self.doubt = FIRST_DOUBT * self.rate * self.rate;
        }
        self.inside = inside;
        (self.accepted, self.completed) = (target.accepted, target.completed);
    }

    /// The counts are those of the last report.
    pub(crate) fn is_same(&self, target: &Target) -> bool {
        let inside = f64::from(target.in_flight);
        self.inside.total_cmp(&inside).is_eq()
            && (self.accepted, self.completed) == (target.accepted, target.completed)
    }

    /// The rate, from how far the queue is from the expected one.
    fn learn(&mut self, accepted: f64, inside: f64, heard: &Heard, pace: &mut Pace) {
        let (rate, elapsed_ms) = (self.rate, heard.elapsed_ms);
        let busy_ms = busy_ms(self.inside, accepted, rate, elapsed_ms);
        let left = self.inside + accepted - rate * busy_ms;
        // Requests come one by one: where none would be left, one may have just come.
        let expected = left.max((accepted / elapsed_ms / rate).min(1.0));
        let faster = expected - inside;
        // Completions scatter like their number where requests are alike, else more.
        let count = (rate * busy_ms).max(1.0) + 1.0;
        let surplus = (faster * faster - busy_ms * busy_ms * self.doubt) / count;
        pace.scatter += (surplus - pace.scatter) / (MEMORY_REPORTS * pace.targets);
        let noise = count * pace.scatter.clamp(1.0, SCATTER_MAX);
        let deviation = (busy_ms * busy_ms * self.doubt + noise).sqrt();
        self.surprise = 0.7 * self.surprise + 0.3 * faster / deviation;
        let square = rate * rate;
        if self.surprise.abs() > SURPRISE {
            self.doubt = (4.0 * self.doubt).clamp(0.1 * square, square);
            self.surprise = 0.0;
        }
        let gain = self.doubt * busy_ms / (busy_ms * busy_ms * self.doubt + noise);
        let learned = (rate + gain * faster).clamp(rate / 2.0, rate * 2.0);
        self.rate = learned.clamp(pace.rate * SLOWEST, pace.rate * FASTEST);
        self.doubt = (self.doubt * (1.0 - gain * busy_ms)).max(LEAST_DOUBT * square);
        if self.inside <= 0.0 && accepted <= 0.0 && self.rate < pace.rate {
            let pardon = (elapsed_ms * pace.rate / PARDON_REQUESTS).min(1.0);
            self.rate += (pace.rate - self.rate) * pardon;
        }
        pace.rate += (self.rate - pace.rate) / (4.0 * pace.targets);
    }

    /// A rate that the last generation had learned; the queue is to be set anew.
    pub(crate) fn relearn(&mut self, rate: f64) {
        self.rate = rate;
        self.doubt = LEAST_DOUBT.sqrt() * rate * rate;
    }

    /// Requests inside at the last report.
    pub(crate) fn inside(&self) -> f64 {
        self.inside
    }

    pub(crate) fn rate(&self, pace: &Pace) -> f64 {
        if self.rate > 0.0 { self.rate } else { pace.rate_or_none() }
    }
}

/// How long a target with so many requests inside works in the time given, when so many more arrive
/// evenly.
fn busy_ms(inside: f64, accepted: f64, rate: f64, elapsed_ms: f64) -> f64 {
    let arriving = accepted / elapsed_ms;
    if arriving >= rate {
        return elapsed_ms;
    }
    let empty_ms = (inside / (rate - arriving)).min(elapsed_ms);
    empty_ms + (elapsed_ms - empty_ms) * arriving / rate
}
