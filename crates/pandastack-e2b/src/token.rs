//! Access tokens of sandboxes, and file URLs signed with them.
//!
//! A token is derived from the installation's join secret and the sandbox's id, so nothing is stored, it is the same
//! before and after a pause, and a fork's child has another. A signature is
//! `v1_` + unpadded base64 of SHA-256 over `path:operation:user:token[:expiration]`; its secret is the token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use pandastack_types::SandboxId;
use pandastack_types::link::LinkKey;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Derives tokens.
#[derive(Clone)]
pub(crate) struct TokenKey(LinkKey);

impl TokenKey {
    pub(crate) fn new(link: &LinkKey) -> Self {
        Self(link.clone())
    }

    /// The token of a sandbox.
    pub(crate) fn token(&self, sandbox: &SandboxId) -> String {
        self.0.derive("e2b access token", &[sandbox.as_str()])
    }

    /// Whether a token is that of a sandbox.
    pub(crate) fn accepts(&self, sandbox: &SandboxId, given: &str) -> bool {
        same(&self.token(sandbox), given)
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

/// What a signed URL allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

/// Why a signature was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureRefused {
    #[error("the signature does not match; sign path, operation and user with the sandbox's access token")]
    Mismatch,
    #[error("the signed URL has expired; create another")]
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
    fn tokens_differ_by_sandbox_and_do_not_change() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert!(key().accepts(&a, &key().token(&a)));
        assert!(!key().accepts(&b, &key().token(&a)));
        assert!(!key().accepts(&a, ""));
    }

    #[test]
    fn a_signature_holds_for_one_path_operation_user_and_time() {
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
    fn the_signature_is_the_one_that_clients_make() {
        // From `e2b.sandbox.signature.get_signature` of the Python client.
        let signed = Signed { path: "/home/user/x", user: "", signature: "", expiration: None };
        assert_eq!(signed.expected(Operation::Read, "token"), EXPECTED_BY_CLIENT);
    }

    const EXPECTED_BY_CLIENT: &str = "v1_NRH3nN2QnsgO7lZukDkN/XazV/gYY/57JEE0T598kFU";
}
