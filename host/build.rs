//! Builds the policies of `policies/` to WebAssembly and embeds them.
//!
//! Out: `builtin.rs` with one `(name, bytes)` a policy. The policies have a target folder of their
//! own, so that this cargo and the outer one do not wait for each other. Without the feature `host`
//! nothing is built.

use std::env;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";
const PROFILE: &str = "policy";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_HOST").is_none() {
        return;
    }
    let root = folder("CARGO_MANIFEST_DIR").join("..");
    let names = policy_names(&root.join("policies"));
    let crates = names.iter().map(|name| format!("policies/{name}"));
    let shared = ["sdk/policy", "Cargo.toml", "Cargo.lock"].map(str::to_owned);
    for watched in crates.chain(shared) {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    add_target();
    let built = build(&root, &names);
    let mut source = String::from(
        "/// Name and module of each, in order of their names.\n\
         pub(super) static BUILTIN: &[(&str, &[u8])] = &[\n",
    );
    for name in &names {
        let file = built.join(format!("policy_{}.wasm", name.replace('-', "_")));
        let bytes = format!("include_bytes!({:?})", file.display().to_string());
        writeln!(source, "    ({name:?}, {bytes}),").expect("a string can be written to");
    }
    source.push_str("];\n");
    let out = folder("OUT_DIR").join("builtin.rs");
    fs::write(&out, source).unwrap_or_else(|error| stop(&format!("cannot write {out:?}: {error}")));
}

fn policy_names(policies: &Path) -> Vec<String> {
    let entries = fs::read_dir(policies)
        .unwrap_or_else(|error| stop(&format!("cannot list {}: {error}", policies.display())));
    let is_crate = |path: &PathBuf| path.join("Cargo.toml").is_file();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_crate);
    let mut names: Vec<_> =
        paths.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    names.sort();
    names
}

/// Makes sure that the compiler can build for the target.
fn add_target() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let has_target = || {
        let printed = Command::new(&rustc)
            .args(["--print", "target-libdir", "--target", TARGET])
            .output()
            .ok()
            .and_then(|output| String::from_utf8(output.stdout).ok());
        printed.is_some_and(|path| Path::new(path.trim()).is_dir())
    };
    if has_target() {
        return;
    }
    println!("cargo::warning=adding the target {TARGET} with rustup");
    let added = Command::new("rustup").args(["target", "add", TARGET]).output();
    let added = added.map(|output| output.status.success()).unwrap_or(false);
    if !(added && has_target()) {
        stop(&format!(
            "the policies need the target {TARGET}; add it with\n\n    rustup target add {TARGET}\n"
        ));
    }
}

/// Runs cargo for the policies; the folder with their modules.
fn build(root: &Path, names: &[String]) -> PathBuf {
    let target_folder = target_folder();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(root).args(["build", "--locked", "--profile", PROFILE, "--target", TARGET]);
    cargo.arg("--target-dir").arg(&target_folder);
    for name in names {
        cargo.arg("--package").arg(format!("policy-{name}"));
    }
    // What the outer cargo was told about its own build does not hold for this one.
    for name in
        ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"]
    {
        cargo.env_remove(name);
    }
    let output = cargo
        .output()
        .unwrap_or_else(|error| stop(&format!("cannot run cargo for the policies: {error}")));
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        stop(&format!("the policies do not build:\n{words}"));
    }
    target_folder.join(TARGET).join(PROFILE)
}

/// `policies` beside this profile's folder in the outer target folder.
fn target_folder() -> PathBuf {
    let out = folder("OUT_DIR");
    let build = out.ancestors().find(|path| path.file_name().is_some_and(|name| name == "build"));
    let target = build.and_then(|path| path.parent()?.parent());
    target.unwrap_or(&out).join("policies")
}

fn folder(variable: &str) -> PathBuf {
    match env::var_os(variable) {
        Some(value) => PathBuf::from(value),
        None => stop(&format!("cargo did not set {variable}")),
    }
}

fn stop(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(1)
}
