//! Detached signatures of policy files: who vouches for a file's content.
//!
//! Beside `NAME.wasm` lies `NAME.wasm.sig`, text with one signature a line: `ed25519 KEY SHA256 SIGNATURE`,
//! the key's id, the content and the signature in hexadecimal digits; `#` begins a comment. What is signed
//! is [`CONTEXT`] and the SHA-256 of the file, so that a signature vouches for one generation and for nothing
//! else that the key may sign. It names the content, so that a file whose signature is still on its way
//! is told from one whose signature is wrong; and there may be several, of several keys and contents, so
//! that keys and files are changed without a gap. The file's name is not signed: whoever may write into
//! the folder can put signed policies in each other's place.

use std::fmt;
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use super::module::Generation;
use super::steps::Steps;
use crate::config::{KeyId, PublicKey, SignatureMode, SignaturesConfig, from_hex, hex};

/// What comes before the content's hash: a signature for something else is none for a policy.
const CONTEXT: &[u8] = b"loadline policy 1\n";
/// What a line begins with.
const ALGORITHM: &str = "ed25519";
/// A signature file at most: some hundred signatures.
pub const SIGNATURES_BYTES_MAX: usize = 64 << 10;
/// What a secret key's written form begins with.
const SECRET: &str = "loadline-secret-ed25519:";

/// Who vouches for a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vouch {
    /// Signatures are not looked at.
    Unchecked,
    /// It is inside this program.
    BuiltIn,
    /// This key.
    By(KeyId),
    /// Nobody yet; why, and what to do.
    Missing(String),
    /// Nobody, though somebody is said to; why, and what to do.
    Wrong(String),
}

impl Vouch {
    /// What is wrong with it.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        match self {
            Self::Missing(why) | Self::Wrong(why) => Some(why),
            Self::Unchecked | Self::BuiltIn | Self::By(_) => None,
        }
    }
}

impl fmt::Display for Vouch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchecked => f.write_str("signature not looked at"),
            Self::BuiltIn => f.write_str("built in"),
            Self::By(key) => write!(f, "signed by {key}"),
            Self::Missing(why) | Self::Wrong(why) => f.write_str(why),
        }
    }
}

/// The keys whose signatures count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trust {
    mode: SignatureMode,
    keys: Vec<PublicKey>,
}

impl Trust {
    /// As configured.
    #[must_use]
    pub fn new(config: &SignaturesConfig) -> Self {
        Self { mode: config.mode, keys: config.keys.clone() }
    }

    /// What becomes of files that are not signed.
    #[must_use]
    pub fn mode(&self) -> SignatureMode {
        self.mode
    }

    /// Who vouches for this content, by the text of its signature file; `None`: there is none.
    #[must_use]
    pub fn judge(&self, content: Generation, signatures: Option<&str>) -> Vouch {
        if self.mode == SignatureMode::Off {
            return Vouch::Unchecked;
        }
        let Some(text) = signatures else {
            let what = "has no signature yet: `loadline policy sign` makes one, beside the file";
            return Vouch::Missing(what.to_owned());
        };
        let lines = match read(text) {
            Ok(lines) => lines,
            Err(what) => return Vouch::Wrong(format!("its signature file {what}; sign it again")),
        };
        let of_this: Vec<_> = lines.iter().filter(|line| line.content == content).collect();
        if of_this.is_empty() {
            let others: Vec<_> = lines.iter().map(|line| line.content.to_string()).collect();
            let others = if others.is_empty() { "nothing".to_owned() } else { others.join(", ") };
            return Vouch::Missing(format!(
                "its signature file is for {others}, and the file is {content}: the right one is \
                 still on its way, or `loadline policy sign` makes it"
            ));
        }
        let genuine = |line: &&&Line| self.key(line.key).is_some_and(|key| line.is_by(key));
        if let Some(line) = of_this.iter().find(genuine) {
            return Vouch::By(line.key);
        }
        let named = of_this.iter().find(|line| self.key(line.key).is_some());
        Vouch::Wrong(match named {
            Some(Line { key, .. }) => {
                format!("the signature by {key} is not genuine; sign it again with that key")
            }
            None => {
                let keys: Vec<_> = of_this.iter().map(|line| line.key.to_string()).collect();
                let known: Vec<_> = self.keys.iter().map(|key| key.id().to_string()).collect();
                format!(
                    "is signed by {}, which is not among host.signatures.keys; sign it with {}, or add that key",
                    keys.join(", "),
                    known.join(" or ")
                )
            }
        })
    }

