//! Visibility of previews, and the credentials of a private one.
//!
//! Nothing secret is stored: a preview's token is derived from the installation's join secret, the sandbox and a number
//! that counts revocations. Raising the number revokes the token and every URL signed with it.
//!
//! ```text
//!   join secret --HMAC--> token (sandbox, revision) --HMAC--> signature (port, expiry) in a signed URL
//! ```

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::SandboxId;
use crate::link::LinkKey;

/// Query parameter of a signed URL, and the cookie it becomes: `<expiry>.<signature>`.
pub const PARAMETER: &str = "pandastack_preview";
/// The same cookie over TLS. Browsers accept a name with this prefix only from the very host it is
/// for.
pub const SECURE_COOKIE: &str = "__Host-pandastack_preview";
/// Header with the token of a private preview.
pub const TOKEN_HEADER: &str = "x-pandastack-preview-token";

/// Visibility of a sandbox's ports from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Anyone who knows the sandbox ID, which cannot be guessed.
    #[default]
    Unlisted,
    /// Anyone with the preview token or a signed URL.
    Private,
    /// No one.
    Off,
}

impl Visibility {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Visibility::Unlisted => "unlisted",
            Visibility::Private => "private",
            Visibility::Off => "off",
        }
    }
}

impl std::str::FromStr for Visibility {
    type Err = UnknownVisibility;

    fn from_str(text: &str) -> Result<Self, UnknownVisibility> {
        let named = [Visibility::Unlisted, Visibility::Private, Visibility::Off];
        named.into_iter().find(|visibility| visibility.as_str() == text).ok_or(UnknownVisibility)
    }
}

/// A string that is not the name of a visibility.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be `unlisted`, `private` or `off`")]
pub struct UnknownVisibility;

/// Credentials for the previews of one sandbox: one of every generation of the secret that is accepted. The
/// first one signs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PreviewKey(Vec<String>);

impl std::fmt::Debug for PreviewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PreviewKey(secret)")
    }
}

impl PreviewKey {
    /// The key of a sandbox after `revision` revocations.
    pub fn new(link: &LinkKey, sandbox: &SandboxId, revision: u64) -> Self {
        Self(link.derive_each("preview", &[sandbox.as_str(), &revision.to_string()]))
    }

    /// The token for [`TOKEN_HEADER`].
    pub fn token(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Value of [`PARAMETER`] for one port, good until `expires_unix`.
    pub fn sign(&self, port: u16, expires_unix: i64) -> String {
        format!("{expires_unix}.{}", signature(self.token(), port, expires_unix))
    }

    /// Checks whether a token or a signed value opens `port` at `now_unix`; a signed value also has
    /// an expiry.
    pub fn accepts(&self, given: &str, port: u16, now_unix: i64) -> Option<Accepted> {
        if let Some((expires, given_signature)) = given.split_once('.') {
            let expires_unix: i64 = expires.parse().ok()?;
            let signed = |token: &String| same(&signature(token, port, expires_unix), given_signature);
            let good = self.0.iter().any(signed) && now_unix < expires_unix;
            return good.then_some(Accepted::Until(expires_unix));
        }
        self.0.iter().any(|token| same(token, given)).then_some(Accepted::Always)
    }
}

fn signature(token: &str, port: u16, expires_unix: i64) -> String {
    // HMAC accepts keys of every length, so this cannot fail; an empty signature would match nothing.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(token.as_bytes()) else { return String::new() };
    mac.update(format!("{port} {expires_unix}").as_bytes());
    data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes())
}

/// Validity of an accepted credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// Until it is revoked.
    Always,
    /// Until this time, in Unix seconds.
    Until(i64),
}

fn same(wanted: &str, given: &str) -> bool {
    !wanted.is_empty() && bool::from(wanted.as_bytes().ct_eq(given.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: u8, sandbox: &str, revision: u64) -> PreviewKey {
        PreviewKey::new(&LinkKey::new(&[secret; 32]).unwrap(), &sandbox.parse().unwrap(), revision)
    }

    #[test]
    fn preview_tokens_are_bound_to_sandbox_and_revision() {
        let token = key(1, "a", 0).token().to_owned();
        assert_eq!(key(1, "a", 0).accepts(&token, 80, 0), Some(Accepted::Always));
        for other in [key(1, "a", 1), key(1, "b", 0), key(2, "a", 0)] {
            assert_eq!(other.accepts(&token, 80, 0), None);
        }
    }

    #[test]
    fn preview_signatures_are_bound_to_port_and_expiry() {
        let signed = key(1, "a", 0).sign(80, 1_000);
        assert_eq!(key(1, "a", 0).accepts(&signed, 80, 999), Some(Accepted::Until(1_000)));
        assert_eq!(key(1, "a", 0).accepts(&signed, 80, 1_000), None);
        assert_eq!(key(1, "a", 0).accepts(&signed, 81, 999), None);
        assert_eq!(key(1, "a", 1).accepts(&signed, 80, 999), None);
        let later = signed.replacen("1000", "2000", 1);
        assert_eq!(key(1, "a", 0).accepts(&later, 80, 999), None);
    }

    #[test]
    fn malformed_preview_tokens_are_rejected() {
        for given in ["", ".", "x.y", "1000.", "99999999999999999999.ab"] {
            assert_eq!(key(1, "a", 0).accepts(given, 80, 0), None, "{given}");
        }
    }
}
