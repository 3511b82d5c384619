//! Signed URLs: temporary access without a key, to one file of one sandbox or to the files of one build.
//!
//! ```text
//! /v1/sandboxes/{id}/fs?path=...&key=pds_xxxxxxxx&expires=<Unix s>&signature=<hex>
//! /v1/templates/builds/{id}/files?key=pds_xxxxxxxx&expires=<Unix s>&signature=<hex>
//! ```
//!
//! The signature is an HMAC-SHA-256 over the method, the sandbox or build and every other parameter. Its key is
//! derived from the join secret and the stored hash of the API key that made it. So nothing is stored for a
//! URL, none of its parts can be changed, it ends with its time or with its key, and a copy of the database
//! alone signs nothing. The check takes constant time and happens before anything about the URL is believed.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use http::{Method, header};
use pandastack_rest::Caller;
use pandastack_store::clock::now;
use pandastack_store::{Store, TokenRecord};
use pandastack_types::link::LinkKey;
use pandastack_types::{BuildId, Error, ErrorCode, Result, SandboxId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::api_key::API_KEY_HEADER;
use crate::key_cache::{check_networks, networks};

/// Version of the signed data; the first part of every signature.
const VERSION: &str = "pandastack-file-url-2";
/// The parameter that holds the signature.
const SIGNATURE: &str = "signature";
/// Characters that are escaped in a query value: all but unreserved ones and `/`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

type Pairs = Vec<(String, String)>;

/// The resource that a signed URL opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file of a sandbox, named by the parameter `path`.
    File(SandboxId),
    /// Files of a template build.
    BuildFiles(BuildId),
}

impl Target {
    /// The target of a path below `/v1`.
    fn of(path: &str) -> Option<Self> {
        match path.strip_prefix("/templates/builds/") {
            Some(rest) => rest.strip_suffix("/files")?.parse().ok().map(Self::BuildFiles),
            None => path.strip_prefix("/sandboxes/")?.strip_suffix("/fs")?.parse().ok().map(Self::File),
        }
    }

    /// The signed text. The forms cannot collide: a sandbox id contains no slash.
    fn signed_text(&self) -> String {
        match self {
            Self::File(sandbox) => sandbox.to_string(),
            Self::BuildFiles(build) => format!("builds/{build}"),
        }
    }

    /// Path of the signed route.
    fn path(&self) -> String {
        match self {
            Self::File(sandbox) => format!("/v1/sandboxes/{sandbox}/fs"),
            Self::BuildFiles(build) => format!("/v1/templates/builds/{build}/files"),
        }
    }
}

/// The signature parameters of a request without a key.
pub(crate) struct SignatureParams {
    method: &'static str,
    target: Target,
    pairs: Pairs,
}

/// Reads the signature of a request without a key; `None` if it has no signature, or is not for
/// files.
pub(crate) fn presented(request: &Request) -> Option<SignatureParams> {
    if request.headers().contains_key(header::AUTHORIZATION) || request.headers().contains_key(API_KEY_HEADER)
    {
        return None;
    }
    let method = signed_method(request.method())?;
    let target = Target::of(request.uri().path().trim_start_matches("/v1"))?;
    let pairs = axum::extract::Query::<Pairs>::try_from_uri(request.uri()).ok()?.0;
    pairs.iter().any(|(name, _)| name == SIGNATURE).then_some(SignatureParams { method, target, pairs })
}

/// The method that a request counts as.
fn signed_method(method: &Method) -> Option<&'static str> {
    match *method {
        Method::GET | Method::HEAD => Some("GET"),
        Method::PUT => Some("PUT"),
        _ => None,
    }
}

impl SignatureParams {
    fn one(&self, name: &str) -> Option<&str> {
        let mut values = self.pairs.iter().filter(|(key, _)| key == name);
        let (_, value) = values.next()?;
        // If a parameter occurs twice, the checked value might not be the used one.
        values.next().is_none().then_some(value)
    }

    /// The caller on whose behalf the URL is used.
    pub(crate) async fn check(
        &self,
        store: &dyn Store,
        link: &LinkKey,
        from: Option<IpAddr>,
    ) -> Result<Caller> {
        let refused = || {
            let why = "the signed URL is invalid: it was changed, it has expired, or its key was deleted";
            Error::new(ErrorCode::Unauthorized, format!("{why}; request a new one"))
        };
        let prefix = self.one("key").ok_or_else(refused)?;
        let token = store.token(prefix).await?.ok_or_else(refused)?;
        let given = self.one(SIGNATURE).unwrap_or_default();
        let matches = signing_keys(link, &token).iter().any(|key| {
            let wanted = signature(key.as_bytes(), self.method, &self.target, &self.pairs);
            bool::from(wanted.as_bytes().ct_eq(given.as_bytes()))
        });
        let at = now();
        let expires: Option<i64> = self.one("expires").and_then(|text| text.parse().ok());
        let alive = expires.is_some_and(|end| at.as_second() < end);
        let names_file = matches!(self.target, Target::BuildFiles(_)) || self.one("path").is_some();
        if !matches || !alive || !names_file || token.expires_at.is_some_and(|end| at >= end) {
            return Err(refused());
        }
        // A URL may do no more than its key, here and elsewhere.
        check_networks(&token.prefix, &networks(&token.allow_from)?, from)?;
        let TokenRecord { workspace, prefix, label, role, operator, .. } = token;
        Ok(Caller { workspace, prefix, label, role, operator, revoked: Arc::default() })
    }
}

