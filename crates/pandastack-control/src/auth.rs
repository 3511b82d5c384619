//! API keys: making, hashing, checking.
//!
//! A key is `pds_` and 32 hex digits (128 random bits); its first 12 characters are public and find the row. Only its
//! SHA-256 is stored: with 128 random bits there is nothing to guess, so no slow hash is needed. Comparison takes
//! constant time. A key that was good is remembered for [`REMEMBERED`], so that the data path does not ask the store;
//! one deleted here stops at once, one deleted by another replica within that time. The cache is written by hand because
//! a key outlives its freshness in it: one that was good lately is looked up again even when its address is throttled.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use pandastack_e2b::OnBehalf;
use pandastack_rest::{Admission, ApiResult, Caller};
use pandastack_store::clock::now;
use pandastack_store::{Store, TokenRecord};
use pandastack_types::api::Scope;
use pandastack_types::link::LinkKey;
use pandastack_types::{Error, ErrorCode, Result, SandboxId, WorkspaceId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::rate::{KeyFailures, Rates};
use crate::replicas::PASSED_ON_FOR;
use crate::{scope, signed_url};

const KEY_START: &str = "pds_";
const KEY_RANDOM_BYTES: usize = 16;
/// `pds_` and the first 8 hex digits.
const PREFIX_CHARS: usize = 12;
/// Stands in the place of a key's prefix for holders of a sandbox's access token.
const TOKEN_HOLDER: &str = "e2b";
/// How long a good key is not looked up again.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Keys remembered at once; beyond it all are forgotten and looked up again.
const REMEMBERED_MAX: usize = 10_000;

/// A new key and its row.
pub(crate) struct NewKey {
    pub(crate) secret: String,
    pub(crate) record: TokenRecord,
}

/// Makes a key.
pub(crate) fn new_key(
    workspace: WorkspaceId,
    label: String,
    scope: Scope,
    expires_at: Option<Timestamp>,
) -> std::io::Result<NewKey> {
    let mut random = [0_u8; KEY_RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let secret = format!("{KEY_START}{}", data_encoding::HEXLOWER.encode(&random));
    let record = TokenRecord {
        prefix: secret.chars().take(PREFIX_CHARS).collect(),
        workspace,
        hash: hash(&secret).to_vec(),
        label,
        scope,
        created_at: now(),
        expires_at,
    };
    Ok(NewKey { secret, record })
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Good keys by their hash: whose, until when, and since when it is remembered.
type GoodKeys = HashMap<[u8; 32], (Caller, Option<Timestamp>, Instant)>;

/// Good keys, and those used since the store last heard of it.
#[derive(Default)]
struct KeyCache {
    good: Mutex<GoodKeys>,
    used: Mutex<HashMap<String, Timestamp>>,
}

impl KeyCache {
    fn good(&self) -> MutexGuard<'_, GoodKeys> {
        self.good.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered(&self, hash: &[u8; 32], at: Timestamp) -> Option<Caller> {
        let good = self.good();
        let (caller, expires_at, since) = good.get(hash)?;
        let fresh = since.elapsed() < REMEMBERED && expires_at.is_none_or(|end| at < end);
        fresh.then(|| caller.clone())
    }

    /// Whether it was good when it was last looked up.
    fn was_good(&self, hash: &[u8; 32]) -> bool {
        self.good().contains_key(hash)
    }

    fn remember(&self, hash: [u8; 32], caller: &Caller, expires_at: Option<Timestamp>) {
        let mut good = self.good();
        if good.len() >= REMEMBERED_MAX {
            good.clear();
        }
        good.insert(hash, (caller.clone(), expires_at, Instant::now()));
    }

    /// Forgets a key that was deleted.
    fn forget(&self, prefix: &str) {
        self.good().retain(|_, (caller, ..)| caller.prefix != prefix);
    }

    fn touch(&self, prefix: &str, at: Timestamp) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(prefix.to_owned(), at);
    }

    /// Keys used since the last call, for the store.
    fn take_used(&self) -> Vec<(String, Timestamp)> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).drain().collect()
    }
}

/// Lets only callers pass whose key is good and may do this, within their workspace's rate, and says who they are.
pub(crate) async fn authenticate(
    State(keys): State<Arc<Keys>>,
    mut request: Request,
    next: Next,
) -> ApiResult<Response> {
    let caller = match (request.extensions().get::<OnBehalf>(), signed_url::presented(&request)) {
        (Some(OnBehalf(sandbox)), _) => keys.holder(sandbox).await?,
        (None, Some(signed)) => {
            let from = address_of(&request);
            keys.admit_stranger(from)?;
            let checked = signed.check(keys.store.as_ref(), &keys.link).await;
            checked.inspect_err(|_| keys.note_wrong(from))?
        }
        (None, None) => {
            let missing = "the request has no API key; send `Authorization: Bearer pds_...`";
            let secret = presented(&request).ok_or_else(|| unauthorized(missing))?;
            keys.check_from(address_of(&request), &secret).await?
        }
    };
    keys.rates.admit(&caller.workspace, Instant::now())?;
    caller.require(scope::needed(request.method(), request.uri().path(), request.headers()))?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// The key in the header, else in the query.
fn presented(request: &Request) -> Option<String> {
    if let Some(value) = request.headers().get(AUTHORIZATION) {
        let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim().to_owned());
    }
    let pairs = request.uri().query()?.split('&');
    pairs.filter_map(|pair| pair.strip_prefix("access_token=")).next().map(str::to_owned)
}

