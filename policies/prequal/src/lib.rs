//! `prequal`: of a few targets drawn at random the fastest that is not hot, else the emptiest.
//!
//! *Use it* for services where tail latency counts and machines have antagonists. A target is *hot* if
//! it holds more requests than the `quantile` of the fleet does. If any drawn target is cold, the cold
//! one with the least latency is picked; else the one with the fewest requests. Requests are those in
//! the target as reported and the picks since, per weight * slow-start share. Loads do not count.
//!
//! Instead of probes there are the last reports of all targets. What a probe would tell is the latency at
//! the present number of requests; what the host knows is an average of outcomes, most of which were sent
//! when there were fewer or more. Who went by it alone would fill a target up because it was empty a while
//! ago. So the average is divided by how many requests, themselves included, those met whose latencies it
//! holds, and multiplied by how many the next one will meet. Few outcomes say little: as many as were sent
//! count against ten of what is usual, the mean of the cold ones drawn.
//!
//! The latency is divided by (1 - error rate)², and a target that fails counts as fuller, and never as
//! emptier than is usual, so that fast failures do not attract work; an unknown latency is the usual one.
//! Where latencies are equal or all unknown, the fewest requests win, and of equals anyone.
//!
//! *Source*: Wydrowski, Kleinberg, Rumble and Archer, Prequal (NSDI 2024).
//!
//! *Settings*: `quantile` (a share, 0 to 1, default 0.84 = 2^-0.25 as in the paper, which found 0.6 to
//! 0.9 good; 0: only the emptiest are cold, 1: latency alone), `sample` (targets drawn, 1 to 64,
//! default 5: more herd when reports are old). No state: after a reload averages are taken to be of as many
//! requests as there are.
//!
//! *Cost* of a pick: O(1) at any fleet size, for each target drawn. The quantile is kept in a
//! histogram, exact to 6 %. It is that of the eligible targets, rounded down: even of two the fuller
//! one is hot.

use loadline_sdk::index::{PerSlot, WeightedDraw};
use loadline_sdk::{math, prelude::*, settings};
use serde::Deserialize;

/// Time in which a request's weight falls to 1/e in the host's average of latencies, in milliseconds.
const DECAY_MS: f64 = 10_000.0;
/// Outcomes that say as much of a target as is known without them. One is off by about what it is itself,
/// the mean of n by 1/√n of that, and targets differ by some 30 %: n = 1 / 0.3².
const USUAL_OUTCOMES: f64 = 10.0;

/// The strategy.
#[derive(Debug, Default)]
pub struct Prequal {
    settings: Settings,
    spread: Spread,
    drawn: Vec<Drawn>,
    met: PerSlot<Met>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    quantile: f64,
    sample: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { quantile: 0.84, sample: 5 }
    }
}

impl Strategy for Prequal {
    const GOES_BY: GoesBy = GoesBy::Requests;
    const SETTINGS_SCHEMA: &'static str = r#"{
        "type": "object", "additionalProperties": false,
        "properties": {
            "quantile": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.84,
                "description": "a target is hot with more requests than this share of the fleet has"},
            "sample": {"type": "integer", "minimum": 1, "maximum": 64, "default": 5,
                "description": "targets drawn for a pick"}
        }
    }"#;

    fn configure(&mut self, settings: &str, _seed: u64) -> Result<(), String> {
        self.settings = settings::parse(settings)?;
        settings::in_range("quantile", self.settings.quantile, 0.0..=1.0)?;
        settings::in_range("sample", self.settings.sample as f64, 1.0..=64.0)?;
        Ok(())
    }

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for slot in changed {
            self.spread.set(*slot, fleet.offered(*slot).map(|target| fleet.fullness(&target)));
            let latency_us = fleet.get(*slot).map_or(0, |target| target.latency_us);
            if let Some(met) = self.met.get_mut(*slot).filter(|met| met.latency_us != latency_us) {
                met.hear(latency_us, fleet.now_ms());
            }
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        for slot in slots {
            self.spread.set(*slot, None);
            self.met.remove(*slot);
        }
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        self.draw(fleet, request);
        let slot = self.choose()?;
        let target = fleet.get(slot)?;
        let next = with_one_more(fleet, &target);
        self.spread.set(slot, Some(next));
        let met = self.met.get(slot).copied();
        let met = met.unwrap_or_else(|| Met::supposed(&target, next, request.now_ms));
        self.met.set(slot, met.with_pick(next));
        Some(slot)
    }
}

/// What the rule asks of a target.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    slot: Slot,
    fullness: f64,
    /// The same with one more request.
    next: f64,
    /// What a good answer takes for each request that was there, in microseconds; `None`: not known.
    per_request_us: Option<f64>,
    /// Of how many outcomes this is.
    outcomes: f64,
    /// Breaks ties.
    toss: u64,
}

impl Prequal {
    /// Draws the targets to choose from, with repetition; all of them where they are that few.
    fn draw(&mut self, fleet: &Fleet, request: &Request) {
        let eligible = fleet.eligible();
        let met = &self.met;
        let drawn = |candidate: &Candidate| {
            let target = fleet.get(candidate.slot)?;
            Some(Drawn::new(fleet, &target, met.get(candidate.slot)))
        };
        self.drawn.clear();
        if eligible.len() <= self.settings.sample {
            self.drawn.extend(eligible.iter().filter_map(drawn));
            return;
        }
        let draws = math::draws(request.random).take(self.settings.sample);
        let random = draws.filter_map(|bits| eligible.random(math::halves(bits).0));
        self.drawn.extend(random.filter_map(drawn));
    }

