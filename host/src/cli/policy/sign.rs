//! `loadline policy keygen`, `sign` and `verify`: who vouches for policy files.
//!
//! A secret key is in a file of its own, which only its owner may read; it is written once, never
//! overwritten and never printed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Failure, form};
use crate::config::{Origin, PublicKey, SignatureMode, SignaturesConfig};
use crate::policy::signature::{SecretKey, beside, read_beside};
use crate::policy::{Generation, Limits, Trust, Vouch};
use crate::watch::read;

/// A secret key's file at most.
const SECRET_BYTES_MAX: usize = 4 << 10;

#[derive(clap::Args)]
pub(super) struct Keygen {
    /// Where the secret key goes; a file that is there is not touched
    file: PathBuf,
}

#[derive(clap::Args)]
pub(super) struct Sign {
    /// .wasm or .formula files; each gets a FILE.sig beside it
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The secret key's file, from `loadline policy keygen`
    #[arg(long, value_name = "FILE", env = "LOADLINE_SIGNING_KEY")]
    key: PathBuf,
}

#[derive(clap::Args)]
pub(super) struct Verify {
    /// .wasm or .formula files with their FILE.sig
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// A public key that may have signed, "ed25519:ID:KEY" [default: host.signatures.keys of the configuration]
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
}

/// Makes a pair of keys; what to do with them.
pub(super) fn keygen(arguments: &Keygen) -> Result<String, Failure> {
    let path = &arguments.file;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::Usage(format!("{} is there already: name another file", path.display()))
        }
        std::io::ErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(Path::new(".")).display();
            Failure::Usage(format!("{}: make the folder {folder} first", path.display()))
        }
        _ => Failure::Other(format!("{}: {error}", path.display())),
    };
    let mut random = [0; 32];
    let source = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random));
    source.map_err(|error| Failure::Other(format!("/dev/urandom: {error}")))?;
    let key = SecretKey::new(&random);
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(failed)?;
    file.write_all(key.to_text().as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    let (public, file) = (key.public(), path.display());
    Ok(format!(
        "secret key  {file}, readable by you alone: keep it where policies are signed, not on hosts\n\
         public key  {public}\n\n\
         sign:   loadline policy sign NAME.wasm --key {file}\n\
         hosts:  [host.signatures]\n        mode = \"require\"\n        keys = [\"{public}\"]"
    ))
}

/// Signs files; what was written.
pub(super) fn sign(arguments: &Sign) -> Result<String, Failure> {
    let key = secret(&arguments.key)?;
    let mut said = String::new();
    for file in &arguments.files {
        let failed = |what: String| Failure::Other(format!("{}: {what}", file.display()));
        let content = content(file).map_err(failed)?;
        let there = read_beside(file).map_err(failed)?;
        let path = beside(file);
        write_whole(&path, key.sign(content, there.as_deref()).as_bytes())
            .map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
        line(&mut said, &format!("{}: {content}, signed by {}", path.display(), key.public().id()));
    }
    Ok(said.trim_end().to_owned())
}

/// Says who vouches for files; a failure where nobody does for one of them.
pub(super) fn verify(arguments: &Verify, origin: &Origin) -> Result<String, Failure> {
    let keys = arguments.key.iter().map(|text| text.parse::<PublicKey>());
    let mut keys = keys.collect::<Result<Vec<_>, _>>().map_err(Failure::Usage)?;
    if keys.is_empty() {
        keys = origin.load()?.host.map(|host| host.signatures.keys).unwrap_or_default();
    }
    if keys.is_empty() {
        let what =
            "which key? --key \"ed25519:ID:KEY\", or host.signatures.keys of the configuration";
        return Err(Failure::Usage(what.to_owned()));
    }
    let trust = Trust::new(&SignaturesConfig { mode: SignatureMode::Require, keys });
    let (mut said, mut all_good) = (String::new(), true);
    for file in &arguments.files {
        let judged = content(file).and_then(|content| {
            match trust.judge(content, read_beside(file)?.as_deref()) {
                Vouch::By(key) => Ok(format!("good: {content}, signed by {key}")),
                other => Err(other.to_string()),
            }
        });
        all_good &= judged.is_ok();
        let judgement = judged.unwrap_or_else(|why| format!("NOT good: {why}"));
        line(&mut said, &format!("{}: {judgement}", file.display()));
    }
    let said = said.trim_end().to_owned();
    if all_good { Ok(said) } else { Err(Failure::Other(said)) }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").unwrap_or_default(); // a string can always be written to
}

/// What a file holds, if a host would take it for a policy.
fn content(file: &Path) -> Result<Generation, String> {
    form(file)?;
    Ok(Generation::of(&super::content(file, Limits::default().file_bytes)?))
}

fn secret(path: &Path) -> Result<SecretKey, Failure> {
    let failed = |what: String| Failure::Other(format!("{}: {what}", path.display()));
    let mode = fs::metadata(path).map(|about| about.mode() & 0o777);
    if mode.is_ok_and(|mode| mode & 0o077 != 0) {
        let path = path.display();
        crate::telemetry::tell(&format!("warning: {path} is open to others: chmod 600 {path}"));
    }
    let text = read(path, SECRET_BYTES_MAX).map_err(|why| match path.exists() {
        true => failed(why.to_string()),
        false => failed(format!(
            "there is no such key: loadline policy keygen {} makes one",
            path.display()
        )),
    })?;
    let key = std::str::from_utf8(&text).ok().and_then(SecretKey::parse);
    key.ok_or_else(|| failed("not a secret key of `loadline policy keygen`".to_owned()))
}

/// A host never sees half of it.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}