/// Path and query of a signed URL. A file of a sandbox is named by `path`.
pub(crate) fn sign(
    link: &LinkKey,
    token: &TokenRecord,
    method: &'static str,
    target: &Target,
    path: Option<&str>,
    expires: i64,
) -> String {
    let path = path.map(|path| ("path".to_owned(), path.to_owned()));
    let rest = [("key".to_owned(), token.prefix.clone()), ("expires".to_owned(), expires.to_string())];
    let mut pairs: Pairs = path.into_iter().chain(rest).collect();
    let key = signing_keys(link, token).swap_remove(0);
    pairs.push((SIGNATURE.to_owned(), signature(key.as_bytes(), method, target, &pairs)));
    let encoded = pairs.iter().map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ESCAPED)));
    format!("{}?{}", target.path(), encoded.collect::<Vec<_>>().join("&"))
}

/// Keys whose signatures of an API key's URLs are accepted; the first one signs. The database alone does not
/// suffice to derive them.
fn signing_keys(link: &LinkKey, token: &TokenRecord) -> Vec<String> {
    link.derive_each("file url", &[&token.prefix, &HEXLOWER.encode(&token.hash)])
}

/// Hex of the MAC over everything but the signature itself.
fn signature(key: &[u8], method: &str, target: &Target, pairs: &[(String, String)]) -> String {
    // HMAC accepts keys of every length, so this cannot fail; an empty signature would match nothing anyway.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return "-".to_owned() };
    let signed = pairs.iter().filter(|(name, _)| name != SIGNATURE);
    let target = target.signed_text();
    let parts = signed.flat_map(|(name, value)| [name.as_str(), value.as_str()]);
    for part in [VERSION, method, target.as_str()].into_iter().chain(parts) {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part.as_bytes());
    }
    HEXLOWER.encode(&mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_url_is_signed() {
        let id = Target::File(SandboxId::random());
        let pairs = |path: &str, expires: &str| -> Pairs {
            vec![("path".to_owned(), path.to_owned()), ("expires".to_owned(), expires.to_owned())]
        };
        let good = signature(b"key", "GET", &id, &pairs("/a", "1"));
        assert_eq!(good, signature(b"key", "GET", &id, &pairs("/a", "1")));
        for other in [
            signature(b"other", "GET", &id, &pairs("/a", "1")),
            signature(b"key", "PUT", &id, &pairs("/a", "1")),
            signature(b"key", "GET", &Target::File(SandboxId::random()), &pairs("/a", "1")),
            signature(b"key", "GET", &Target::BuildFiles(BuildId::random()), &pairs("/a", "1")),
            signature(b"key", "GET", &id, &pairs("/b", "1")),
            signature(b"key", "GET", &id, &pairs("/a", "2")),
            signature(b"key", "GET", &id, &[pairs("/a", "1"), pairs("/a", "1")].concat()),
        ] {
            assert_ne!(good, other);
        }
    }

    #[test]
    fn url_signatures_depend_on_the_link_secret_and_the_key() {
        let workspace = pandastack_types::WorkspaceId::default_workspace();
        let key = crate::auth::new_key(workspace, "a".into()).unwrap().record;
        let other = TokenRecord { hash: vec![1; 32], ..key.clone() };
        let link = |byte| LinkKey::new(&[byte; 32]).unwrap();
        let file = Target::File(SandboxId::random());
        let made = sign(&link(7), &key, "GET", &file, Some("/a"), 9);
        assert_eq!(made, sign(&link(7), &key, "GET", &file, Some("/a"), 9));
        assert_ne!(made, sign(&link(8), &key, "GET", &file, Some("/a"), 9), "another installation");
        assert_ne!(made, sign(&link(7), &other, "GET", &file, Some("/a"), 9), "another key");
    }

    #[test]
    fn a_signed_url_path_round_trips_to_its_target() {
        for target in [Target::File(SandboxId::random()), Target::BuildFiles(BuildId::random())] {
            let path = target.path();
            assert_eq!(Target::of(path.strip_prefix("/v1").unwrap()), Some(target));
        }
        assert_eq!(Target::of("/templates/builds/a/start"), None);
        assert_eq!(Target::of("/sandboxes/a/fs/stat"), None);
    }

    #[test]
    fn paths_are_percent_encoded_in_queries() {
        let encoded = utf8_percent_encode("/a b/ü&=+?#%", ESCAPED).to_string();
        assert_eq!(encoded, "/a%20b/%C3%BC%26%3D%2B%3F%23%25");
    }
}
