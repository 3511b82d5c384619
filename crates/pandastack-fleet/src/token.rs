//! Join tokens, and the fingerprint of an authority.
//!
//! ```text
//!   pdsj_ 8 digits 40 digits _ 64 digits
//!         public   secret      fingerprint of the authority
//! ```
//!
//! Only the part before the second `_` is sent to control: the fingerprint is for the host, which so
//! recognizes the authority before it sends anything.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::error::FleetError;

const START: &str = "pdsj_";
const PUBLIC_BYTES: usize = 4;
const SECRET_BYTES: usize = 20;

/// SHA-256 of the authority's certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub(crate) [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate, DER.
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, FleetError> {
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| FleetError::Token)?;
        bytes.try_into().map(Self).map_err(|_| FleetError::Token)
    }
}

/// A token with which one host may join once.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// What the host presents.
    presented: String,
    authority: Fingerprint,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}...)", self.id())
    }
}

impl JoinToken {
    /// A fresh token for hosts that join under this authority.
    pub fn random(authority: Fingerprint) -> Result<Self, FleetError> {
        let mut random = [0; PUBLIC_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random).map_err(|error| FleetError::NoRandom(error.to_string()))?;
        Ok(Self { presented: format!("{START}{}", HEXLOWER.encode(&random)), authority })
    }

    /// The public part, which names the token in records and logs.
    pub fn id(&self) -> &str {
        Self::id_of(&self.presented).unwrap_or_default()
    }

    /// What the host presents to control.
    pub fn presented(&self) -> &str {
        &self.presented
    }

    /// The authority under which the host joins.
    pub fn authority(&self) -> Fingerprint {
        self.authority
    }

    /// The whole token, which the operator gives to the host.
    pub fn expose(&self) -> String {
        format!("{}_{}", self.presented, self.authority)
    }

    /// The public part of what a host presents; `None` for what is no token.
    pub fn id_of(presented: &str) -> Option<&str> {
        let digits = presented.strip_prefix(START)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let fits = digits.len() == 2 * (PUBLIC_BYTES + SECRET_BYTES) && digits.bytes().all(is_digit);
        fits.then(|| &presented[..START.len() + 2 * PUBLIC_BYTES])
    }

    /// The hash that control stores. The secret has 160 random bits, so a fast hash suffices.
    pub fn hash_of(presented: &str) -> [u8; 32] {
        Sha256::digest(presented.as_bytes()).into()
    }
}

impl FromStr for JoinToken {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, FleetError> {
        let (presented, authority) = text.trim().rsplit_once('_').ok_or(FleetError::Token)?;
        Self::id_of(presented).ok_or(FleetError::Token)?;
        Ok(Self { presented: presented.to_owned(), authority: authority.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_token_survives_being_copied() {
        let token = JoinToken::random(Fingerprint::of(b"authority")).unwrap();
        let text = token.expose();
        assert_eq!(format!(" {text}\n").parse::<JoinToken>().unwrap(), token);
        assert!(token.id().len() == 13 && token.presented().starts_with(token.id()));
        assert!(!token.presented().contains(&token.authority().to_string()));
        assert!(!format!("{token:?}").contains(token.presented()), "logs have no secret");
        let other = JoinToken::random(token.authority()).unwrap();
        assert_ne!(other.id(), token.id());
        for wrong in
            ["", "pdsj_", token.presented(), &text[..text.len() - 1], &text.to_uppercase(), "pdsj_é_a"]
        {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }
}
