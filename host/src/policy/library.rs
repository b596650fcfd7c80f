//! The policies by name: those inside this program and those in the policies folder.
//!
//! In: what lies in the folder now, and what an operator asks for. Out: the generation to use of each
//! name, those before it, and what is wrong with the others. Identity is the content's hash: touching a
//! file loads nothing, and bytes that were refused are not tried again until they, or their signature,
//! change. Where signatures are required, a file without one waits for it. A file overrides the built-in of its name; a refused file leaves what was there. A file that is removed
//! is used on for a grace period; then the name goes back to the built-in, or, where there is none,
//! to nobody. What an operator asks for is written into the folder first, so that a restart finds it.

mod beside;
mod entry;
mod look;
mod names;
mod offer;
mod rules;
mod wish;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builtin::BUILTIN;
use super::engine::{Limits, PolicyEngine};
use super::module::{Form, Generation, Module, ModuleError};
use super::signature::Vouch;
use super::steps::Steps;
use crate::config::SignatureMode;
pub use entry::{Entry, Kept, Origin, Refused, Waiting};
use names::Nameless;
pub(crate) use names::is_of_policy;
pub use offer::{Fate, Offer, Uploaded};
pub use rules::Rules;
pub use wish::WishError;

/// What lies in a policy file and beside it.
struct Content {
    bytes: Vec<u8>,
    generation: Generation,
    /// The text of its signature file.
    signatures: Option<String>,
    vouch: Vouch,
    /// What was done so far.
    steps: Steps,
}

/// Told of all entries.
type Show = Box<dyn Fn(&BTreeMap<Arc<str>, Entry>) + Send>;

/// All policies by name.
pub struct Library {
    engine: PolicyEngine,
    folder: PathBuf,
    entries: BTreeMap<Arc<str>, Entry>,
    /// Last content seen of each file, good or bad, and who vouched for it.
    seen: BTreeMap<PathBuf, Option<(Generation, Vouch)>>,
    /// What is wrong with the folder was said.
    complained: bool,
    /// Those were told of.
    nameless: Nameless,
    rules: Rules,
    /// Who waits for what is compiled beside; `None`: it is waited for here.
    wake: Option<beside::Wake>,
    compiling: Option<beside::Compiling>,
    /// Files that wait until another one is compiled, in this order.
    turned_away: Vec<PathBuf>,
    /// Told whenever an entry changes.
    show: Show,
}

impl Library {
    /// A library over this folder, which need not exist (yet). Nothing is compiled here. `show` is
    /// told of all entries whenever one changes.
    #[must_use]
    pub fn new(
        engine: PolicyEngine,
        folder: PathBuf,
        show: impl Fn(&BTreeMap<Arc<str>, Entry>) + Send + 'static,
    ) -> Self {
        let built_in = |(name, _): &(&str, _)| {
            (Arc::from(*name), Entry { is_built_in: true, ..Entry::default() })
        };
        Self {
            engine,
            folder,
            entries: BTreeMap::from_iter(BUILTIN.iter().map(built_in)),
            seen: BTreeMap::new(),
            complained: false,
            nameless: Nameless::default(),
            rules: Rules::default(),
            wake: None,
            compiling: None,
            turned_away: Vec::new(),
            show: Box::new(show),
        }
    }

    /// Follows these rules from the next scan on. What serves goes on: only what comes new needs what is
    /// wanted now.
    pub fn set_rules(&mut self, rules: Rules) {
        let old = std::mem::replace(&mut self.rules, rules);
        for (name, entry) in &self.entries {
            // What was too much may not be too much any more.
            let refused = entry.refused.as_ref().map(|refused| &refused.path);
            if let Some(path) = refused.filter(|_| old.limits(name) != self.rules.limits(name)) {
                self.seen.remove(path);
            }
        }
    }

    /// Reads another folder from the next scan on. What the old one held is treated as removed.
    pub fn move_to(&mut self, folder: PathBuf) {
        self.folder = folder;
        self.complained = false;
    }

    /// Whether the compiler gives way to everything else from now on.
    pub fn compile_last(&mut self, last: bool) {
        self.engine.limits.compile_last = last;
    }

    /// What the policy of this name may use.
    #[must_use]
    pub fn limits(&self, name: &str) -> Limits {
        self.rules.limits(name)
    }

    /// The engine within what the policy of this name may use.
    #[must_use]
    pub fn engine(&self, name: &str) -> PolicyEngine {
        let Limits { compile_last, .. } = self.engine.limits;
        self.engine.within(Limits { compile_last, ..self.rules.limits(name) })
    }

    /// Everything known, by name.
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<Arc<str>, Entry> {
        &self.entries
    }

    /// The module of a name; a built-in is compiled when it is first asked for.
    pub fn module(&mut self, name: &str) -> Option<Arc<Module>> {
        let entry = self.entries.get(name)?;
        if entry.generations.is_empty() && entry.is_built_in {
            self.load_built_in(name);
        }
        self.entries.get(name)?.newest().map(|kept| Arc::clone(&kept.module))
    }

    /// The built-in of a name, whatever is in use.
    pub fn built_in_module(&mut self, name: &str) -> Option<Arc<Module>> {
        let entry = self.entries.get(name).filter(|entry| entry.is_built_in)?;
        let kept = entry.generations.iter().find(|kept| kept.origin == Origin::BuiltIn);
        match kept {
            Some(kept) => Some(Arc::clone(&kept.module)),
            None => self.compile_built_in(name).map(|kept| kept.module),
        }
    }

