//! The policies inside this program, as built from `policies/` by the build script.

include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

/// The module of a policy inside this program.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static [u8]> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}

/// The names of all of them.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}
