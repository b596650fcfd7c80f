//! Which policies are in shadow: what the configuration or an operator wants, as runs that are started,
//! replaced, ended and promoted.
//!
//! A run is of one candidate generation beside one generation that serves: when either is another one,
//! the next run begins. Invariants: a run that has ended stays as it is, shown, until what is wanted is
//! another one or an operator asks again; a promotion is a swap like any other, written into the folder
//! under the name of the pool's policy.

use std::sync::Arc;

use super::super::pool::{Wanted, index};
use super::super::shadow::{Guests, Running, Shown, Spec, State, Surroundings};
use super::{Make, Served, Supply, no_policy};
use crate::config::{PromoteConfig, ShadowConfig};
use crate::policy::{Decider, Generation, Kind, Module, WishError};

/// A shadow that an operator wants.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowWish {
    /// The pool's name; empty: `default`.
    pub pool: String,
    /// The beginning of a generation that is kept; empty: the newest.
    pub generation: String,
    /// Share of the picks, above 0 to 1.
    pub share: f64,
    /// When it is promoted by itself; `None`: by hand.
    pub promote: Option<PromoteConfig>,
}

/// A pool's shadow.
#[derive(Default)]
pub(super) struct Place {
    /// As configured.
    config: Option<ShadowConfig>,
    /// What an operator wants instead, until the configuration says something else.
    by_hand: Option<ByHand>,
    /// What was started, or could not be, and the run.
    current: Option<(Spec, Option<Running>)>,
}

enum ByHand {
    /// This candidate; with a module: this generation of it.
    Wanted {
        policy: Arc<str>,
        pinned: Option<Arc<Module>>,
        share: f64,
        bounds: Option<PromoteConfig>,
    },
    /// None.
    Off,
}

impl Place {
    /// What the configuration wants; another word of it overrides the operator's.
    pub(super) fn configure(&mut self, config: Option<&ShadowConfig>) {
        if self.config.as_ref() != config {
            self.config = config.cloned();
            self.by_hand = None;
        }
    }

    /// Ends the run like this.
    pub(super) fn end(&mut self, state: State, ending: &mut Vec<Running>) {
        if let Some((_, Some(running))) = self.current.take() {
            running.end(state);
            ending.push(running);
        }
    }

    fn candidate(&self) -> Option<&Arc<str>> {
        self.current.as_ref().map(|(spec, _)| &spec.candidate.wanted.policy)
    }
}

impl Supply {
    /// Does what an operator wants of a shadow.
    pub(super) fn shadow(&mut self, name: &str, wish: ShadowWish) -> Result<(), WishError> {
        let place = self.place_of(&wish.pool)?;
        let entry = self.library.entries().get(name);
        let entry = entry.ok_or_else(|| WishError::Unknown(name.to_owned()))?;
        let pinned = match &*wish.generation {
            "" => None,
            generation => {
                let kept = entry.kept(generation).map(|kept| Arc::clone(&kept.module));
                Some(kept.ok_or_else(|| {
                    WishError::NotKept(format!("generation {generation} of {name} is not kept"))
                })?)
            }
        };
        let served = &mut self.served[place];
        let ShadowWish { share, promote: bounds, .. } = wish;
        let policy = Arc::from(name);
        served.shadow.by_hand = Some(ByHand::Wanted { policy, pinned, share, bounds });
        // Whoever asks again wants it to begin again.
        let again = State::Stopped("an operator began it anew".to_owned());
        served.shadow.end(again, &mut self.ending);
        self.settle_shadow(place);
        let report = self.served[place].pool.shadow().map(|shown| shown.report());
        match report.map(|report| report.state.clone()) {
            Some(State::Waiting(why) | State::Stopped(why)) => Err(WishError::Shadow(why)),
            _ => Ok(()),
        }
    }

    /// Ends a policy's shadows, in one pool or in all.
    pub(super) fn end_shadow(&mut self, name: &str, pool: Option<&str>) -> Result<(), WishError> {
        let only = pool.map(|pool| self.place_of(pool)).transpose()?;
        let mut found = false;
        for (place, Served { pool, shadow, .. }) in self.served.iter_mut().enumerate() {
            let is_it = pool.shadow().is_some_and(|shown| *shown.policy == *name);
            if !is_it || only.is_some_and(|only| only != place) {
                continue;
            }
            found = true;
            shadow.by_hand = Some(ByHand::Off);
            let state = State::Stopped("by an operator".to_owned());
            tracing::info!(pool = pool.name(), policy = name, "shadow run ended by an operator");
            shadow.end(state, &mut self.ending);
        }
        let what = || WishError::Shadow(format!("{name} is not in shadow"));
        found.then_some(()).ok_or_else(what)
    }

