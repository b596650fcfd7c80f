//! Changes of the configuration file in, a process that follows them out.
//!
//! What decides is the content of the file and of the secrets that it names, however it was changed.
//! What happens to a changed key is the business of the part that it configures; [`EFFECTS`] says it in
//! words. A file with a problem changes nothing: it is told in the log, in `GET /v1/config` and in the
//! metrics. What could not be done is tried again at every look.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::Loadline;
use crate::config::{ConfigError, InForce, Origin, Written, changes};
use crate::watch::{Hint, Pace, Watch};

/// What a change of a key does, by the beginning of its path; the first that fits counts.
const EFFECTS: [(&str, &str); 12] = [
    ("agent.state", "from the next report on"),
    ("agent", "another agent starts and takes over when its windows are full"),
    ("reports.interfaces", "new sockets are opened, then the old ones are closed"),
    ("reports.group", "new sockets are opened, then the old ones are closed"),
    ("reports.tcp", "listeners and connections end, or are taken again"),
    ("reports", "from the next report on"),
    ("host.listen", "the new address is bound, then the old one is closed"),
    ("host.policies", "policies are loaded from there; what serves goes on until then"),
    ("host", "at once"),
    ("relay", "from the next report on"),
    ("machine", "it is read so as soon as all its pages answer; the others go on"),
    ("pool", "the old policies serve until the new ones have started; targets and leases stay"),
];

/// Follows the configuration of a running process.
pub struct Reload {
    origin: Origin,
    /// What was read last, good or bad; `None`: it could not be read.
    seen: Option<Written>,
    /// What is wrong with what was read last, as it was said.
    said: Option<String>,
    /// It was refused.
    is_refused: bool,
    /// Something could not be done.
    again: bool,
    /// There was a file.
    had_file: bool,
    watch: Watch,
    pace: Arc<Mutex<Pace>>,
    woken: Arc<Notify>,
}

impl Reload {
    /// Follows this origin, of which `written` is in force.
    #[must_use]
    pub fn new(origin: Origin, written: Written, loadline: &Loadline) -> Self {
        let pace = Arc::new(Mutex::new(Pace::new(Instant::now())));
        let woken = Arc::new(Notify::new());
        let (paced, wake) = (Arc::clone(&pace), Arc::clone(&woken));
        let look = move |hint: Hint| {
            lock(&paced).note(hint, Instant::now());
            wake.notify_one();
        };
        let wanted = names(&origin, loadline);
        let is_wanted = move |path: &Path| {
            path.file_name().is_some_and(|name| wanted.contains(Path::new(name)))
        };
        loadline.state.note(|state| note_read(state, &written));
        let watch = Watch::new(is_wanted, look);
        let had_file = written.file.is_some();
        let mut reload = Self {
            origin,
            had_file,
            seen: Some(written),
            said: None,
            is_refused: false,
            again: false,
            watch,
            pace,
            woken,
        };
        reload.keep_watch(loadline);
        reload
    }

    /// Waits until it is time for a look.
    pub async fn due(&self) {
        loop {
            let due = lock(&self.pace).due();
            tokio::select! {
                () = sleep_until(due.into()) => return,
                () = self.woken.notified() => {}
            }
        }
    }

    /// Looks whether anything changed, and follows. `asked`: somebody wants to know; then what is
    /// wrong is said even if it was said before, and policies are looked at, too.
    pub async fn look(&mut self, loadline: &mut Loadline, asked: bool) {
        // What happens from now on is for the next look.
        lock(&self.pace).looked(Instant::now());
        self.keep_watch(loadline);
        if asked {
            self.said = None;
            #[cfg(feature = "host")]
            if let Some(host) = loadline.host() {
                host.look();
            }
        }
        // Half of a file says nothing; who asks is told of what is there.
        if !asked && self.is_being_written(loadline) {
            return;
        }
        match self.origin.read_again(self.had_file) {
            Ok(written) => {
                self.had_file |= written.file.is_some();
                self.follow(written, loadline, asked).await;
            }
            Err(error) => {
                self.seen = None; // whatever is there next is looked at
                self.complain(loadline, error, true);
            }
        }
    }

