//! Metadata of a provider: its endpoints and keys (OpenID Connect Discovery 1.0).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::{Host, Url};

use crate::signature::Jwk;
use crate::{LoginError, Result};

/// Time for which endpoints and keys are cached.
const FRESH: Duration = Duration::from_secs(3600);
/// Shortest interval between reads of the keys, even if tokens name unknown ones.
const KEYS_REREAD_AFTER: Duration = Duration::from_secs(10);
/// Largest response of a provider. Beyond it the sign-in fails.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// Keys of a provider beyond these are ignored.
const KEYS_MAX: usize = 100;

/// Endpoints of a provider.
#[derive(Debug, Deserialize)]
pub(crate) struct Endpoints {
    issuer: String,
    pub(crate) authorization_endpoint: Endpoint,
    pub(crate) token_endpoint: Endpoint,
    jwks_uri: Endpoint,
    pub(crate) userinfo_endpoint: Option<Endpoint>,
    pub(crate) device_authorization_endpoint: Option<Endpoint>,
    #[serde(default)]
    pub(crate) token_endpoint_auth_methods_supported: Vec<String>,
}

/// An address with TLS, or on loopback.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Endpoint(pub(crate) Url);

impl TryFrom<String> for Endpoint {
    type Error = String;
    fn try_from(text: String) -> std::result::Result<Self, String> {
        let url: Url = text.parse().map_err(|_| format!("`{text}` is not a URL"))?;
        check_url(&url)?;
        Ok(Self(url))
    }
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// Endpoints and keys, as they were read.
pub(crate) struct Metadata {
    pub(crate) endpoints: Endpoints,
    pub(crate) keys: Vec<Jwk>,
    read_at: Instant,
}

/// The last metadata of one provider.
#[derive(Default)]
pub(crate) struct MetadataCache(Mutex<Option<Arc<Metadata>>>);

impl MetadataCache {
    /// Metadata for an ordinary call.
    pub(crate) async fn get(&self, http: &Client, issuer: &str) -> Result<Arc<Metadata>> {
        self.not_older_than(FRESH, http, issuer).await
    }

    /// Reads the metadata again after a token named an unknown key: the provider may have rotated
    /// its keys.
    pub(crate) async fn reread(&self, http: &Client, issuer: &str) -> Result<Arc<Metadata>> {
        self.not_older_than(KEYS_REREAD_AFTER, http, issuer).await
    }

    async fn not_older_than(&self, age: Duration, http: &Client, issuer: &str) -> Result<Arc<Metadata>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(last) = last.filter(|last| last.read_at.elapsed() < age) {
            return Ok(last);
        }
        let read = Arc::new(read(http, issuer).await?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&read));
        Ok(read)
    }
}

async fn read(http: &Client, issuer: &str) -> Result<Metadata> {
    let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    let endpoints: Endpoints = json(http.get(address)).await?;
    if endpoints.issuer != issuer {
        let why = format!("its issuer is `{}`, but `{issuer}` is configured as issuer", endpoints.issuer);
        return Err(LoginError::Unavailable(why));
    }
    let set: KeySet = json(http.get(endpoints.jwks_uri.0.clone())).await?;
    // Keys of kinds that are not known here are for others.
    let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
    Ok(Metadata { endpoints, keys: keys.take(KEYS_MAX).collect(), read_at: Instant::now() })
}

/// Refuses addresses without TLS, except on loopback.
pub fn check_url(url: &Url) -> std::result::Result<(), String> {
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    match url.scheme() {
        "https" if url.has_host() => Ok(()),
        "http" if is_loopback => Ok(()),
        _ => Err(format!("`{url}` is not an https:// address")),
    }
}

/// Sends a request and reads JSON for any status: errors of providers are JSON, too.
pub(crate) async fn json<T: DeserializeOwned>(request: RequestBuilder) -> Result<T> {
    let unavailable = |error: reqwest::Error| {
        let at = error.url().map(|url| url.origin().ascii_serialization()).unwrap_or_default();
        tracing::debug!(%error, "the login provider does not respond");
        LoginError::Unavailable(format!("no response from {at}"))
    };
    let mut response = request.send().await.map_err(unavailable)?;
    let (status, url) = (response.status(), response.url().clone());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
        if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
            return Err(LoginError::Unavailable(format!("the response of {url} is too large")));
        }
        body.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&body).map_err(|error| {
        tracing::debug!(%error, %status, %url, "the login provider's response has another form");
        LoginError::Unavailable(format!("{url} responded {status} with an unexpected body"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_tls_except_on_loopback() {
        for good in
            ["https://login.example.com", "http://127.0.0.1:3000", "http://localhost:1", "http://[::1]:1"]
        {
            assert!(check_url(&good.parse().unwrap()).is_ok(), "{good}");
        }
        for bad in
            ["http://login.example.com", "http://10.0.0.1", "http://localhost.example.com", "file:///x"]
        {
            assert!(check_url(&bad.parse().unwrap()).is_err(), "{bad}");
        }
    }
}
