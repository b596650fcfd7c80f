//! `loadline policy new`: a crate with one policy and its tests, that builds at once.
//!
//! The SDK is taken from the repository, where one is found above the new folder, with the versions
//! of its lock file, so that nothing need be downloaded; else from the registry. Nothing that exists
//! is overwritten.

use std::fs;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::config::PoolConfig;
use crate::policy::Kind;

const MANIFEST: &str = include_str!("template/manifest.toml");
const STRATEGY: &str = include_str!("template/strategy.rs");
const FORMULA: &str = include_str!("template/formula.rs");
/// Where a repository has the SDK.
const SDK_FOLDER: &str = "sdk/policy";

/// What to start.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Its name: lower-case letters, digits and '-', a letter first
    name: String,
    /// What it decides: load (formula) or target (strategy)
    #[arg(long, value_enum, default_value_t = Wanted::Strategy)]
    kind: Wanted,
    /// Where the crate goes [default: a folder of its name here]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// The folder of loadline-sdk [default: of the repository above the crate, or above here, else the registry]
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Wanted {
    Formula,
    Strategy,
}

/// Writes the crate; what to do next.
pub(super) fn new(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { name, kind, path, sdk } = arguments;
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !name.bytes().all(is_good) || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        let what = "is not a crate's name: lower-case letters, digits and '-', a letter first";
        return Err(Failure::Usage(format!("{name:?} {what}")));
    }
    let folder = path.clone().unwrap_or_else(|| PathBuf::from(name));
    if folder.exists() {
        return Err(Failure::Usage(format!("{} is there already", folder.display())));
    }
    let sdk = sdk.clone().map_or_else(|| near(&folder), |sdk| given(&sdk).map(Some))?;
    let default = PoolConfig::new("default");
    let (kind, template, default) = match kind {
        Wanted::Formula => (Kind::Formula, FORMULA, default.formula),
        Wanted::Strategy => (Kind::Strategy, STRATEGY, default.strategy),
    };
    let dependency = match &sdk {
        Some(sdk) => format!("{{ path = {:?} }}", sdk.display().to_string()),
        None => format!("{:?}", env!("CARGO_PKG_VERSION")),
    };
    let source = template.replace("NAME", name).replace("TYPE", &type_name(name));
    let manifest = MANIFEST.replace("NAME", name).replace("SDK", &dependency);
    write(&folder.join("src/lib.rs"), source.as_bytes())?;
    write(&folder.join("Cargo.toml"), manifest.as_bytes())?;
    write(&folder.join(".gitignore"), b"/target\n")?;
    let origin = match sdk {
        Some(sdk) => {
            if let Ok(lock) = fs::read(sdk.join("../../Cargo.lock")) {
                write(&folder.join("Cargo.lock"), &lock)?;
            }
            ""
        }
        None => {
            "\n\nloadline-sdk comes from the registry; --sdk DIR names the one of a repository, sdk/policy."
        }
    };
    let built = format!("target/wasm32-unknown-unknown/release/{}.wasm", name.replace('-', "_"));
    Ok(format!(
        "{kind} {name} is in {0}: src/lib.rs decides, its tests run natively\n\n  \
         cd {0}\n  cargo test\n  cargo build --release --target wasm32-unknown-unknown\n  \
         loadline policy check {built}\n\nDrop that file into the host's policies folder: as {default}.wasm \
         it takes the default {kind}'s place,\nas {name}.wasm it is for pools with {kind} = {name:?}.{origin}",
        folder.display()
    ))
}

/// `my-policy` as `MyPolicy`.
fn type_name(name: &str) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    name.split('-').map(word).collect()
}

/// The SDK of a repository that the new folder lies in, or else this process.
fn near(folder: &Path) -> Result<Option<PathBuf>, Failure> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(super::super::other);
    let (folder, here) = (absolute(folder)?, absolute(Path::new("."))?);
    let has_sdk = |above: &&Path| above.join(SDK_FOLDER).join("wit/policy.wit").is_file();
    let mut above = folder.ancestors().skip(1).chain(here.ancestors());
    Ok(above.find(has_sdk).map(|above| above.join(SDK_FOLDER)))
}

fn given(sdk: &Path) -> Result<PathBuf, Failure> {
    let wrong = |what: String| Failure::Usage(format!("--sdk {}: {what}", sdk.display()));
    let sdk = fs::canonicalize(sdk).map_err(|error| wrong(error.to_string()))?;
    if sdk.join("wit/policy.wit").is_file() {
        return Ok(sdk);
    }
    Err(wrong(format!("not the SDK's folder; in the repository it is {SDK_FOLDER}")))
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let failed = |error: std::io::Error| Failure::Other(format!("{}: {error}", file.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    fs::write(file, bytes).map_err(failed)
}
