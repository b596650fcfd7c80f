//! A configuration on its way: taken when the policies that lie in its folder are compiled, so that a pool that is
//! new has its guests when it is offered. What else there is to do goes on meanwhile.
//!
//! Invariants: each file that was there is waited for once, also if it changes again; a later configuration takes the
//! place of one that was not taken yet, and whoever waits is told with it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::{Setup, Supply};
use crate::config::PoolConfig;

/// What is taken soon.
pub(super) struct Coming {
    pools: Vec<PoolConfig>,
    /// Files that are not compiled yet.
    files: BTreeSet<PathBuf>,
    done: Vec<oneshot::Sender<()>>,
}

impl Supply {
    /// Looks for what this configuration needs.
    pub(super) fn prepare(&mut self, setup: Setup) {
        let Setup { pools, folder, rules, done } = setup;
        self.library.set_rules(rules);
        self.move_to(folder);
        if self.look() {
            self.supply();
        }
        let earlier = self.coming.take().map(|coming| coming.done);
        let done = earlier.into_iter().flatten().chain([done]).collect();
        self.coming = Some(Coming { pools, files: self.library.pending(), done });
    }

    /// This file is compiled, or something is wrong with it.
    pub(super) fn came(&mut self, file: &Path) {
        if let Some(coming) = &mut self.coming {
            coming.files.remove(file);
        }
    }

    /// Takes what has all its files.
    pub(super) fn configure_if_ready(&mut self) {
        let Some(coming) = &mut self.coming else { return };
        // Some may be gone, or were bad.
        let pending = self.library.pending();
        coming.files.retain(|file| pending.contains(file));
        let Some(Coming { pools, done, .. }) = self.coming.take_if(|of| of.files.is_empty()) else {
            return;
        };
        self.configure(&pools);
        for done in done {
            done.send(()).ok(); // nobody waits if the process is stopping
        }
    }
}
