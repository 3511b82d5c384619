//! A cache of valid API keys, so that the data path does not query the store.
//!
//! Written by hand because a key stays in it after it expires: a key that was valid recently is looked up
//! again even when its address is throttled.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use jiff::Timestamp;
use pandastack_rest::Caller;
use pandastack_types::{Error, ErrorCode, Result};

/// Time for which a valid key is cached.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Keys remembered at once; beyond it all are forgotten and looked up again.
const REMEMBERED_MAX: usize = 10_000;

/// A key that was good when it was looked up.
pub(crate) struct ValidKey {
    caller: Caller,
    /// Networks that it may be used from; everywhere when empty.
    allow_from: Vec<IpNet>,
    expires_at: Option<Timestamp>,
    /// When it was looked up.
    since: Instant,
}

impl ValidKey {
    pub(crate) fn new(caller: Caller, allow_from: &[String], expires_at: Option<Timestamp>) -> Result<Self> {
        Ok(Self { caller, allow_from: networks(allow_from)?, expires_at, since: Instant::now() })
    }

    /// The key's caller, unless the key may not be used from this address.
    pub(crate) fn caller_from(&self, address: Option<IpAddr>) -> Result<Caller> {
        check_networks(&self.caller.prefix, &self.allow_from, address)?;
        Ok(self.caller.clone())
    }
}

/// Networks that a key may be used from, as they are stored.
pub(crate) fn networks(allow_from: &[String]) -> Result<Vec<IpNet>> {
    let parsed: std::result::Result<_, ipnet::AddrParseError> =
        allow_from.iter().map(|net| net.parse()).collect();
    parsed.map_err(Error::internal)
}

/// Refuses a key at an address outside its networks.
pub(crate) fn check_networks(prefix: &str, allow_from: &[IpNet], address: Option<IpAddr>) -> Result<()> {
    let within = |address: IpAddr| allow_from.iter().any(|net| net.contains(&address.to_canonical()));
    if allow_from.is_empty() || address.is_some_and(within) {
        return Ok(());
    }
    let from = address.map_or_else(|| "an unknown address".to_owned(), |address| format!("`{address}`"));
    let message =
        format!("key `{prefix}...` cannot be used from {from}; `pandastack token list` shows its networks");
    Err(Error::new(ErrorCode::Forbidden, message))
}

/// Valid keys by their hash.
type ValidKeys = HashMap<[u8; 32], ValidKey>;

/// Valid keys, and those used since their use was last stored.
#[derive(Default)]
pub(crate) struct KeyCache {
    valid: Mutex<ValidKeys>,
    used: Mutex<HashMap<String, Timestamp>>,
}

impl KeyCache {
    fn lock_valid(&self) -> MutexGuard<'_, ValidKeys> {
        self.valid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remembered(
        &self,
        hash: &[u8; 32],
        at: Timestamp,
        address: Option<IpAddr>,
    ) -> Option<Result<Caller>> {
        let valid = self.lock_valid();
        let key = valid.get(hash)?;
        let fresh = key.since.elapsed() < REMEMBERED && key.expires_at.is_none_or(|end| at < end);
        fresh.then(|| key.caller_from(address))
    }

    /// Returns whether the key was valid when it was last looked up.
    pub(crate) fn was_valid(&self, hash: &[u8; 32]) -> bool {
        self.lock_valid().contains_key(hash)
    }

    pub(crate) fn remember(&self, hash: [u8; 32], key: ValidKey) {
        let mut valid = self.lock_valid();
        if valid.len() >= REMEMBERED_MAX {
            valid.clear();
        }
        valid.insert(hash, key);
    }

    /// Removes keys that may no longer be valid.
    pub(crate) fn forget(&self, is_meant: impl Fn(&Caller) -> bool) {
        self.lock_valid().retain(|_, key| !is_meant(&key.caller));
    }

    pub(crate) fn touch(&self, prefix: &str, at: Timestamp) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(prefix.to_owned(), at);
    }

    /// Keys used since the last call, for the store.
    pub(crate) fn take_used(&self) -> Vec<(String, Timestamp)> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).drain().collect()
    }
}
