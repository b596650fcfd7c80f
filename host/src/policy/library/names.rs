//! Names of files to names of policies, and a word to who named a file so that it cannot be used.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::module::Form;

/// The files that nobody can name, each told once while it is there.
#[derive(Debug, Default)]
pub(super) struct Nameless(BTreeSet<PathBuf>);

impl Nameless {
    /// Tells of those among the files of the folder that are new.
    pub(super) fn tell(&mut self, files: &[PathBuf]) {
        let nameless = files.iter().filter(|path| is_meant(path) && policy_name(path).is_none());
        let nameless: BTreeSet<_> = nameless.cloned().collect();
        for file in nameless.difference(&self.0) {
            // Its name may hold anything: escaped.
            tracing::warn!(
                ?file,
                "policy file is not used, because pools cannot name it: rename it to NAME.wasm or \
                 NAME.formula, NAME of ASCII letters, digits, '-', '_' and inner '.'"
            );
        }
        self.0 = nameless;
    }
}

/// Whether somebody means this to be a policy file, by its ending; what is hidden is not looked at.
fn is_meant(path: &Path) -> bool {
    let is_hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    Form::of(path).is_some() && !path.file_name().is_none_or(is_hidden)
}

/// Whether a file is a policy, or the signatures of one.
pub(crate) fn is_of_policy(path: &Path) -> bool {
    let is_beside = path.extension().is_some_and(|extension| extension == "sig");
    let file = if is_beside { path.with_extension("") } else { path.to_owned() };
    policy_name(&file).is_some()
}

/// The name that a file gives its policy; `None`: not a policy file.
pub(crate) fn policy_name(path: &Path) -> Option<Arc<str>> {
    Form::of(path)?;
    // A name that is not UTF-8 or has odd characters cannot be named by a pool either.
    let stem = path.file_stem()?.to_str()?;
    crate::config::is_policy_name(stem).then(|| Arc::from(stem))
}