    /// Promotes a policy wherever it is in shadow.
    pub(super) fn promote_by_hand(&mut self, name: &str) -> Result<Generation, WishError> {
        let is_it = |served: &Served| served.shadow.candidate().is_some_and(|of| **of == *name);
        let places: Vec<_> =
            (0..self.served.len()).filter(|place| is_it(&self.served[*place])).collect();
        let what = format!("{name} is not in shadow: name a generation of it that is kept");
        let mut promoted = Err(WishError::Shadow(what));
        for place in places {
            promoted = Ok(self.promote(place, "an operator's word")?);
        }
        promoted
    }

    /// A run's bounds hold.
    pub(super) fn passed(&mut self, pool: u64, serial: u64, figures: &str) {
        let is_it = |served: &Served| {
            let run = served.shadow.current.as_ref().and_then(|(_, run)| run.as_ref());
            served.pool.number == pool && run.is_some_and(|run| run.shown.serial() == serial)
        };
        let Some(place) = self.served.iter().position(is_it) else { return };
        if let Err(error) = self.promote(place, figures) {
            let Served { pool, shadow, .. } = &mut self.served[place];
            tracing::error!(pool = pool.name(), %error, "the policy in shadow cannot be promoted");
            if let Some((_, Some(run))) = &shadow.current {
                run.end(State::Stopped(format!("it cannot be promoted: {error}")));
            }
        }
    }

    /// Makes a pool's candidate what serves there, and wherever else that name is used.
    fn promote(&mut self, place: usize, why: &str) -> Result<Generation, WishError> {
        let Served { pool, shadow, .. } = &self.served[place];
        let Some((spec, _)) = &shadow.current else {
            return Err(WishError::Shadow("nothing is in shadow".to_owned()));
        };
        let (kind, candidate) = (spec.kind(), &spec.candidate);
        let (from, generation) =
            (Arc::clone(&candidate.wanted.policy), candidate.module.generation);
        let (pool, name) = (Arc::clone(pool), pool.wanted(kind).policy);
        let kept = self.library.kept_of(&name, &from, generation)?;
        let adopted = self.try_and_use(&name, kept)?;
        tracing::info!(
            pool = pool.name(), policy = %name, candidate = %from, %generation, %kind, why,
            "policy promoted from shadow"
        );
        self.served[place].shadow.end(State::Promoted, &mut self.ending);
        self.wished(&name);
        Ok(adopted)
    }

    /// Starts and ends runs so that they are what is wanted now.
    pub(super) fn settle_shadows(&mut self) {
        for place in 0..self.served.len() {
            self.settle_shadow(place);
        }
        let (ended, ending) =
            std::mem::take(&mut self.ending).into_iter().partition(Running::has_ended);
        self.ending = ending;
        let ended: Vec<Running> = ended;
        ended.into_iter().for_each(Running::join);
    }

    /// Ends all runs and waits for their threads.
    pub(super) fn end_shadows(&mut self) {
        for served in &mut self.served {
            let state = State::Stopped("the host stops".to_owned());
            served.shadow.end(state, &mut self.ending);
        }
        std::mem::take(&mut self.ending).into_iter().for_each(Running::join);
    }

    fn settle_shadow(&mut self, place: usize) {
        let wanted = self.wanted_shadow(place);
        let now_ms = self.clock.now_ms();
        let Served { pool, shadow, .. } = &mut self.served[place];
        match wanted {
            Ok(Some(spec)) => {
                if shadow.current.as_ref().is_some_and(|(current, _)| current.is_same(&spec)) {
                    return;
                }
                let state = State::Stopped("another run took its place".to_owned());
                shadow.end(state, &mut self.ending);
                self.start_shadow(place, spec);
            }
            Ok(None) => {
                let state = State::Stopped("it is not wanted any more".to_owned());
                shadow.end(state, &mut self.ending);
                if shadow.by_hand.is_none() {
                    pool.show_shadow(None);
                }
            }
            Err((policy, why)) => {
                let shown = pool.shadow().filter(|shown| *shown.policy == *policy);
                let state = shown.map(|shown| shown.report().state.clone());
                let is_serving = why == SERVES && state == Some(State::Promoted);
                if state.as_ref() == Some(&State::Waiting(why.clone())) || is_serving {
                    return;
                }
                shadow.end(State::Stopped(why.clone()), &mut self.ending);
                tracing::info!(pool = pool.name(), %policy, why, "nothing runs in shadow");
                let shown = Shown::idle(&policy, None, State::Waiting(why), now_ms);
                pool.show_shadow(Some(Arc::new(shown)));
            }
        }
    }

