//! API keys: creating, hashing, checking.
//!
//! A key is `pds_` and 32 hex digits (128 random bits); its first 12 characters are public and find
//! the row. Only its SHA-256 is stored: with 128 random bits there is nothing to guess, so no slow
//! hash is needed. Comparison takes constant time. A valid key is cached for a few seconds
//! ([`KeyCache`]), so that the data path does not read the store; a key deleted or suspended here
//! stops at once, one deleted by another replica within that time.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Extensions;
use jiff::Timestamp;
use pandastack_e2b::DelegatedAccess;
use pandastack_rest::{Admission, ApiResult, Caller, Names};
use pandastack_store::clock::now;
use pandastack_store::workspaces::WorkspaceRecord;
use pandastack_store::{Store, StoreError, TokenRecord};
use pandastack_types::api::{Role, WorkspaceState};
use pandastack_types::api_key::KEY_START;
use pandastack_types::link::LinkKey;
use pandastack_types::{Error, ErrorCode, Result, SandboxId, WorkspaceId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::api_key::presented;
use crate::followers::Followers;
use crate::key_cache::{KeyCache, ValidKey, check_networks, networks};
use crate::rate::{KeyFailures, Rates};
use crate::replicas::ForwardedFor;
use crate::revocation::{Holder, Revocations};
use crate::{access, console, revocation, signed_url};

const KEY_RANDOM_BYTES: usize = 16;
/// `pds_` and the first 8 hex digits.
const PREFIX_CHARS: usize = 12;
/// Replaces a key's prefix for holders of a sandbox's access token.
const TOKEN_HOLDER: &str = "e2b";

/// A new key and its row.
pub(crate) struct NewKey {
    pub(crate) secret: String,
    pub(crate) record: TokenRecord,
}

/// Creates an owner key of a workspace; the caller narrows or widens its record.
pub(crate) fn new_key(workspace: WorkspaceId, label: String) -> std::io::Result<NewKey> {
    let mut random = [0_u8; KEY_RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let secret = format!("{KEY_START}{}", data_encoding::HEXLOWER.encode(&random));
    let record = TokenRecord {
        prefix: secret.chars().take(PREFIX_CHARS).collect(),
        workspace,
        hash: hash(&secret).to_vec(),
        label,
        role: Role::Owner,
        operator: false,
        allow_from: Vec::new(),
        created_at: now(),
        expires_at: None,
        last_used_at: None,
        session: None,
    };
    Ok(NewKey { secret, record })
}

/// The public part of a key; `None` for what cannot be one.
pub(crate) fn public_part(secret: &str) -> Option<&str> {
    let prefix = secret.get(..PREFIX_CHARS)?;
    let digits = prefix.strip_prefix(KEY_START)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(prefix)
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Authenticates and authorizes a request, applies the workspace's rate limit, and adds the caller to the
/// request.
pub(crate) async fn authenticate(
    State(keys): State<Arc<Keys>>,
    mut request: Request,
    next: Next,
) -> ApiResult<Response> {
    let (mut session, mut token_of) = (None, None);
    let from = address_of(request.extensions());
    let caller = match (request.extensions().get::<DelegatedAccess>(), signed_url::presented(&request)) {
        (Some(DelegatedAccess { sandbox, key }), _) => {
            token_of.clone_from(key);
            keys.holder(sandbox).await?
        }
        (None, Some(signed)) => {
            keys.admit_stranger(from)?;
            let checked = signed.check(keys.store.as_ref(), &keys.link, from).await;
            let caller = checked.inspect_err(|error| keys.note_refused(from, error))?;
            keys.open_workspace(&caller.workspace).await?;
            caller
        }
        (None, None) => match (presented(&request)?, console::presented(request.headers())) {
            (Some(secret), _) => keys.check_from(from, &secret).await?,
            (None, Some(secret)) => {
                let asked = (request.uri(), request.headers());
                let (caller, id) = console::caller(keys.store.as_ref(), &keys, asked, secret, from).await?;
                session = Some(id);
                caller
            }
            (None, None) => {
                let missing =
                    "the request has no API key; send `Authorization: Bearer pds_...` or `X-API-Key`";
                return Err(unauthorized(missing).into());
            }
        },
    };
    keys.rates.admit(&caller.workspace, Instant::now())?;
    access::check(&caller, &request)?;
    // An access token ends with the key that it was made for.
    let prefix = token_of.unwrap_or_else(|| caller.prefix.clone());
    let by_session = session.is_some();
    let open = keys.revocations.token(Holder { workspace: caller.workspace.clone(), prefix, session });
    request.extensions_mut().insert(Caller { revoked: Arc::clone(&open), ..caller });
    request.extensions_mut().insert::<Names>(Arc::clone(&keys) as Names);
    let response = revocation::guard(open, next.run(request)).await?;
    Ok(if by_session { console::protect(response) } else { response })
}

/// The client's address. A request without a client's connection was passed on by another replica,
/// which proved the address.
pub(crate) fn address_of(extensions: &Extensions) -> Option<IpAddr> {
    let client = extensions.get::<pandastack_edge::Client>().map(|client| client.address);
    client.or_else(|| extensions.get::<ForwardedFor>().map(|passed| passed.0))
}

/// The API keys of this installation: authentication and rate limits.
pub(crate) struct Keys {
    pub(crate) store: Arc<dyn Store>,
    cache: KeyCache,
    /// Requests of workspaces.
    pub(crate) rates: Rates,
    /// Requests and streams that callers have open.
    revocations: Revocations,
    /// Open streams of events.
    pub(crate) followers: Followers,
    failures: KeyFailures,
    /// The server's part of the key that signs URLs.
    link: LinkKey,
}

impl Keys {
    pub(crate) fn new(store: Arc<dyn Store>, rates: Rates, followers: Followers, link: LinkKey) -> Self {
        Self {
            store,
            cache: KeyCache::default(),
            rates,
            revocations: Revocations::default(),
            followers,
            failures: KeyFailures::default(),
            link,
        }
    }

    /// Refuses an address that sent too many wrong credentials.
    pub(crate) fn admit_stranger(&self, address: Option<IpAddr>) -> Result<()> {
        self.failures.admit(address, Instant::now())
    }

    /// Counts a wrong token or signature.
    pub(crate) fn count_invalid_key(&self, address: Option<IpAddr>) {
        self.failures.note(address, Instant::now());
    }

    /// Counts a credential that was refused because it is wrong.
    fn note_refused(&self, address: Option<IpAddr>, error: &Error) {
        if error.code == ErrorCode::Unauthorized {
            self.count_invalid_key(address);
        }
    }

    /// Checks a key in a request body, which `read` reads. The address is charged for an invalid
    /// key before the read, and refunded if the key is valid: slow bodies give a guesser no
    /// additional attempts.
    pub(crate) async fn check_in_body(
        &self,
        address: Option<IpAddr>,
        read: impl Future<Output = Result<String>>,
    ) -> Result<Caller> {
        self.failures.admit(address, Instant::now())?;
        self.failures.note(address, Instant::now());
        let checked = self.check(&read.await?, address).await;
        if !matches!(&checked, Err(error) if error.code == ErrorCode::Unauthorized) {
            self.failures.refund(address, Instant::now());
        }
        checked
    }

    /// Forgets a key that was changed.
    pub(crate) fn forget(&self, prefix: &str) {
        self.cache.forget(|caller| caller.prefix == prefix);
    }

    /// Drops a deleted key, and ends its open requests and streams.
    pub(crate) fn revoke(&self, prefix: &str) {
        self.forget(prefix);
        self.revocations.revoke(|holder| holder.prefix == prefix);
    }

    /// Ends open requests and streams of a console session that was signed out or revoked.
    pub(crate) fn revoke_session(&self, id: &str) {
        self.revocations.revoke(|holder| holder.session.as_deref() == Some(id));
    }

    /// The same for all keys of a suspended or deleted workspace.
    pub(crate) fn revoke_workspace(&self, workspace: &WorkspaceId) {
        self.cache.forget(|caller| caller.workspace == *workspace);
        self.revocations.revoke(|holder| holder.workspace == *workspace);
    }

    /// Ends open requests and streams of keys that have expired, or that another replica revoked, or whose
    /// workspace it closed.
    pub(crate) async fn end_revoked(&self) -> Result<()> {
        for holder in self.revocations.holders() {
            if !self.is_good(&holder).await? {
                self.forget(&holder.prefix);
                self.revocations.revoke(|open| *open == holder);
            }
        }
        Ok(())
    }

    async fn is_good(&self, holder: &Holder) -> Result<bool> {
        match self.open_workspace(&holder.workspace).await {
            Err(error) if matches!(error.code, ErrorCode::WorkspaceSuspended | ErrorCode::NotFound) => {
                return Ok(false);
            }
            opened => opened?,
        };
        if holder.prefix == TOKEN_HOLDER {
            return Ok(true);
        }
        let (token, at) = (self.store.token(&holder.prefix).await?, now());
        if token.is_none_or(|token| token.expires_at.is_some_and(|end| end <= at)) {
            return Ok(false);
        }
        let Some(id) = &holder.session else { return Ok(true) };
        let sessions = self.store.console_sessions(&holder.workspace).await?;
        Ok(sessions.iter().any(|session| session.id == *id && at < session.expires_at))
    }

    /// A workspace that may be used, with its quota.
    async fn open_workspace(&self, workspace: &WorkspaceId) -> Result<WorkspaceRecord> {
        let record = self.store.workspace(workspace).await?;
        match record.state {
            WorkspaceState::Active => Ok(record),
            _ => Err(StoreError::Closed { workspace: record.id, reason: record.suspend_reason }.into()),
        }
    }

    /// Writes when keys were last used.
    pub(crate) async fn write_last_used(&self) -> Result<()> {
        let used = self.cache.take_used();
        if !used.is_empty() {
            self.store.touch_tokens(&used).await?;
        }
        Ok(())
    }

    /// The caller for a sandbox's own access token, which the facade checked: it acts in the
    /// sandbox's workspace.
    async fn holder(&self, sandbox: &SandboxId) -> Result<Caller> {
        let workspace = self.store.sandbox(None, sandbox).await?.workspace;
        self.open_workspace(&workspace).await?;
        let label = format!("access token of {sandbox}");
        let prefix = TOKEN_HOLDER.to_owned();
        Ok(Caller {
            workspace,
            prefix,
            label,
            role: Role::Developer,
            operator: false,
            revoked: Arc::default(),
        })
    }

    /// Checks a key, unless its address sent too many invalid ones. A recently valid key is always looked
    /// up: clients that share an address with a guesser must not be shut out.
    pub(crate) async fn check_from(&self, address: Option<IpAddr>, secret: &str) -> Result<Caller> {
        if !self.cache.was_valid(&hash(secret)) {
            self.failures.admit(address, Instant::now())?;
        }
        self.check(secret, address).await.inspect_err(|error| self.note_refused(address, error))
    }

    async fn check(&self, secret: &str, address: Option<IpAddr>) -> Result<Caller> {
        let refused = || unauthorized("the API key is invalid; it may have been deleted or have expired");
        let prefix =
            secret.get(..PREFIX_CHARS).filter(|_| secret.starts_with(KEY_START)).ok_or_else(refused)?;
        let (given, at) = (hash(secret), now());
        if let Some(remembered) = self.cache.remembered(&given, at, address) {
            let caller = remembered?;
            self.cache.touch(&caller.prefix, at);
            return Ok(caller);
        }
        let token = self.store.token(prefix).await?.ok_or_else(refused)?;
        let matches = bool::from(token.hash.as_slice().ct_eq(given.as_slice()));
        if !matches || token.expires_at.is_some_and(|end| at >= end) {
            return Err(refused());
        }
        let (expires_at, allow_from) = (token.expires_at, token.allow_from.clone());
        let caller = self.caller(token, at).await?;
        let key = ValidKey::new(caller, &allow_from, expires_at)?;
        let caller = key.caller_from(address);
        self.cache.remember(given, key);
        caller
    }

    /// The caller of a key that was checked before, by its public part and the client's address.
    /// `None` if the key was deleted or has expired.
    pub(crate) async fn caller_of(&self, prefix: &str, from: Option<IpAddr>) -> Result<Option<Caller>> {
        let at = now();
        match self.store.token(prefix).await? {
            Some(token) if token.expires_at.is_none_or(|end| at < end) => {
                check_networks(&token.prefix, &networks(&token.allow_from)?, from)?;
                Ok(Some(self.caller(token, at).await?))
            }
            _ => Ok(None),
        }
    }

    /// The caller of a good key, which counts as used.
    async fn caller(&self, token: TokenRecord, at: Timestamp) -> Result<Caller> {
        let TokenRecord { workspace, prefix, label, role, operator, .. } = token;
        let quota = self.open_workspace(&workspace).await?.quota;
        self.rates.learn(&workspace, quota.requests_per_second);
        self.cache.touch(&prefix, at);
        Ok(Caller { workspace, prefix, label, role, operator, revoked: Arc::default() })
    }
}

#[async_trait]
impl Admission for Keys {
    async fn check_key(
        &self,
        bearer: Option<&str>,
        workspace: &WorkspaceId,
        from: &Extensions,
    ) -> Result<()> {
        let missing = "the request needs an API key of the workspace; send `Authorization: Bearer pds_...`";
        let secret = bearer.and_then(|value| value.split_once(' ')).map(|(_, secret)| secret.trim());
        let secret = secret.ok_or_else(|| unauthorized(missing))?;
        let caller = self.check_from(address_of(from), secret).await?;
        if caller.workspace != *workspace {
            return Err(unauthorized(missing));
        }
        caller.require(Role::Developer)
    }

    async fn check_open(&self, workspace: &WorkspaceId) -> Result<()> {
        self.open_workspace(workspace).await.map(drop)
    }

    fn check_rate(&self, workspace: &WorkspaceId) -> Result<()> {
        self.rates.admit(workspace, Instant::now())
    }
}

pub(crate) fn unauthorized(what: &str) -> Error {
    let next = "find a key in ~/.config/pandastack/config.json, or create one with `pandastack token create`";
    Error::new(ErrorCode::Unauthorized, format!("{what}; {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_documented_format_and_are_hashed() {
        let key = new_key(WorkspaceId::default_workspace(), "a".into()).unwrap();
        assert_eq!(key.secret.len(), 36);
        assert!(key.secret.starts_with("pds_"));
        assert!(key.secret[4..].bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()));
        assert_eq!(key.record.prefix, key.secret[..12]);
        assert_eq!(key.record.hash, hash(&key.secret));
        assert!(!format!("{:?}", key.record).contains(&key.secret[12..]));
    }
}
