//! What operators want of policies: tried, done by the library or a shadow, then every pool is supplied.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::make::Make;
use super::super::pool::index;
use super::{Served, ShadowWish, Supply};
use crate::policy::library::Kept;
use crate::policy::{Form, Generation, Kind, Steps, WishError};

/// What became of a wish: the generation that serves by it, where one does.
pub(super) type Outcome = Result<Option<Generation>, WishError>;

/// What an operator wants, and who waits for it.
#[derive(Debug)]
pub struct Wish {
    /// The policy's name.
    pub name: String,
    /// What to do with it.
    pub action: Action,
    /// Told when pools have what they want now, or why they cannot.
    pub done: oneshot::Sender<Outcome>,
}

/// What an operator can do with a policy.
#[derive(Debug)]
pub enum Action {
    /// Use this file's content from now on.
    Upload {
        /// How it is written.
        form: Form,
        /// The content.
        bytes: Vec<u8>,
        /// The text of its signatures, where it has any.
        signatures: Option<String>,
    },
    /// Use a generation that is kept; empty: the previous one.
    Activate(String),
    /// Remove its files.
    Delete,
    /// Try it in shadow.
    Shadow(ShadowWish),
    /// Try it no more, in this pool or in all.
    EndShadow(Option<String>),
    /// Use what is in shadow.
    Promote,
}

impl Supply {
    /// Does what an operator wants.
    pub(super) fn follow(&mut self, wish: Wish) {
        let Wish { name, action, done } = wish;
        let outcome = match action {
            Action::Upload { form, bytes, signatures } => {
                return self.begin_upload(&name, (form, bytes, signatures), done);
            }
            Action::Activate(generation) => self
                .library
                .kept(&name, &generation)
                .and_then(|kept| self.try_and_use(&name, kept))
                .map(Some),
            Action::Delete => self.library.delete(&name).map(|()| None),
            Action::Promote => self.promote_by_hand(&name).map(Some),
            // These change nothing of what serves.
            Action::Shadow(wish) => {
                let outcome = self.shadow(&name, wish).map(|()| None);
                return self.answer(&name, outcome, done);
            }
            Action::EndShadow(pool) => {
                let outcome = self.end_shadow(&name, pool.as_deref()).map(|()| None);
                return self.answer(&name, outcome, done);
            }
        };
        if outcome.is_ok() {
            self.overtake(&name);
            self.wished(&name);
        }
        self.answer(&name, outcome, done);
    }

    /// Writes and uses a generation that starts in every pool which wants this name: else a restart
    /// would find a file that no pool can use.
    pub(super) fn try_and_use(&mut self, name: &str, kept: Kept) -> Result<Generation, WishError> {
        for Served { pool, .. } in &self.served {
            for kind in [Kind::Formula, Kind::Strategy] {
                let wanted = pool.wanted(kind);
                if *wanted.policy != *name {
                    continue;
                }
                let make = Make { wanted, module: Arc::clone(&kept.module) };
                let tried = make.tried(kind, &self.library.engine(name), &Steps::default());
                tried.map_err(|error| {
                    let pool = pool.name();
                    WishError::Refused(format!("as the {kind} of pool {pool:?}: {error}"))
                })?;
            }
        }
        self.library.use_now(name, kept)
    }

    /// Tells who asked what became of it.
    pub(super) fn answer(&self, name: &str, outcome: Outcome, done: oneshot::Sender<Outcome>) {
        match &outcome {
            Ok(generation) => {
                let generation = generation.map(|generation| generation.to_string());
                tracing::info!(policy = name, generation, "an operator's wish is followed");
            }
            Err(error) => {
                tracing::warn!(policy = name, %error, "an operator's wish is not followed");
            }
        }
        self.changed();
        done.send(outcome).ok(); // who asked may have gone
    }

    /// Gives pools the newest generation of this name: what was tried or quarantined before is tried
    /// again, because somebody wants it.
    pub(super) fn wished(&mut self, name: &str) {
        for Served { pool, seats, .. } in &mut self.served {
            for kind in [Kind::Formula, Kind::Strategy] {
                if *pool.wanted(kind).policy == *name {
                    seats[index(kind)].forget();
                    pool.lift_quarantine(kind);
                }
            }
        }
        self.supply();
        self.settle_shadows();
    }
}
