//! Access tokens of sandboxes, and file URLs signed with them.
//!
//! A token is derived from the installation's join secret, the sandbox's id and revision, and the API key
//! that asked for it, so nothing is stored, it is the same before and after a pause, and a fork's child has
//! another. It ends with that key, and with a revocation of the sandbox's credentials, which raises the
//! revision. A signature is `v1_` + unpadded base64 of SHA-256 over `path:operation:user:token[:expiration]`;
//! its secret is the token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use pandastack_types::SandboxId;
use pandastack_types::link::LinkKey;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::native::Access;

/// Derives tokens.
#[derive(Clone)]
pub(crate) struct TokenKey(LinkKey);

impl TokenKey {
    pub(crate) fn new(link: &LinkKey) -> Self {
        Self(link.clone())
    }

    /// The token of a sandbox for the key with this prefix: `<prefix>.<hex>`.
    pub(crate) fn token(&self, sandbox: &SandboxId, prefix: &str, revision: u64) -> String {
        self.tokens(sandbox, prefix, revision).swap_remove(0)
    }

    /// The accepted tokens, one for each active generation of the secret; the first one is issued.
    fn tokens(&self, sandbox: &SandboxId, prefix: &str, revision: u64) -> Vec<String> {
        let parts = [sandbox.as_str(), prefix, &revision.to_string()];
        let derived = self.0.derive_each("e2b access token 2", &parts);
        derived.into_iter().map(|digits| format!("{prefix}.{digits}")).collect()
    }

    /// Returns whether a token is valid for a sandbox.
    pub(crate) fn accepts(&self, sandbox: &SandboxId, access: &Access, given: &str) -> bool {
        let prefix = given.split('.').next().unwrap_or_default();
        let is_live = access.keys.iter().any(|key| key == prefix);
        is_live && self.tokens(sandbox, prefix, access.revision).iter().any(|token| same(token, given))
    }

    /// Checks a signed URL against every token of a sandbox, because the URL does not name its
    /// token. Returns the prefix of the key that the token was issued for.
    pub(crate) fn check(
        &self,
        signed: &Signed<'_>,
        operation: Operation,
        sandbox: &SandboxId,
        access: &Access,
        now_unix: i64,
    ) -> Result<String, SignatureRefused> {
        let tokens = access.keys.iter().flat_map(|prefix| {
            self.tokens(sandbox, prefix, access.revision).into_iter().map(move |token| (prefix, token))
        });
        let mut checked =
            tokens.map(|(prefix, token)| signed.check(operation, &token, now_unix).map(|()| prefix.clone()));
        let decided = checked.find(|checked| *checked != Err(SignatureRefused::Mismatch));
        decided.unwrap_or(Err(SignatureRefused::Mismatch))
    }
}

/// A signed file URL, as its query has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signed<'a> {
    pub(crate) path: &'a str,
    pub(crate) user: &'a str,
    pub(crate) signature: &'a str,
    pub(crate) expiration: Option<i64>,
}

/// The operation that a signed URL allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

/// Reason why a signature was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureRefused {
    #[error("invalid signature; sign path, operation and user with the sandbox's access token")]
    Mismatch,
    /// Clients match exactly this wording.
    #[error("signature is already expired")]
    Expired,
}

impl Signed<'_> {
    /// Checks the signature first, then its time, so that a wrong one learns nothing.
    pub(crate) fn check(
        &self,
        operation: Operation,
        token: &str,
        now_unix: i64,
    ) -> Result<(), SignatureRefused> {
        if !same(&self.expected(operation, token), self.signature) {
            return Err(SignatureRefused::Mismatch);
        }
        match self.expiration {
            Some(end) if now_unix >= end => Err(SignatureRefused::Expired),
            _ => Ok(()),
        }
    }

    fn expected(&self, operation: Operation, token: &str) -> String {
        let operation = match operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let mut text = format!("{}:{operation}:{}:{token}", self.path, self.user);
        if let Some(end) = self.expiration {
            text.push_str(&format!(":{end}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())))
    }
}

fn same(a: &str, b: &str) -> bool {
    bool::from(a.as_bytes().ct_eq(b.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> TokenKey {
        TokenKey::new(&LinkKey::new(&[7; 32]).unwrap())
    }

    #[test]
    fn tokens_are_bound_to_their_sandbox_and_key() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        let access = |revision, keys: &[&str]| Access {
            revision,
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let (one, token) = (access(0, &["pds_1", "pds_2"]), key().token(&a, "pds_1", 0));
        assert!(key().accepts(&a, &one, &token));
        assert!(!key().accepts(&b, &one, &token), "another sandbox");
        assert!(!key().accepts(&a, &access(0, &["pds_2"]), &token), "the key was deleted");
        assert!(!key().accepts(&a, &access(1, &["pds_1"]), &token), "it was revoked");
        assert!(!key().accepts(&a, &one, &token.replace("pds_1", "pds_2")), "made for another key");
        assert!(!key().accepts(&a, &one, "") && !key().accepts(&a, &one, "pds_1."));
    }

    #[test]
    fn a_signed_url_is_revoked_with_its_token_key() {
        let sandbox = SandboxId::random();
        let base = Signed { path: "/a", user: "", signature: "", expiration: None };
        let signature = base.expected(Operation::Read, &key().token(&sandbox, "pds_1", 0));
        let signed = Signed { signature: &signature, ..base };
        let check = |keys: &[&str], revision| {
            let access = Access { revision, keys: keys.iter().map(|key| (*key).to_owned()).collect() };
            key().check(&signed, Operation::Read, &sandbox, &access, 0)
        };
        assert_eq!(check(&["pds_2", "pds_1"], 0), Ok("pds_1".to_owned()));
        assert_eq!(check(&["pds_2"], 0), Err(SignatureRefused::Mismatch));
        assert_eq!(check(&["pds_1"], 1), Err(SignatureRefused::Mismatch));
        assert_eq!(check(&[], 0), Err(SignatureRefused::Mismatch));
    }

    #[test]
    fn signatures_are_bound_to_path_operation_user_and_time() {
        let base = Signed { path: "/a b", user: "user", signature: "", expiration: Some(100) };
        let signature = base.expected(Operation::Read, "t");
        let good = Signed { signature: &signature, ..base.clone() };
        assert_eq!(good.check(Operation::Read, "t", 99), Ok(()));
        assert_eq!(good.check(Operation::Read, "t", 100), Err(SignatureRefused::Expired));
        let mismatch = Err(SignatureRefused::Mismatch);
        assert_eq!(good.check(Operation::Write, "t", 99), mismatch);
        assert_eq!(good.check(Operation::Read, "u", 99), mismatch);
        assert_eq!(Signed { path: "/a", ..good.clone() }.check(Operation::Read, "t", 99), mismatch);
        assert_eq!(Signed { user: "", ..good.clone() }.check(Operation::Read, "t", 99), mismatch);
        assert_eq!(Signed { expiration: Some(999), ..good }.check(Operation::Read, "t", 99), mismatch);
    }

    #[test]
    fn signatures_match_those_of_e2b_clients() {
        // From `e2b.sandbox.signature.get_signature` of the Python client.
        let signed = Signed { path: "/home/user/x", user: "", signature: "", expiration: None };
        assert_eq!(signed.expected(Operation::Read, "token"), EXPECTED_BY_CLIENT);
    }

    const EXPECTED_BY_CLIENT: &str = "v1_NRH3nN2QnsgO7lZukDkN/XazV/gYY/57JEE0T598kFU";
}
