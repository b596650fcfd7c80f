//! Runs a policy natively against a fake fleet: the same trait, the same runner, no Wasm.

use crate::{Formula, FormulaRunner, Request, Row, Slot, Strategy, StrategyRunner, Target, math};

/// Plays the host for a strategy.
///
/// ```
/// use loadline_sdk::{prelude::*, testing::StrategyHost};
/// #[derive(Default)]
/// struct First;
/// impl Strategy for First {
///     fn pick(&mut self, fleet: &Fleet, _: &Request) -> Option<Slot> {
///         fleet.targets().find(|target| target.eligible).map(|target| target.slot)
///     }
/// }
/// let mut host = StrategyHost::<First>::with_loads(&[0.5, 0.1]);
/// host.change(0, |target| target.eligible = false);
/// assert_eq!(host.pick(), Some(Slot(1)));
/// ```
#[derive(Debug)]
pub struct StrategyHost<S> {
    runner: StrategyRunner<S>,
    targets: Vec<Target>,
    random: u64,
    /// The clock that requests and updates carry, in milliseconds.
    pub now_ms: u64,
}

impl<S: Strategy> StrategyHost<S> {
    /// A host with no targets yet.
    ///
    /// # Errors
    /// What the strategy says of the settings.
    pub fn new(settings: &str, seed: u64) -> Result<Self, String> {
        let mut runner = StrategyRunner::default();
        runner.configure(settings, seed)?;
        Ok(Self { runner, targets: Vec::new(), random: seed, now_ms: 0 })
    }

    /// Default settings and one eligible target of weight 1 a load; slots count from 0.
    ///
    /// # Panics
    /// The strategy refuses the empty settings.
    #[must_use]
    pub fn with_loads(loads: &[f64]) -> Self {
        let mut host = Self::new("{}", 1).expect("a strategy must accept empty settings");
        for load in loads {
            host.add(*load);
        }
        host
    }

    /// One more target; its slot is the next free one.
    pub fn add(&mut self, load: f64) -> Slot {
        let slot = Slot(u32::try_from(self.targets.len()).unwrap_or(u32::MAX));
        self.targets.push(Target::new(slot, load));
        self.runner.update(self.now_ms, 1, [Target::new(slot, load)]);
        slot
    }

    /// Changes a target and tells the strategy; unknown slots are left alone.
    pub fn change(&mut self, slot: u32, change: impl FnOnce(&mut Target)) {
        if let Some(target) = self.targets.get_mut(Slot(slot).index()) {
            change(target);
            self.runner.update(self.now_ms, 1, [*target]);
        }
    }

    /// The target is gone.
    pub fn leave(&mut self, slot: u32) {
        self.runner.leave(&[Slot(slot)]);
    }

    /// A request without key, class or cost, with fresh random bits.
    pub fn request(&mut self) -> Request {
        self.random = splitmix(self.random);
        Request { key: 0, class: 0, cost: 1.0, now_ms: self.now_ms, random: self.random }
    }

    /// Picks for such a request.
    pub fn pick(&mut self) -> Option<Slot> {
        let request = self.request();
        self.runner.pick(&request)
    }

    /// The next best among these slots, for the request that was picked for last.
    pub fn pick_among(&mut self, slots: &[u32]) -> Option<Slot> {
        self.runner.asked.get_or_insert((self.random, 1));
        self.pick_out(slots, self.random)
    }

    /// Picks for such a request that only these slots may answer.
    pub fn pick_only(&mut self, slots: &[u32]) -> Option<Slot> {
        let random = self.request().random;
        self.pick_out(slots, random)
    }

    fn pick_out(&mut self, slots: &[u32], random: u64) -> Option<Slot> {
        let request = Request { key: 0, class: 0, cost: 1.0, now_ms: self.now_ms, random };
        self.runner.pick_among(&request, slots.iter().copied().map(Slot).collect())
    }

    /// How often each slot is picked in `picks` requests.
    pub fn shares(&mut self, picks: usize) -> Vec<usize> {
        let mut shares = vec![0; self.targets.len()];
        for _ in 0..picks {
            if let Some(slot) = self.pick() {
                shares[slot.index()] += 1;
            }
        }
        shares
    }

    /// A new generation of the strategy takes over: state carried, fleet fed again.
    ///
    /// # Errors
    /// What the strategy says of the settings.
    pub fn reload(&mut self, settings: &str) -> Result<bool, String> {
        let state = self.runner.save();
        let mut next = StrategyRunner::default();
        next.configure(settings, 1)?;
        next.update(self.now_ms, 1, self.targets.iter().copied());
        let restored = next.restore(&state);
        self.runner = next;
        Ok(restored)
    }

    /// The runner itself, for what this harness does not cover.
    pub fn runner(&mut self) -> &mut StrategyRunner<S> {
        &mut self.runner
    }
}