    /// When the next removed file's grace is over.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.entries
            .values()
            .filter_map(|entry| entry.removed)
            .min()
            .map(|at| at + self.rules.grace)
    }

    /// Gives up what was removed long enough ago; true when any entry changed.
    pub fn give_up(&mut self, now: Instant) -> bool {
        let grace = self.rules.grace;
        let (mut back, mut changed) = (Vec::new(), false);
        for (name, entry) in self
            .entries
            .iter_mut()
            .filter(|(_, entry)| entry.removed.is_some_and(|at| now >= at + grace))
        {
            entry.removed = None;
            changed = true;
            if entry.is_built_in {
                back.push(Arc::clone(name));
            } else {
                tracing::warn!(policy = %name, "policy file removed: its last generation is given up");
                entry.is_withdrawn = true;
            }
        }
        for name in back {
            tracing::info!(policy = %name, "policy file removed, the built-in of its name serves");
            self.load_built_in(&name);
        }
        changed
    }

    /// Checks and compiles a file's content and takes it, or notes what is wrong with it.
    fn load(&mut self, path: &Path, name: &Arc<str>, file: Content) {
        let is_kept = |kept: &&Kept| kept.generation() == file.generation;
        let entry = self.entries.get(name);
        let kept = entry.and_then(|entry| entry.generations.iter().find(is_kept)).cloned();
        if kept.is_none() && self.compiling.is_some() {
            self.seen.remove(path); // its turn comes at another look
            self.turned_away.push(path.to_owned());
            return;
        }
        if let (SignatureMode::Warn, Some(why)) = (self.rules.trust.mode(), file.vouch.trouble()) {
            let file = path.display();
            tracing::warn!(policy = %name, %file, why, "policy file is used though no known key vouches for it");
        }
        let form = Form::of(path).unwrap_or(Form::Wasm);
        let compiled = match (kept, self.wake.clone()) {
            (Some(kept), _) => {
                Ok(Kept { content: Some((form, file.bytes.clone().into())), ..kept })
            }
            (None, None) => self.compile(name, form, &file.bytes, &file.steps),
            (None, Some(wake)) => return self.begin(path, name, file, wake),
        };
        let origin = Origin::File(path.to_owned());
        let Content { signatures, vouch, .. } = &file;
        let (signatures, vouch) = (signatures.clone(), vouch.clone());
        match compiled {
            Ok(kept) => self.accept(name, Kept { origin, signatures, vouch, ..kept }),
            Err(error) => self.note_bad(path, name, &file, &error),
        }
    }

    /// A generation from a file's content; it is shown as loading meanwhile.
    fn compile(
        &mut self,
        name: &Arc<str>,
        form: Form,
        bytes: &[u8],
        steps: &Steps,
    ) -> Result<Kept, ModuleError> {
        self.show_loading(name, Some(Generation::of(bytes)));
        let module = Module::load(&self.engine(name), form, bytes, steps);
        self.show_loading(name, None);
        Ok(Kept::new(module?, form, bytes, steps))
    }

    fn show_loading(&mut self, name: &Arc<str>, loading: Option<Generation>) {
        self.entries.entry(Arc::clone(name)).or_default().loading = loading;
        self.shown();
    }

    fn accept(&mut self, name: &Arc<str>, kept: Kept) {
        let entry = self.entries.entry(Arc::clone(name)).or_default();
        let (kind, generation, vouch) = (kept.module.kind(), kept.generation(), kept.vouch.clone());
        let took: Duration = kept.steps.iter().map(|step| step.took).sum();
        let is_of = |path: &Path| kept.origin == Origin::File(path.to_owned());
        entry.refused.take_if(|refused| is_of(&refused.path));
        entry.waiting.take_if(|waiting| is_of(&waiting.path));
        let same = entry.newest().filter(|newest| newest.is_same(&kept));
        let is_signature_alone = same.is_some_and(|newest| newest.vouch != vouch);
        entry.loads += u64::from(!is_signature_alone);
        entry.put(kept);
        self.shown();
        if is_signature_alone {
            tracing::info!(policy = %name, %generation, %vouch, "policy's signature changed");
        } else {
            tracing::info!(policy = %name, %kind, %generation, %vouch, ?took, "policy loaded");
        }
    }

    fn refuse(&mut self, name: &Arc<str>, refused: Refused) {
        let entry = self.entries.entry(Arc::clone(name)).or_default();
        let kept = entry.newest().map(|kept| kept.generation().to_string());
        let kept = kept.as_deref().unwrap_or("none").to_owned();
        let Refused { path, reason, .. } = refused.clone();
        entry.refusals += 1;
        entry.waiting.take_if(|waiting| waiting.path == path);
        entry.refused = Some(refused);
        self.shown();
        let file = path.display();
        tracing::warn!(policy = %name, %file, reason, kept, "policy refused");
    }

    /// What is told can be looked at.
    fn shown(&self) {
        (self.show)(&self.entries);
    }

    fn load_built_in(&mut self, name: &str) {
        if let Some(kept) = self.compile_built_in(name) {
            self.accept(&Arc::from(name), kept);
        }
    }

    fn compile_built_in(&mut self, name: &str) -> Option<Kept> {
        let (name, bytes) = BUILTIN.iter().find(|(built_in, _)| *built_in == name)?;
        match self.compile(&Arc::from(*name), Form::Wasm, bytes, &Steps::default()) {
            Ok(kept) => Some(Kept { content: None, ..kept }),
            Err(error) => {
                tracing::error!(policy = name, %error, "the built-in policy does not load");
                None
            }
        }
    }
}