    /// The same by the signature file beside this one, and its text. A step, where signatures are looked at.
    pub fn judge_beside(
        &self,
        file: &Path,
        content: Generation,
        steps: &Steps,
    ) -> (Option<String>, Vouch) {
        if self.mode == SignatureMode::Off {
            return (None, Vouch::Unchecked);
        }
        let mut signatures = None;
        let judged = steps.run("signature", || {
            signatures = read_beside(file)
                .map_err(|what| Vouch::Wrong(format!("its signature file {what}")))?;
            match self.judge(content, signatures.as_deref()) {
                wrong @ (Vouch::Missing(_) | Vouch::Wrong(_)) => Err(wrong),
                good => Ok(good),
            }
        });
        (signatures, judged.unwrap_or_else(|wrong| wrong))
    }

    fn key(&self, id: KeyId) -> Option<&PublicKey> {
        self.keys.iter().find(|key| key.id() == id)
    }
}

/// One signature.
#[derive(Clone)]
struct Line {
    key: KeyId,
    content: Generation,
    signature: Signature,
}

impl Line {
    fn is_by(&self, key: &PublicKey) -> bool {
        let key = VerifyingKey::from_bytes(key.bytes());
        let message = message(self.content);
        key.is_ok_and(|key| key.verify_strict(&message, &self.signature).is_ok())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (content, signature) = (hex(self.content.bytes()), hex(&self.signature.to_bytes()));
        write!(f, "{ALGORITHM} {} {content} {signature}", self.key)
    }
}

fn message(content: Generation) -> Vec<u8> {
    [CONTEXT, content.bytes()].concat()
}

/// The signatures of a text; commas part them, too, for HTTP.
fn read(text: &str) -> Result<Vec<Line>, String> {
    let lines = text.split(['\n', ',']).map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line_of(line).ok_or_else(|| wrong_line(line))).collect()
}

fn line_of(text: &str) -> Option<Line> {
    let mut words = text.split_ascii_whitespace();
    words.next().filter(|algorithm| *algorithm == ALGORITHM)?;
    let key = words.next()?.parse().ok()?;
    let content = Generation::of_hash(from_hex(words.next()?)?);
    let signature = Signature::from_bytes(&from_hex(words.next()?)?);
    words.next().is_none().then_some(Line { key, content, signature })
}

fn wrong_line(line: &str) -> String {
    let shown: String = line.chars().take(40).flat_map(char::escape_debug).collect();
    format!("has a line \"{shown}…\" that is not \"{ALGORITHM} KEY SHA256 SIGNATURE\"")
}

/// The signatures of a text for one content, a line each.
///
/// # Errors
/// It is not of that form, or has none for that content.
pub(super) fn for_content(text: &str, content: Generation) -> Result<String, String> {
    let lines = read(text).map_err(|what| format!("the signature {what}"))?;
    let of_this: Vec<_> = lines.into_iter().filter(|line| line.content == content).collect();
    if of_this.is_empty() {
        return Err(format!("the signature is not for {content}, which this content is"));
    }
    Ok(of_this.iter().map(|line| format!("{line}\n")).collect())
}

/// Where the signatures of a policy file are.
#[must_use]
pub fn beside(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".sig");
    path.into()
}

/// The text of a policy file's signatures; `None`: there is no such file.
///
/// # Errors
/// Why it cannot be read.
pub fn read_beside(file: &Path) -> Result<Option<String>, String> {
    let path = beside(file);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = crate::watch::read(&path, SIGNATURES_BYTES_MAX).map_err(|why| why.to_string())?;
    String::from_utf8(bytes).map(Some).map_err(|_| "is not text".to_owned())
}