/// Plays random reports, departures and requests, hostile ones among them, and checks what every
/// strategy owes: a target that is eligible and among the candidates, wherever there is one.
///
/// # Panics
/// An answer is wrong, or the strategy refuses the settings.
pub fn check_answers<S: Strategy>(settings: &str) {
    for (targets, seed) in [(1, 1), (3, 2), (40, 3)] {
        let mut host = StrategyHost::<S>::new(settings, seed).expect("good settings");
        (0..targets).for_each(|_| _ = host.add(0.5));
        let mut present = vec![true; targets as usize];
        for bits in math::draws(seed).take(5_000) {
            let (draw, place) = math::halves(bits);
            let slot = place % targets;
            host.now_ms += u64::from(draw % 7);
            match draw % 16 {
                0 => {
                    host.leave(slot);
                    present[slot as usize] = false;
                }
                1..5 => {
                    host.change(slot, |target| disturb(target, draw >> 4));
                    present[slot as usize] = true;
                }
                5 => check_answer(&mut host, &present, &[slot, place / 2 % targets, targets]),
                _ => check_answer(&mut host, &present, &[]),
            }
        }
    }
}

/// Checks that ties are broken fairly: of eight equal targets, of which every report after every pick says
/// that they are, each is picked as often as the others, as the first choice and as the second one of
/// a request.
///
/// # Panics
/// One is preferred (χ² with 7 degrees of freedom, of a fixed seed, at p = 0.001), or the strategy refuses
/// the settings.
pub fn check_ties<S: Strategy>(settings: &str) {
    const TARGETS: u32 = 8;
    const CHI_SQUARE_MAX: f64 = 24.32;
    let mut host = StrategyHost::<S>::new(settings, 1).expect("good settings");
    (0..TARGETS).for_each(|_| _ = host.add(0.5));
    let mut counts = [[0_u32; TARGETS as usize]; 2];
    for _ in 0..8_000 {
        let first = host.pick().expect("eight are eligible");
        let others: Vec<_> = (0..TARGETS).filter(|slot| *slot != first.0).collect();
        let second = host.pick_among(&others).expect("seven are eligible");
        counts[0][first.index()] += 1;
        counts[1][second.index()] += 1;
        host.now_ms += 10;
        (0..TARGETS).for_each(|slot| host.change(slot, |target| target.picks = 0));
    }
    for (counts, of) in counts.iter().zip(["first", "second"]) {
        let chi_square: f64 =
            counts.iter().map(|count| (f64::from(*count) - 1e3).powi(2) / 1e3).sum();
        assert!(chi_square < CHI_SQUARE_MAX, "{of} choices: {chi_square} {counts:?}");
    }
}

/// Checks that two equal targets that stand side by side have equal shares where the three others are
/// worse by load, requests inside and latency: of a strategy that always takes the best.
///
/// # Panics
/// One is preferred (χ² with one degree of freedom, of a fixed seed, at p = 0.001) or a worse one
/// picked, or the strategy refuses the settings.
pub fn check_best_ties<S: Strategy>(settings: &str) {
    const CHI_SQUARE_MAX: f64 = 10.83;
    for is_among in [false, true] {
        let mut host = StrategyHost::<S>::new(settings, 1).expect("good settings");
        (0..5).for_each(|_| _ = host.add(0.5));
        let mut counts = [0_u32; 5];
        for _ in 0..2_000 {
            for slot in 0..5 {
                let worse = u32::from(slot > 1);
                host.change(slot, |target| {
                    (target.load, target.picks) = (0.5 + f64::from(worse), 0);
                    (target.in_flight, target.latency_us) = (worse, 1_000 + worse);
                });
            }
            host.now_ms += 10;
            let all = [0, 1, 2, 3, 4];
            let picked = if is_among { host.pick_only(&all) } else { host.pick() };
            counts[picked.expect("five are eligible").index()] += 1;
        }
        let chi_square = (f64::from(counts[0]) - 1e3).powi(2) / 500.0;
        let is_fair = chi_square < CHI_SQUARE_MAX && counts[2..] == [0; 3];
        assert!(is_fair, "among candidates: {is_among}, {counts:?}");
    }
}

/// The share of a target that fails half of what it gets, at once and so without any load, among three that
/// work; 1: its fair share. Reports come after every eighth pick.
///
/// # Panics
/// The strategy refuses the settings, or picks nobody.
#[must_use]
pub fn share_of_failing<S: Strategy>(settings: &str) -> f64 {
    const ROUNDS: u16 = 250;
    let mut host = StrategyHost::<S>::new(settings, 1).expect("good settings");
    (0..4).for_each(|_| _ = host.add(0.5));
    let mut share = 0.0;
    for _ in 0..ROUNDS {
        host.now_ms += 1_000;
        for slot in 0..4 {
            host.change(slot, |target| {
                (target.picks, target.latency_us) = (0, 1_000);
                (target.load, target.in_flight, target.error_rate) =
                    if slot == 0 { (0.0, 0, 0.5) } else { (0.5, 4, 0.0) };
            });
        }
        let shares = host.shares(8);
        assert_eq!(shares.iter().sum::<usize>(), 8, "somebody is picked");
        share += shares[0] as f64;
    }
    share / f64::from(2 * ROUNDS)
}