/// Where a request comes from. One that another replica passed on says so; only those come without a client's connection.
fn address_of(request: &Request) -> Option<IpAddr> {
    let client = request.extensions().get::<pandastack_edge::Client>().map(|client| client.address);
    client.or_else(|| request.headers().get(PASSED_ON_FOR)?.to_str().ok()?.parse().ok())
}

/// The API keys of this installation: who may call, and how often.
pub(crate) struct Keys {
    store: Arc<dyn Store>,
    cache: KeyCache,
    /// Requests of workspaces.
    pub(crate) rates: Rates,
    failures: KeyFailures,
    /// The server's part of what signs URLs.
    link: LinkKey,
}

impl Keys {
    pub(crate) fn new(store: Arc<dyn Store>, rates: Rates, link: LinkKey) -> Self {
        Self { store, cache: KeyCache::default(), rates, failures: KeyFailures::default(), link }
    }

    /// Refuses an address from which too many credentials came that were wrong.
    pub(crate) fn admit_stranger(&self, address: Option<IpAddr>) -> Result<()> {
        self.failures.admit(address, Instant::now())
    }

    /// Counts a wrong token or signature.
    pub(crate) fn note_wrong(&self, address: Option<IpAddr>) {
        self.failures.note(address, Instant::now());
    }

    /// Forgets a key that was deleted.
    pub(crate) fn forget(&self, prefix: &str) {
        self.cache.forget(prefix);
    }

    /// Writes when keys were last used.
    pub(crate) async fn write_last_used(&self) -> Result<()> {
        let used = self.cache.take_used();
        if !used.is_empty() {
            self.store.touch_tokens(&used).await?;
        }
        Ok(())
    }

    /// Who holds a sandbox's own access token, which the facade checked: what they do is done in its workspace.
    async fn holder(&self, sandbox: &SandboxId) -> Result<Caller> {
        let workspace = self.store.sandbox(None, sandbox).await?.workspace;
        let label = format!("access token of {sandbox}");
        Ok(Caller { workspace, prefix: TOKEN_HOLDER.to_owned(), label, scope: Scope::Sandboxes })
    }

    /// Checks a key, unless too many that were not good came from that address. A key that was good lately is always looked
    /// at: whoever shares an address with somebody who guesses must not be shut out.
    async fn check_from(&self, address: Option<IpAddr>, secret: &str) -> Result<Caller> {
        if !self.cache.was_good(&hash(secret)) {
            self.failures.admit(address, Instant::now())?;
        }
        let checked = self.check(secret).await;
        if matches!(&checked, Err(error) if error.code == ErrorCode::Unauthorized) {
            self.failures.note(address, Instant::now());
        }
        checked
    }

    async fn check(&self, secret: &str) -> Result<Caller> {
        let refused = || unauthorized("the API key is invalid; it may have been deleted or have expired");
        let prefix =
            secret.get(..PREFIX_CHARS).filter(|_| secret.starts_with(KEY_START)).ok_or_else(refused)?;
        let (given, at) = (hash(secret), now());
        if let Some(caller) = self.cache.remembered(&given, at) {
            self.cache.touch(&caller.prefix, at);
            return Ok(caller);
        }
        let token = self.store.token(prefix).await?.ok_or_else(refused)?;
        let matches = bool::from(token.hash.as_slice().ct_eq(given.as_slice()));
        if !matches || token.expires_at.is_some_and(|end| at >= end) {
            return Err(refused());
        }
        let TokenRecord { workspace, prefix, label, scope, expires_at, .. } = token;
        self.rates.learn(&workspace, self.store.quota(&workspace).await?.requests_per_second);
        let caller = Caller { workspace, prefix, label, scope };
        self.cache.remember(given, &caller, expires_at);
        self.cache.touch(&caller.prefix, at);
        Ok(caller)
    }
}

#[async_trait]
impl Admission for Keys {
    async fn check_key(&self, bearer: Option<&str>, workspace: &WorkspaceId) -> Result<()> {
        let missing = "the request needs an API key of the workspace; send `Authorization: Bearer pds_...`";
        let secret = bearer.and_then(|value| value.split_once(' ')).map(|(_, secret)| secret.trim());
        let caller = self.check(secret.ok_or_else(|| unauthorized(missing))?).await?;
        if caller.workspace != *workspace {
            return Err(unauthorized(missing));
        }
        caller.require(Scope::Sandboxes)
    }

    fn check_rate(&self, workspace: &WorkspaceId) -> Result<()> {
        self.rates.admit(workspace, Instant::now())
    }
}

fn unauthorized(what: &str) -> Error {
    let next = "find a key in ~/.config/pandastack/config.json, or create one with `pandastack token create`";
    Error::new(ErrorCode::Unauthorized, format!("{what}; {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_published_form_and_are_hashed() {
        let key = new_key(WorkspaceId::default_workspace(), "a".into(), Scope::Read, None).unwrap();
        assert_eq!(key.secret.len(), 36);
        assert!(key.secret.starts_with("pds_"));
        assert!(key.secret[4..].bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()));
        assert_eq!(key.record.prefix, key.secret[..12]);
        assert_eq!(key.record.hash, hash(&key.secret));
        assert!(!format!("{:?}", key.record).contains(&key.secret[12..]));
    }
}