    async fn follow(&mut self, written: Written, loadline: &mut Loadline, asked: bool) {
        let is_same = self.seen.as_ref() == Some(&written);
        let has_secrets = || loadline.config.secrets().is_ok_and(|now| now == loadline.secrets);
        if is_same && !asked && !self.again && (self.is_refused || has_secrets()) {
            return;
        }
        if !is_same && self.seen.is_some() {
            self.said = None; // another file that is wrong is told of, if by the same words
        }
        let config = match self.origin.check(&written) {
            Ok(config) => config,
            Err(error) => {
                self.seen = Some(written);
                self.is_refused = true;
                return self.complain(loadline, error, true);
            }
        };
        // Without its secrets nothing of it can be in force; they may come without the file changing.
        if let Err(error) = config.secrets() {
            self.seen = Some(written);
            self.again = true;
            return self.complain(loadline, error, true);
        }
        self.is_refused = false;
        let changes = changes(&loadline.config, &config);
        let rotated = loadline.secrets;
        let problems = loadline.apply(&config).await;
        self.again = !problems.is_empty();
        let has_rotated = rotated != loadline.secrets;
        let file = written.file.clone();
        let trouble = (!problems.is_empty()).then_some(ConfigError { file, problems });
        // Who reads of it in the log finds it in the API.
        loadline.state.note(|state| {
            note_read(state, &written);
            state.is_refused = false;
            state.trouble.clone_from(&trouble);
            if !changes.is_empty() || has_rotated {
                state.applied += 1;
                state.since = Some(Instant::now());
                state.changes.clone_from(&changes);
            }
        });
        for change in &changes {
            let effect = effect(&change.key);
            tracing::info!(%change, effect, "configuration changed");
        }
        if has_rotated {
            tracing::info!("secrets changed");
        }
        self.seen = Some(written);
        match trouble {
            Some(error) => self.complain(loadline, error, false),
            None => self.settle(),
        }
    }

    /// Nothing is wrong (any more).
    fn settle(&mut self) {
        self.again = false;
        if self.said.take().is_some() {
            tracing::info!("the configuration is in force");
        }
    }

    /// Says what is wrong, once.
    fn complain(&mut self, loadline: &Loadline, error: ConfigError, is_refusal: bool) {
        let text = error.to_string();
        let is_news = self.said.as_ref() != Some(&text);
        loadline.state.note(|state| {
            state.refused += u64::from(is_refusal && is_news);
            state.is_refused = is_refusal;
            state.trouble = Some(error);
        });
        if is_news {
            for problem in text.lines() {
                tracing::warn!(%problem, "configuration: the old one stays in force here");
            }
            self.said = Some(text);
        }
    }

    /// Whether somebody is writing one of the files.
    fn is_being_written(&self, loadline: &Loadline) -> bool {
        let files = files(&self.origin, loadline);
        let linked = files.iter().filter_map(|file| file.canonicalize().ok());
        files.iter().cloned().chain(linked).any(|file| self.watch.is_writing(&file))
    }

    /// Watches where the file is, where it is linked to, and where the secrets are.
    fn keep_watch(&mut self, loadline: &Loadline) {
        let files = files(&self.origin, loadline);
        let linked = files.iter().filter_map(|file| file.canonicalize().ok());
        let folder = |file: PathBuf| match file.parent() {
            Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
            Some(folder) => folder.to_owned(),
            None => file,
        };
        let folders: BTreeSet<_> = files.iter().cloned().chain(linked).map(folder).collect();
        self.watch.keep(&folders.into_iter().collect::<Vec<_>>());
    }
}

/// What a change of this key does.
fn effect(key: &str) -> &'static str {
    let fits = |(start, _): &&(&str, &str)| {
        key.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    EFFECTS.iter().find(fits).map_or("at once", |(_, effect)| effect)
}

/// The files that are followed.
fn files(origin: &Origin, loadline: &Loadline) -> Vec<PathBuf> {
    let secrets = loadline.config.secret_files().into_iter().map(Path::to_owned);
    std::iter::once(origin.path().to_owned()).chain(secrets).collect()
}

/// The names under which they are written.
fn names(origin: &Origin, loadline: &Loadline) -> BTreeSet<PathBuf> {
    let files = files(origin, loadline);
    let linked = files.iter().filter_map(|file| file.canonicalize().ok());
    let named = files.iter().cloned().chain(linked);
    named.filter_map(|file| file.file_name().map(PathBuf::from)).collect()
}

fn note_read(state: &mut InForce, written: &Written) {
    state.file.clone_from(&written.file);
    state.digest = written.file.is_some().then(|| written.digest());
}

/// A pace is whole whatever a thread that held it did.
fn lock(pace: &Mutex<Pace>) -> std::sync::MutexGuard<'_, Pace> {
    pace.lock().unwrap_or_else(PoisonError::into_inner)
}
