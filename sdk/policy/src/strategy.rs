//! The strategy trait and what drives it: calls of the contract in, answers out.
//!
//! [`StrategyRunner`] is the same code inside a guest and in a native test or benchmark; the Wasm
//! exports only convert types around it.

use crate::{Fleet, GoesBy, PolicyInfo, Request, Slot, Target, math};

/// Chooses a target for each request.
///
/// Only [`pick`](Strategy::pick) must be written. The fleet is kept by the SDK; a strategy that
/// needs an index of its own maintains it in `update` and `leave`.
pub trait Strategy: Default + 'static {
    /// JSON Schema of the settings; the default allows none. The host checks settings by it before
    /// [`configure`](Self::configure), so that an operator is told every mistake at once (types, enums,
    /// bounds, known keys, items, choices and references inside it; not patterns and formats), and shows
    /// `description` and `default`. At most 64 KiB.
    const SETTINGS_SCHEMA: &'static str = crate::settings::NONE_SCHEMA;

    /// What the choice goes by. The default judges loads ([`Candidate::load`](crate::Candidate::load)): what is
    /// not known, old, or of a target that fails does not count as it is ([`belief`](crate::belief)). Costs some
    /// 30 ns a changed target.
    const GOES_BY: GoesBy = GoesBy::Loads;

    /// Takes the settings (a JSON object) and a seed. Called once, before any other function.
    ///
    /// # Errors
    /// What is wrong with the settings, in words for the operator; the host keeps the old policy.
    fn configure(&mut self, settings: &str, seed: u64) -> Result<(), String> {
        let _ = seed; // a strategy that needs none of its own draws from the request
        crate::settings::none(settings)
    }

    /// These targets are new or have changed, if only in what their load counts as; `fleet` already holds
    /// them.
    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        let _ = (fleet, changed); // most strategies read the fleet when they pick
    }

    /// These targets are gone from `fleet`; their slots may be given to others.
    fn leave(&mut self, fleet: &Fleet, slots: &[Slot]) {
        let _ = (fleet, slots);
    }

    /// The target for one request, out of `fleet.eligible()`; `None` when there is none.
    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot>;

    /// May this target still accept? The default: when it is eligible.
    fn admit(&mut self, fleet: &Fleet, slot: Slot) -> bool {
        fleet.get(slot).is_some_and(|target| target.eligible)
    }

    /// Sessions that should move. The default: none.
    fn rebalance(&mut self, fleet: &Fleet, now_ms: u64) -> Vec<Relocation> {
        let _ = (fleet, now_ms);
        Vec::new()
    }

    /// State for the next generation of this policy. The default: nothing.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over what the last generation saved; false when it is not understood, and then
    /// nothing was taken over. The default accepts only "nothing".
    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

/// Sessions that should move from one target to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// Where they are.
    pub source: Slot,
    /// Where they should go.
    pub target: Slot,
    /// How many.
    pub sessions: u32,
}

/// A strategy together with its fleet: one guest's worth of state.
#[derive(Debug, Default)]
pub struct StrategyRunner<S> {
    strategy: S,
    fleet: Fleet,
    changed: Vec<Slot>,
    /// Random bits of the request that was asked for last, which tell one from another, and how many choices
    /// were made for it.
    pub(crate) asked: Option<(u64, u64)>,
}

impl<S: Strategy> StrategyRunner<S> {
    /// What the strategy of crate `package` says of itself.
    #[must_use]
    pub fn describe(package: &str, version: &str) -> PolicyInfo {
        PolicyInfo::of_package(package, version, S::SETTINGS_SCHEMA)
    }

    /// See [`Strategy::configure`].
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub fn configure(&mut self, settings: &str, seed: u64) -> Result<(), String> {
        self.strategy.configure(settings, seed)
    }

    /// New or changed targets.
    pub fn update(&mut self, now_ms: u64, hosts: u32, targets: impl IntoIterator<Item = Target>) {
        self.changed.clear();
        for target in targets {
            self.changed.push(target.slot);
            self.fleet.update(now_ms, hosts, target);
        }
        self.fleet.judge(S::GOES_BY, &mut self.changed);
        self.strategy.update(&self.fleet, &self.changed);
    }

    /// Targets that are gone.
    pub fn leave(&mut self, slots: &[Slot]) {
        for slot in slots {
            self.fleet.leave(*slot);
        }
        self.strategy.leave(&self.fleet, slots);
    }

    /// One pick, counted as one more of its target's `picks`.
    pub fn pick(&mut self, request: &Request) -> Option<Slot> {
        self.fleet.is_further = false;
        self.asked = Some((request.random, 1));
        self.fleet.serve(request);
        let slot = self.strategy.pick(&self.fleet, request)?;
        self.fleet.count_pick(slot);
        Some(slot)
    }

    /// One pick out of `candidates`, counted likewise.
    pub fn pick_among(&mut self, request: &Request, candidates: Vec<Slot>) -> Option<Slot> {
        let before = self.asked.filter(|(random, _)| *random == request.random);
        let choices = before.map_or(0, |(_, choices)| choices);
        self.asked = Some((request.random, choices + 1));
        // Each choice has random bits of its own: the second is not to follow from the first.
        let random = if choices == 0 {
            request.random
        } else {
            math::mix(request.random.wrapping_add(choices))
        };
        let request = &Request { random, ..*request };
        let Self { strategy, fleet, .. } = self;
        fleet.is_further = choices > 0;
        fleet.serve(request);
        let slot = fleet.limited_to(candidates, |fleet| strategy.pick(fleet, request))?;
        self.fleet.count_pick(slot);
        Some(slot)
    }

    /// See [`Strategy::admit`].
    pub fn admit(&mut self, slot: Slot) -> bool {
        self.strategy.admit(&self.fleet, slot)
    }

    /// See [`Strategy::rebalance`].
    pub fn rebalance(&mut self, now_ms: u64) -> Vec<Relocation> {
        self.strategy.rebalance(&self.fleet, now_ms)
    }

    /// See [`Strategy::save`].
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        self.strategy.save()
    }

    /// See [`Strategy::restore`].
    pub fn restore(&mut self, state: &[u8]) -> bool {
        self.strategy.restore(state)
    }
}

/// Exports a [`Strategy`] as this crate's policy. Natively it expands to nothing, so that tests and
/// simulations can link many policies.
#[macro_export]
macro_rules! export_strategy {
    ($strategy:ty) => {
        #[cfg(target_arch = "wasm32")]
        $crate::export_strategy_guest!($strategy);
    };
}
