//! The admin token: what a request says to "it is the one" or not, in constant time.
//!
//! Kept as a keyed hash of the token, so that neither `Debug` nor a copy of the memory shows it.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// What is hashed with the token as the key.
const MESSAGE: &[u8] = b"loadline admin";

/// Who may change something.
#[derive(Clone)]
pub struct AdminToken([u8; 32]);

impl AdminToken {
    /// The token with these bytes.
    #[must_use]
    pub fn new(token: &[u8]) -> Self {
        Self(hash(token).finalize().into_bytes().into())
    }

    /// Whether these bytes are the token. Takes as long for any that are not.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        hash(given).verify_slice(&self.0).is_ok()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

fn hash(token: &[u8]) -> Hmac<Sha256> {
    let mac: Hmac<Sha256> = Mac::new_from_slice(token).expect("HMAC takes keys of any length");
    mac.chain_update(MESSAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_token_is_the_token() {
        let token = AdminToken::new(b"0123456789abcdef");
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "AdminToken");
    }
}
