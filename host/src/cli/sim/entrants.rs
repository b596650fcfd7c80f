//! Who takes part in a comparison: names and files in, started modules or every problem out.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::nearest;
use crate::policy::{Kind, Module, PolicyEngine, built_in, built_in_names};
use crate::sim::chooser::GuestChooser;
use crate::sim::compare::{Contender, Entrant};
use crate::sim::scenario::Scenario;
use crate::watch::read;

/// Whom the user's own strategies stand beside.
#[derive(Clone, Copy)]
pub(super) enum Others<'a> {
    /// The scenario's.
    Scenario,
    /// The scenario's, then all others that are built in.
    All,
    /// These.
    Only(&'a [String]),
}

/// Finds modules.
pub(super) struct Entrants<'a> {
    pub(super) engine: &'a PolicyEngine,
    pub(super) policies: &'a Path,
    pub(super) scenario: &'a Scenario,
}

impl Entrants<'_> {
    /// The user's own, the others, then the baselines; or all problems of the first that have any.
    pub(super) fn all(&self, own: &[String], others: Others<'_>) -> Result<Vec<Entrant>, String> {
        let (mut entrants, mut problems) = (Vec::new(), Vec::new());
        let mut names = BTreeSet::new();
        for written in own {
            match self.own(written) {
                Ok(entrant) if names.insert(entrant.name.clone()) => entrants.push(entrant),
                Ok(entrant) => {
                    problems.push(format!("--strategy {written}: {} is there twice", entrant.name))
                }
                Err(problem) => problems.push(format!("--strategy {written}: {problem}")),
            }
        }
        if !problems.is_empty() {
            return Err(problems.join("\n")); // at once: the others take time to compile
        }
        let (wanted, key) = match others {
            Others::Only(names) => (names, "--only"),
            Others::Scenario | Others::All => (&*self.scenario.strategies, "strategies"),
        };
        for name in wanted {
            if !names.insert(name.clone()) {
                continue; // the user's own stands for it
            }
            match self.named(name, false) {
                Ok(entrant) => entrants.push(entrant),
                Err(problem) => problems.push(format!("{key}: {problem}")),
            }
        }
        if let Others::All = others {
            let rest = built_in_names().filter(|name| !names.contains(*name));
            entrants.extend(self.strategies(rest)?);
        }
        entrants.extend(self.scenario.baselines.iter().map(|(name, baseline)| Entrant {
            name: (*name).to_owned(),
            own: false,
            contender: Contender::Baseline(*baseline),
        }));
        match problems.is_empty() {
            true => Ok(entrants),
            false => Err(problems.join("\n")),
        }
    }

    /// Those of these built-in policies that are strategies.
    fn strategies<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<Vec<Entrant>, String> {
        let modules = names.filter_map(|name| built_in(name).map(|bytes| (name, bytes)));
        let mut entrants = Vec::new();
        for (name, bytes) in modules {
            let module = self.module(name, bytes)?;
            if module.kind() == Kind::Strategy {
                entrants.push(self.start(
                    name.to_owned(),
                    module,
                    self.scenario.settings(name),
                    false,
                )?);
            }
        }
        Ok(entrants)
    }

    /// A file, or a name.
    fn own(&self, written: &str) -> Result<Entrant, String> {
        let path = Path::new(written);
        if path.extension().is_none() && path.components().count() == 1 {
            return self.named(written, true);
        }
        let stem = path.file_stem().map_or_else(|| written.into(), |stem| stem.to_string_lossy());
        let settings = self.scenario.settings(&stem);
        // A file of a name that is built in stands beside it.
        let name = match built_in(&stem).is_some() {
            true => format!("{stem}.wasm"),
            false => stem.into_owned(),
        };
        self.entrant(name, &self.file(path)?, settings, true)
    }

    /// A name of the policies folder or of this program. The scenario's own names mean the built-in
    /// first, so that its figures do not depend on what lies in a folder.
    fn named(&self, name: &str, own: bool) -> Result<Entrant, String> {
        let path = self.policies.join(format!("{name}.wasm"));
        let in_folder = || path.is_file().then(|| self.file(&path)).transpose();
        let built_in = built_in(name).map(<[u8]>::to_vec);
        let bytes = match (own, built_in) {
            (false, Some(bytes)) => Some(bytes),
            (_, built_in) => in_folder()?.or(built_in),
        };
        let bytes = bytes.ok_or_else(|| self.unknown(name))?;
        self.entrant(name.to_owned(), &bytes, self.scenario.settings(name), own)
    }

    fn unknown(&self, name: &str) -> String {
        let hint = match nearest(name, built_in_names()) {
            Some(near) => format!("did you mean {near}?"),
            None => "name a .wasm file".to_owned(),
        };
        format!("no strategy {name} is built in or in {}/, {hint}", self.policies.display())
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        let bytes = read(path, self.engine.limits.file_bytes);
        bytes.map_err(|reason| format!("{}: {reason}", path.display()))
    }

    fn module(&self, name: &str, bytes: &[u8]) -> Result<Module, String> {
        Module::from_wasm(self.engine, bytes).map_err(|error| format!("{name}: {error}"))
    }

    fn entrant(
        &self,
        name: String,
        bytes: &[u8],
        settings: String,
        own: bool,
    ) -> Result<Entrant, String> {
        let module = self.module(&name, bytes)?;
        if module.kind() == Kind::Formula {
            return Err(format!("{name} is a formula; what is compared here are strategies"));
        }
        self.start(name, module, settings, own)
    }

    /// An entrant that has started once: what does not is told before anything runs.
    fn start(
        &self,
        name: String,
        module: Module,
        settings: String,
        own: bool,
    ) -> Result<Entrant, String> {
        GuestChooser::start(self.engine, &name, &module, &settings, 0)?;
        Ok(Entrant { name, own, contender: Contender::Strategy(Box::new(module), settings) })
    }
}
