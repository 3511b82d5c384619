//! One attempt to sign in with a browser.

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use sha2::{Digest, Sha256};

use crate::{LoginError, Result};

/// Random bytes of an attempt.
const SECRET_BYTES: usize = 32;

/// The secret of one attempt. The browser keeps it in a cookie; state, nonce and code verifier are derived
/// from it, so that a response fits only the browser that began, and the server stores nothing.
#[derive(Clone)]
pub struct Attempt {
    secret: String,
}

impl Attempt {
    /// Starts an attempt.
    pub fn new() -> Result<Self> {
        let mut random = [0_u8; SECRET_BYTES];
        getrandom::fill(&mut random).map_err(|error| LoginError::Unavailable(error.to_string()))?;
        Ok(Self { secret: HEXLOWER.encode(&random) })
    }

    /// The attempt of a cookie; `None` if it has another form.
    pub fn from_cookie(value: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(value.as_bytes()).ok()?;
        (bytes.len() == SECRET_BYTES).then(|| Self { secret: value.to_owned() })
    }

    /// The value of the cookie.
    pub fn cookie(&self) -> &str {
        &self.secret
    }

    /// Ties the redirect back to this browser.
    pub fn state(&self) -> String {
        self.derive("state")
    }

    /// Ties the ID token to this attempt.
    pub fn nonce(&self) -> String {
        self.derive("nonce")
    }

    /// Redeems the code (PKCE).
    pub(crate) fn verifier(&self) -> String {
        self.derive("code verifier")
    }

    /// The PKCE challenge: the SHA-256 of the verifier.
    pub(crate) fn challenge(&self) -> String {
        BASE64URL_NOPAD.encode(&Sha256::digest(self.verifier().as_bytes()))
    }

    fn derive(&self, purpose: &str) -> String {
        HEXLOWER.encode(&Sha256::digest(format!("pandastack login {purpose} {}", self.secret).as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_attempt_values_differ_and_round_trip_through_the_cookie() {
        let attempt = Attempt::new().unwrap();
        let parts = [attempt.state(), attempt.nonce(), attempt.verifier(), attempt.cookie().to_owned()];
        for (index, part) in parts.iter().enumerate() {
            assert!(!parts[index + 1..].contains(part), "{parts:?}");
        }
        // RFC 7636: 43 to 128 characters.
        assert!((43..=128).contains(&attempt.verifier().len()));
        let again = Attempt::from_cookie(attempt.cookie()).unwrap();
        assert_eq!((again.state(), again.challenge()), (attempt.state(), attempt.challenge()));
        assert_ne!(Attempt::new().unwrap().state(), attempt.state());
        for bad in ["", "00", &attempt.cookie().to_uppercase(), &format!("{}0", attempt.cookie())] {
            assert!(Attempt::from_cookie(bad).is_none(), "{bad}");
        }
    }
}
