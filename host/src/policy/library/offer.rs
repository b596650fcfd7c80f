//! Contents that operators offer: each is compiled on a thread of its own while everything else goes on, then, when who
//! asked has seen it start, it is used like any other generation.
//!
//! Invariant: what became of a name's last upload stays shown, for who did not wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::module::{Form, Generation, Loading, Module};
use super::super::signature::{Vouch, for_content};
use super::super::steps::Steps;
use super::{Kept, Library, WishError};

/// A content that is being compiled.
pub struct Offer {
    name: Arc<str>,
    form: Form,
    bytes: Vec<u8>,
    signatures: Option<String>,
    vouch: Vouch,
    steps: Steps,
    loading: Loading,
}

/// The last upload of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// The content.
    pub generation: Generation,
    /// When it came.
    pub since: Instant,
    /// What became of it.
    pub fate: Fate,
}

/// What becomes of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is being checked and compiled.
    Compiling,
    /// It was taken.
    Used,
    /// It was not, for this reason.
    Refused(String),
}

impl Library {
    /// Begins to compile a file's content, with its signatures if there are any; nothing is written or used yet,
    /// see [`use_now`](Self::use_now).
    ///
    /// # Errors
    /// Nobody vouches for it, or it cannot be begun.
    pub fn offer(
        &mut self,
        name: &str,
        form: Form,
        bytes: Vec<u8>,
        signatures: Option<&str>,
    ) -> Result<Offer, WishError> {
        let (name, steps): (Arc<str>, _) = (Arc::from(name), Steps::default());
        let generation = Generation::of(&bytes);
        let signatures = signatures.map(|text| for_content(text, generation)).transpose();
        let signatures = signatures.map_err(WishError::NotSigned)?;
        let vouch = self.vouch(generation, signatures.as_deref())?;
        let wake = self.wake.clone();
        let wake = move || wake.iter().for_each(|wake| wake());
        let loading = Module::start(&self.engine(&name), form, &bytes, &steps, wake);
        let loading = loading.map_err(|error| WishError::Refused(error.to_string()))?;
        let entry = self.entries.entry(Arc::clone(&name)).or_default();
        let fate = Fate::Compiling;
        entry.uploaded = Some(Uploaded { generation, since: Instant::now(), fate });
        self.show_loading(&name, Some(generation));
        Ok(Offer { name, form, bytes, signatures, vouch, steps, loading })
    }

    /// Shows what became of an upload, and that it is not compiled any more.
    pub fn end_of_offer(&mut self, name: &str, fate: Fate) {
        let entry = self.entries.get_mut(name);
        if let Some(uploaded) = entry.and_then(|entry| entry.uploaded.as_mut()) {
            uploaded.fate = fate;
        }
        let beside = self.compiling.as_ref().and_then(|compiling| compiling.of(name));
        self.show_loading(&Arc::from(name), beside);
    }
}

impl Offer {
    /// The generation, or what is wrong with it; `None`: not yet.
    pub fn poll(&mut self) -> Option<Result<Kept, WishError>> {
        let module = match self.loading.poll()? {
            Ok(module) => module,
            Err(error) => return Some(Err(WishError::Refused(error.to_string()))),
        };
        let kept = Kept::new(module, self.form, &self.bytes, &self.steps);
        let (signatures, vouch) = (self.signatures.clone(), self.vouch.clone());
        Some(Ok(Kept { signatures, vouch, ..kept }))
    }

    /// A look before this is of no use, if nobody is woken.
    #[must_use]
    pub fn looks_in(&self) -> Duration {
        self.loading.looks_in()
    }

    /// Whose it is to be.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}
