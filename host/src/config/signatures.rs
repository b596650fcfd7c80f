//! `[host.signatures]`: whose signatures policy files need, and the public keys in their written form.
//!
//! A key is written as `ed25519:ID:KEY`, as `loadline policy keygen` prints it. Its id is made of the key
//! itself, so that a mistyped one is noticed here and not when nothing is signed by it.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::read::Section;

/// What a key's written form begins with.
const ALGORITHM: &str = "ed25519:";
/// Public keys at most: each may be tried for each file.
const KEYS_MAX: usize = 64;

/// `[host.signatures]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SignaturesConfig {
    /// What becomes of a file that none of the keys has signed.
    pub mode: SignatureMode,
    /// A file is signed by any of them.
    pub keys: Vec<PublicKey>,
}

/// What becomes of a policy file that is not signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureMode {
    /// Signatures are not looked at.
    #[default]
    Off,
    /// It serves, and is told of.
    Warn,
    /// It does not serve.
    Require,
}

impl FromStr for SignatureMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "warn" => Ok(Self::Warn),
            "require" => Ok(Self::Require),
            other => Err(format!("{other:?} is none of \"off\", \"warn\" and \"require\"")),
        }
    }
}

/// An Ed25519 public key (RFC 8032).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

/// Names a key: the beginning of its SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId([u8; 4]);

impl PublicKey {
    /// A key by its bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Names it.
    #[must_use]
    pub fn id(&self) -> KeyId {
        let [a, b, c, d, ..]: [u8; 32] = Sha256::digest(self.0).into();
        KeyId([a, b, c, d])
    }
}

impl FromStr for PublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.strip_prefix(ALGORITHM).and_then(|rest| rest.split_once(':'));
        let Some((Ok(id), Some(key))) =
            parts.map(|(id, key)| (id.parse::<KeyId>(), from_hex(key).map(Self)))
        else {
            return Err(format!(
                "{text:?} is not a public key \"{ALGORITHM}ID:KEY\" as `loadline policy keygen` prints it"
            ));
        };
        if key.id() == id {
            return Ok(key);
        }
        Err(format!("{text:?} is mistyped: this key's id would be {}", key.id()))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}{}:{}", self.id(), hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for KeyId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        from_hex(text).map(Self).ok_or(())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly so many bytes from hexadecimal digits.
pub(crate) fn from_hex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if text.len() != 2 * BYTES {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()?;
    }
    Some(bytes)
}

pub(super) fn signatures(mut section: Section<'_>) -> SignaturesConfig {
    let mode = section.checked("mode").unwrap_or_default();
    let mut keys: Vec<PublicKey> = Vec::new();
    let written = section.strings("keys");
    for text in &written {
        match text.parse::<PublicKey>() {
            Ok(key) if keys.iter().any(|other| other.id() == key.id()) => {
                section.wrong("keys", &format!("{text:?} is there twice"));
            }
            Ok(key) => keys.push(key),
            Err(what) => section.wrong("keys", &what),
        }
    }
    if written.len() > KEYS_MAX {
        section.wrong("keys", &format!("{} are more than {KEYS_MAX}", written.len()));
    }
    if mode != SignatureMode::Off && written.is_empty() {
        section.wrong(
            "keys",
            "is empty: no file could be signed by any of them; `loadline policy keygen` makes one",
        );
    }
    section.finish();
    SignaturesConfig { mode, keys }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_read_as_it_is_written_and_a_slip_is_noticed() {
        let text = PublicKey::new([7; 32]).to_string();
        assert_eq!(text.parse(), Ok(PublicKey::new([7; 32])));
        let slip = text.replacen("0707", "0717", 1);
        let error = slip.parse::<PublicKey>().expect_err("another key");
        assert!(error.contains("is mistyped: this key's id would be"), "{error}");
        for wrong in
            ["", "ed25519:", "rsa:1:2", &text[1..], &text[..text.len() - 1], "ed25519:00:é"]
        {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
    }
}
