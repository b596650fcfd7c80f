//! Policies that operators upload: compiled beside everything else, then tried, written and used.
//!
//! Invariants: no other wish waits for a compilation, and no compilation for another; a later wish for the same name is
//! the operator's last word, and what was still compiled for it is not used.

use std::time::Instant;

use tokio::sync::oneshot;

use super::Supply;
use super::wishes::Outcome;
use crate::policy::library::{Fate, Offer};
use crate::policy::{Form, WishError};

/// Uploads that are compiled at one time: their threads stand back for all that serves, and still each
/// has the compiler's memory.
const UPLOADS_MAX: usize = 2;

/// A content on its way, and who waits for it.
pub(super) struct Upload {
    offer: Offer,
    done: oneshot::Sender<Outcome>,
}

impl Supply {
    /// Begins to compile an upload; it is answered when it is used, or why it is not.
    pub(super) fn begin_upload(
        &mut self,
        name: &str,
        (form, bytes, signatures): (Form, Vec<u8>, Option<String>),
        done: oneshot::Sender<Outcome>,
    ) {
        self.overtake(name);
        let offer = if self.uploads.len() < UPLOADS_MAX {
            self.library.offer(name, form, bytes, signatures.as_deref())
        } else {
            let what = "uploads are being compiled: try again when one of them is done";
            Err(WishError::Busy(format!("{UPLOADS_MAX} {what}")))
        };
        match offer {
            Ok(offer) => self.uploads.push(Upload { offer, done }),
            Err(error) => self.answer(name, Err(error), done),
        }
    }

    /// A later wish for this name came.
    pub(super) fn overtake(&mut self, name: &str) {
        for Upload { done, .. } in self.uploads.extract_if(.., |upload| upload.offer.name() == name)
        {
            let error = WishError::Overtaken(name.to_owned());
            self.library.end_of_offer(name, Fate::Refused(error.to_string()));
            tracing::info!(policy = name, "an upload is overtaken by a later wish");
            done.send(Err(error)).ok(); // who asked may have gone
        }
    }

    /// Uses what was compiled meanwhile.
    pub(super) fn collect_uploads(&mut self) {
        let mut place = 0;
        while let Some(upload) = self.uploads.get_mut(place) {
            let Some(compiled) = upload.offer.poll() else {
                place += 1;
                continue;
            };
            let Upload { offer, done } = self.uploads.remove(place);
            let name = offer.name();
            // Keys may have changed meanwhile.
            let kept = compiled.and_then(|kept| self.library.vouched(kept));
            let outcome = kept.and_then(|kept| self.try_and_use(name, kept)).map(Some);
            let fate = match &outcome {
                Ok(_) => Fate::Used,
                Err(error) => Fate::Refused(error.to_string()),
            };
            self.library.end_of_offer(name, fate);
            if outcome.is_ok() {
                self.wished(name);
            }
            self.answer(name, outcome, done);
        }
    }

    /// When to look at them though nobody was woken.
    pub(super) fn uploads_due(&self) -> Option<Instant> {
        self.uploads.iter().map(|upload| Instant::now() + upload.offer.looks_in()).min()
    }
}