    /// The hot and cold rule.
    fn choose(&self) -> Option<Slot> {
        let limit = self.spread.quantile(self.settings.quantile);
        let cold = || self.drawn.iter().filter(|drawn| bucket(drawn.fullness) <= limit);
        let usual_us = mean(cold().filter_map(|drawn| drawn.per_request_us));
        let latency_us = |drawn: &Drawn| drawn.latency_us(usual_us);
        let emptier = |a: &&Drawn, b: &&Drawn| {
            a.fullness.total_cmp(&b.fullness).then_with(|| a.toss.cmp(&b.toss))
        };
        let fastest = cold()
            .min_by(|a, b| latency_us(a).total_cmp(&latency_us(b)).then_with(|| emptier(a, b)));
        let emptiest = || self.drawn.iter().min_by(emptier);
        fastest.or_else(emptiest).map(|drawn| drawn.slot)
    }
}

impl Drawn {
    fn new(fleet: &Fleet, target: &Target, met: Option<&Met>) -> Self {
        let next = with_one_more(fleet, target);
        let met = met.copied().unwrap_or_else(|| Met::supposed(target, next, 0));
        let latency_us = f64::from(target.latency_us) * target.failure_price();
        Self {
            slot: target.slot,
            fullness: fleet.fullness(target),
            next,
            per_request_us: (latency_us > 0.0).then(|| latency_us / met.mean().unwrap_or(next)),
            outcomes: met.picks,
            toss: fleet.toss(target.slot),
        }
    }

    /// What the next request will take where a request usually takes so long for each that it meets.
    fn latency_us(&self, usual_us: f64) -> f64 {
        let known = self.per_request_us.unwrap_or(usual_us) * self.outcomes;
        self.next * (known + usual_us * USUAL_OUTCOMES) / (self.outcomes + USUAL_OUTCOMES)
    }
}

/// How full a target is with one more request.
fn with_one_more(fleet: &Fleet, target: &Target) -> f64 {
    fleet.fullness(&Target { picks: target.picks.saturating_add(1), ..*target })
}

/// How full a target was, with them, that those found who were sent there: a moving average as the host's
/// of latencies is.
#[derive(Debug, Clone, Copy, Default)]
struct Met {
    picks: f64,
    sum: f64,
    /// Since the host's average was another one; they are not in it yet.
    waiting: (f64, f64),
    latency_us: u32,
    at_ms: u64,
}

impl Met {
    /// Of a target that was not picked yet: its latency, if it is known, is of outcomes before this state.
    fn supposed(target: &Target, next: f64, now_ms: u64) -> Self {
        let latency_us = target.latency_us;
        let picks = if latency_us > 0 { USUAL_OUTCOMES } else { 0.0 };
        Self { picks, sum: picks * next, waiting: (0.0, 0.0), latency_us, at_ms: now_ms }
    }

    fn with_pick(self, next: f64) -> Self {
        let (picks, sum) = self.waiting;
        Self { waiting: (picks + 1.0, sum + next), ..self }
    }

    /// The host's average has changed.
    fn hear(&mut self, latency_us: u32, now_ms: u64) {
        let kept = math::exp_minus(now_ms.saturating_sub(self.at_ms) as f64 / DECAY_MS);
        let (picks, sum) = std::mem::take(&mut self.waiting);
        (self.picks, self.sum) = (self.picks * kept + picks, self.sum * kept + sum);
        (self.latency_us, self.at_ms) = (latency_us, now_ms);
    }

    fn mean(&self) -> Option<f64> {
        (self.picks > 0.0).then(|| self.sum / self.picks)
    }
}

/// 0 where there is none.
fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for number in numbers {
        sum += number;
        count += 1.0;
    }
    if count > 0.0 { sum / count } else { 0.0 }
}

/// How full the eligible targets are: a histogram.
#[derive(Debug, Default)]
struct Spread {
    /// Targets in each bucket.
    counts: WeightedDraw,
    buckets: PerSlot<Slot>,
}

impl Spread {
    /// `None`: the target does not count.
    fn set(&mut self, slot: Slot, fullness: Option<f64>) {
        let (old, new) = (self.buckets.get(slot).copied(), fullness.map(bucket));
        if old == new {
            return;
        }
        if let Some(old) = self.buckets.remove(slot) {
            self.counts.set(old, self.counts.get(old) - 1.0);
        }
        if let Some(new) = new {
            self.counts.set(new, self.counts.get(new) + 1.0);
            self.buckets.set(slot, new);
        }
    }

    /// The bucket of the target at this share of the way from the emptiest to the fullest, rounded
    /// down: below 1, the fullest of even two is above it.
    fn quantile(&self, share: f64) -> Slot {
        let count = self.counts.total();
        let place = (share * (count - 1.0)).floor();
        self.counts.at((place + 0.5) / count).unwrap_or(Slot(0))
    }
}

/// Buckets by exponent and the first four bits of the mantissa: they order like the numbers, and
/// whole ones below 32 have one each.
fn bucket(fullness: f64) -> Slot {
    const FULLNESS_MIN: f64 = 1.0 / 4_294_967_296.0;
    const FULLNESS_MAX: f64 = 4_294_967_296.0;
    let number = |fullness: f64| fullness.to_bits() >> 48;
    let above = number(fullness.clamp(FULLNESS_MIN, FULLNESS_MAX)) - number(FULLNESS_MIN);
    Slot(u32::try_from(above).unwrap_or(0))
}

export_strategy!(Prequal);

#[cfg(test)]
mod tests;
