//! Keys of signed reports: a frame's key id and tag in, "genuine" or a reason out.
//!
//! A keyring without keys sends and accepts unsigned frames only; with keys, the first one signs
//! and an unsigned frame is refused. The tag is the first 16 bytes of HMAC-SHA256 over header and
//! payload (RFC 2104; truncation as in its section 5), compared in constant time. A secret is never
//! printed: `Debug` shows the id only.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::WireError;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Bytes of a secret at least: shorter ones can be guessed.
pub const SECRET_BYTES_MIN: usize = 16;

/// One secret shared by agents and hosts.
#[derive(Clone)]
pub struct Key {
    id: u32,
    mac: Hmac<Sha256>,
}

impl Key {
    /// A key; `None` where the id is 0 (it means "unsigned") or the secret too short.
    #[must_use]
    pub fn new(id: u32, secret: &[u8]) -> Option<Self> {
        if id == 0 || secret.len() < SECRET_BYTES_MIN {
            return None;
        }
        Some(Self { id, mac: Hmac::new_from_slice(secret).ok()? })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

/// All keys this process knows, the signing one first.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    keys: Vec<Key>,
}

impl Keyring {
    /// Keys in order; the first one signs.
    #[must_use]
    pub fn new(keys: Vec<Key>) -> Self {
        Self { keys }
    }

    /// The id that outgoing frames carry; 0: unsigned.
    #[must_use]
    pub fn signing_id(&self) -> u32 {
        self.keys.first().map_or(0, |key| key.id)
    }

    /// Appends the tag of everything in `frame`, if this ring signs.
    pub(super) fn sign(&self, frame: &mut Vec<u8>) {
        if let Some(key) = self.keys.first() {
            let tag = key.mac.clone().chain_update(&*frame).finalize().into_bytes();
            frame.extend_from_slice(&tag[..TAG_BYTES]);
        }
    }

    /// Splits off and verifies the tag; what is left is header and payload.
    pub(super) fn open<'a>(&self, key_id: u32, frame: &'a [u8]) -> Result<&'a [u8], WireError> {
        if key_id == 0 {
            return if self.keys.is_empty() { Ok(frame) } else { Err(WireError::Unsigned) };
        }
        let key = self.keys.iter().find(|key| key.id == key_id).ok_or(WireError::UnknownKey)?;
        let split = frame.len().checked_sub(TAG_BYTES).ok_or(WireError::Truncated)?;
        let (signed, tag) = frame.split_at(split);
        let mac = key.mac.clone().chain_update(signed);
        mac.verify_truncated_left(tag).map_err(|_| WireError::BadTag)?;
        Ok(signed)
    }
}