/// The shares of two targets that have been silent for long, of which one was light and one was heavy,
/// among six whose loads are alike and between; 1: the fair share.
///
/// # Panics
/// The strategy refuses the settings.
#[must_use]
pub fn shares_of_silent<S: Strategy>(settings: &str) -> [f64; 2] {
    const ROUNDS: u32 = 500;
    let mut host = StrategyHost::<S>::new(settings, 1).expect("good settings");
    let mut sums = [0.0; 2];
    (0..8).for_each(|_| _ = host.add(0.5));
    for round in 0..ROUNDS {
        host.now_ms += 1_000;
        let is_silent = round >= ROUNDS / 10;
        for slot in (0..8).filter(|slot| !is_silent || *slot > 1) {
            let load = [0.1, 0.9].get(slot as usize).copied();
            host.change(slot, |target| (target.load, target.picks) = (load.unwrap_or(0.5), 0));
        }
        let shares = host.shares(8);
        if round >= ROUNDS / 5 {
            sums = [sums[0] + shares[0] as f64, sums[1] + shares[1] as f64];
        }
    }
    sums.map(|sum| sum / f64::from(ROUNDS - ROUNDS / 5))
}

/// Changes a target into another, of any kind that the contract allows.
fn disturb(target: &mut Target, draw: u32) {
    let of = |bits: u32| (draw >> bits) as usize % 4;
    target.load = [f64::NAN, 0.0, 0.5, f64::INFINITY][of(0)];
    target.weight = [1.0, 2.5, f64::MIN_POSITIVE, f64::MAX][of(2)];
    target.in_flight = [0, 1, 7, u32::MAX][of(4)];
    target.picks = [0, 1, 7, u32::MAX][of(6)];
    target.latency_us = [0, 1, 7, u32::MAX][of(8)];
    target.error_rate = [0.0, 0.0, 0.5, 1.0][of(10)];
    target.warm = [1.0, 1.0, 0.5, 0.0][of(12)];
    target.eligible = of(14) > 0;
}

/// One request; no candidates: all are.
fn check_answer<S: Strategy>(host: &mut StrategyHost<S>, present: &[bool], candidates: &[u32]) {
    let request = Request { key: host.random % 9, ..host.request() };
    let slots = candidates.iter().copied().map(Slot).collect();
    let picked = match candidates {
        [] => host.runner.pick(&request),
        _ => host.runner.pick_among(&request, slots),
    };
    let may_go = |target: &Target| {
        let is_candidate = candidates.is_empty() || candidates.contains(&target.slot.0);
        target.eligible && present[target.slot.index()] && is_candidate
    };
    let allowed: Vec<_> = host.targets.iter().filter(|target| may_go(target)).collect();
    assert_eq!(picked.is_some(), !allowed.is_empty(), "a target wherever there is one");
    let is_allowed = |slot: Slot| allowed.iter().any(|target| target.slot == slot);
    assert!(picked.is_none_or(is_allowed), "{picked:?} is not one of {allowed:?}");
}

/// Plays the host for a formula.
#[derive(Debug)]
pub struct FormulaHost<F> {
    runner: FormulaRunner<F>,
    /// The clock that evaluations carry, in milliseconds.
    pub now_ms: u64,
}

impl<F: Formula> FormulaHost<F> {
    /// A configured formula.
    ///
    /// # Errors
    /// What the formula says of the settings.
    pub fn new(settings: &str) -> Result<Self, String> {
        let mut runner = FormulaRunner::default();
        runner.configure(settings)?;
        Ok(Self { runner, now_ms: 0 })
    }

    /// The load of a target in slot 0 that reports these metrics; infinity where one without a fallback
    /// is missing, as the host would have it.
    pub fn load(&mut self, metrics: &[(&str, f64)]) -> f64 {
        self.load_of(0, metrics)
    }

    /// The same for the target in `slot`.
    pub fn load_of(&mut self, slot: u32, metrics: &[(&str, f64)]) -> f64 {
        let mut values = Vec::new();
        for wanted in self.runner.metrics() {
            let reported = metrics.iter().find(|(name, _)| *name == wanted.name);
            match reported.map(|(_, value)| *value).or(wanted.fallback) {
                Some(value) => values.push(value),
                None => return f64::INFINITY,
            }
        }
        let loads = self.runner.evaluate(self.now_ms, [Slot(slot)].into_iter(), &values);
        loads.first().copied().unwrap_or(f64::NAN)
    }

    /// The runner itself, for what this harness does not cover.
    pub fn runner(&mut self) -> &mut FormulaRunner<F> {
        &mut self.runner
    }
}

/// One row outside any host, for calling [`Formula::load`] directly.
#[must_use]
pub fn row(values: &[f64]) -> Row<'_> {
    Row { now_ms: 0, slot: Slot(0), values }
}

/// SplitMix64: the next state is also the draw.
fn splitmix(state: u64) -> u64 {
    math::mix(state.wrapping_add(math::GOLDEN))
}