    fn start_shadow(&mut self, place: usize, spec: Spec) {
        let partner = spec.partner.as_ref().unwrap_or(&spec.candidate);
        let of = Surroundings {
            engine: self.library.engine(&spec.candidate.wanted.policy),
            partner: self.library.engine(&partner.wanted.policy),
            fleet: self.scorers.fleet(),
            events: self.events.0.clone(),
            changes: Arc::clone(&self.changes),
            clock: self.clock,
        };
        let Served { pool, shadow, .. } = &mut self.served[place];
        let guests = Guests::tried(&spec, pool, &of).map_err(|error| error.to_string());
        let run = guests.and_then(|guests| {
            Running::start(&spec, guests, pool, of).map_err(|error| error.to_string())
        });
        let (policy, kind) = (&spec.candidate.wanted.policy, spec.kind());
        let (pool_name, generation) = (pool.name(), spec.candidate.module.generation);
        match run {
            Ok(run) => {
                let beside = spec.beside.as_ref().map_or("native".to_owned(), Decider::to_string);
                tracing::info!(
                    pool = pool_name, %policy, %generation, %kind, beside, share = spec.share,
                    "policy runs in shadow"
                );
                pool.show_shadow(Some(Arc::clone(&run.shown)));
                shadow.current = Some((spec, Some(run)));
            }
            Err(why) => {
                let why = format!("generation {generation} does not start: {why}");
                tracing::warn!(pool = pool_name, %policy, %kind, why, "policy not tried in shadow");
                let state = State::Stopped(why);
                let shown = Shown::idle(policy, Some(&spec), state, self.clock.now_ms());
                pool.show_shadow(Some(Arc::new(shown)));
                shadow.current = Some((spec, None));
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// What is to run in shadow of a pool; or its name, and why it cannot.
    fn wanted_shadow(&mut self, place: usize) -> Result<Option<Spec>, (Arc<str>, String)> {
        let Served { pool, seats, shadow, .. } = &self.served[place];
        let (policy, pinned, share, bounds) = match (&shadow.by_hand, &shadow.config) {
            (Some(ByHand::Off), _) | (None, None) => return Ok(None),
            (Some(ByHand::Wanted { policy, pinned, share, bounds }), _) => {
                (Arc::clone(policy), pinned.clone(), *share, bounds.clone())
            }
            (None, Some(ShadowConfig { policy, share, promote })) => {
                (Arc::from(&**policy), None, *share, promote.clone())
            }
        };
        let Some(module) = pinned.or_else(|| self.library.module(&policy)) else {
            let why = no_policy(&self.library, &self.folder, &policy);
            return Err((policy, why));
        };
        let kind = module.kind();
        let settings = pool.wanted(kind).settings;
        let good = seats[index(kind)].good();
        let is_it = |good: &&Make| {
            good.module.generation == module.generation && good.wanted.settings == settings
        };
        if good.filter(is_it).is_some() {
            return Err((policy, SERVES.to_owned()));
        }
        let beside = good.map(|good| Decider {
            policy: Arc::clone(&good.wanted.policy),
            generation: good.module.generation,
        });
        let partner = match (kind, seats[index(Kind::Strategy)].good()) {
            (Kind::Strategy, _) => None,
            (Kind::Formula, Some(strategy)) => Some(strategy.clone()),
            (Kind::Formula, None) => {
                let why = "no strategy has served yet, which would choose by its loads".to_owned();
                return Err((policy, why));
            }
        };
        let names = [Some(&policy), partner.as_ref().map(|of| &of.wanted.policy)];
        let limits = names.into_iter().flatten().map(|name| self.library.limits(name)).collect();
        let candidate = Make { wanted: Wanted { policy, settings }, module };
        Ok(Some(Spec { candidate, partner, limits, beside, share, bounds }))
    }

    fn place_of(&self, pool: &str) -> Result<usize, WishError> {
        let name = if pool.is_empty() { "default" } else { pool };
        let place = self.served.iter().position(|served| served.pool.name() == name);
        place.ok_or_else(|| WishError::UnknownPool(name.to_owned()))
    }
}

/// Why a candidate is not tried that is what serves.
const SERVES: &str = "it is what serves";