/// What signs; it is never printed.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// A key of these 32 random bytes.
    #[must_use]
    pub fn new(random: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(random))
    }

    /// A key in the form of [`to_text`](Self::to_text).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, seed) = text.trim().strip_prefix(SECRET)?.split_once(':')?;
        let key = Self::new(&from_hex(seed)?);
        (id.parse() == Ok(key.public().id())).then_some(key)
    }

    /// For the file that keeps it.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{SECRET}{}:{}\n", self.public().id(), hex(self.0.as_bytes()))
    }

    /// Its other half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey::new(self.0.verifying_key().to_bytes())
    }

    /// The text of a signature file for this content. Of the signatures that are there already those for
    /// the same content, by other keys, stay.
    #[must_use]
    pub fn sign(&self, content: Generation, there: Option<&str>) -> String {
        let key = self.public().id();
        let signature = self.0.sign(&message(content));
        let own = Line { key, content, signature };
        let there = there.and_then(|text| read(text).ok()).unwrap_or_default();
        let others = there.into_iter().filter(|line| line.content == content && line.key != key);
        others.chain([own]).map(|line| format!("{line}\n")).collect()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.public().id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(keys: &[&SecretKey]) -> Trust {
        let keys = keys.iter().map(|key| key.public()).collect();
        Trust { mode: SignatureMode::Require, keys }
    }

    #[test]
    fn signature_vouches_for_its_content_and_key_alone() {
        let (key, other) = (SecretKey::new(&[1; 32]), SecretKey::new(&[2; 32]));
        let [this, that] = [b"this", b"that"].map(|bytes| Generation::of(bytes));
        let text = key.sign(this, None);
        assert_eq!(trust(&[&other, &key]).judge(this, Some(&text)), Vouch::By(key.public().id()));
        assert!(matches!(trust(&[&key]).judge(that, Some(&text)), Vouch::Missing(_)));
        assert!(matches!(trust(&[&key]).judge(this, None), Vouch::Missing(_)));
        assert!(matches!(trust(&[&other]).judge(this, Some(&text)), Vouch::Wrong(_)));
        assert_eq!(Trust::default().judge(this, None), Vouch::Unchecked);
        // What names this content and was made for the other one.
        let forged = key.sign(that, None).replace(&hex(that.bytes()), &hex(this.bytes()));
        let Vouch::Wrong(why) = trust(&[&key]).judge(this, Some(&forged)) else {
            panic!("forged");
        };
        assert!(why.contains("is not genuine"), "{why}");
        // Every single bit counts.
        for at in 0..text.trim_end().len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert_ne!(
                trust(&[&key]).judge(this, Some(&changed)),
                Vouch::By(key.public().id()),
                "{at}: {changed}"
            );
        }
    }

    #[test]
    fn several_keys_sign_one_file_and_old_contents_go() {
        let (old, new) = (SecretKey::new(&[1; 32]), SecretKey::new(&[2; 32]));
        let [this, that] = [b"this", b"that"].map(|bytes| Generation::of(bytes));
        let both = new.sign(this, Some(&old.sign(this, None)));
        for key in [&old, &new] {
            assert_eq!(trust(&[key]).judge(this, Some(&both)), Vouch::By(key.public().id()));
        }
        assert_eq!(new.sign(this, Some(&both)), both);
        assert_eq!(new.sign(that, Some(&both)).lines().count(), 1);
    }

    #[test]
    fn secret_is_read_as_it_is_written_and_never_shown() {
        let key = SecretKey::new(&[7; 32]);
        let text = key.to_text();
        assert_eq!(SecretKey::parse(&text).map(|key| key.public()), Some(key.public()));
        assert!(SecretKey::parse(&text.replacen("0707", "0717", 1)).is_none());
        assert!(!format!("{key:?}").contains("0707"));
    }
}
