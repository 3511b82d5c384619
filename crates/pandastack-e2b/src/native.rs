//! Calls the native API within the process.
//!
//! A request goes through the same router as one from the network, so it is authenticated, limited, checked and audited
//! there. Two identities exist: the caller's own API key, and [`DelegatedAccess`] of a sandbox, for calls that proved to know
//! its access token. The second travels as a request extension, which nothing from the network can set.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{Extensions, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use pandastack_edge::Client;
use pandastack_types::api::Sandbox;
use pandastack_types::link::LinkKey;
use pandastack_types::{ErrorBody, ErrorCode, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use crate::limits::ANSWER_BYTES_MAX;
use crate::token::TokenKey;

/// Marks a request on behalf of the holder of a sandbox's access token: in that sandbox it has the
/// rights of a workspace key with scope `sandboxes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegatedAccess {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Public prefix of the API key that the token was created for, once the token was checked. Open
    /// streams end with that key.
    pub key: Option<String>,
}

/// A sandbox, and the default user of its calls.
#[derive(Debug, Clone)]
pub struct FoundSandbox {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// User of calls that name none, if the sandbox's template sets one: `name` or `uid`, optionally with
    /// `:group`.
    pub user: Option<String>,
}

/// Sandbox data that is needed before authentication.
#[async_trait]
pub trait Directory: Send + Sync {
    /// A sandbox of any workspace that is not being deleted.
    async fn find(&self, id: &SandboxId) -> Result<Option<FoundSandbox>, DirectoryUnavailable>;
    /// Access data of a sandbox, beside its id, for a client at that address.
    async fn access(
        &self,
        id: &SandboxId,
        from: Option<IpAddr>,
    ) -> Result<Option<Access>, DirectoryUnavailable>;
    /// Refuses an API key that is invalid, or not allowed from that address. Counts invalid keys.
    async fn check_key(&self, key: &str, from: Option<IpAddr>) -> pandastack_types::Result<()>;
    /// Returns whether a client at an address may try a credential, given its failed attempts.
    fn admits(&self, from: Option<IpAddr>) -> bool;
    /// Counts a wrong credential.
    fn count_invalid_key(&self, from: Option<IpAddr>);
}

/// Inputs of a sandbox's access tokens. Raising the revision, or deleting a key, ends the tokens
/// made with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Counts revocations.
    pub revision: u64,
    /// Public prefixes of the API keys of the sandbox's workspace that may use sandboxes, have not
    /// expired, and are allowed from the request's address.
    pub keys: Vec<String>,
}

/// The record of sandboxes does not respond.
#[derive(Debug, thiserror::Error)]
#[error("sandbox records are unavailable; try again in a moment")]
pub struct DirectoryUnavailable(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// A native call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct NativeError {
    pub(crate) status: StatusCode,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) message: String,
    pub(crate) retry_after: Option<HeaderValue>,
}

impl NativeError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, code: None, message: message.into(), retry_after: None }
    }

    /// The native API's response cannot be read, or the request cannot be built.
    fn bad_response(what: impl std::fmt::Display) -> Self {
        tracing::error!(%what, "unexpected response of the native API");
        Self::new(StatusCode::BAD_GATEWAY, "internal server error; search the server's log for the cause")
    }

    pub(crate) fn is_missing_file(&self) -> bool {
        self.code == Some(ErrorCode::FileNotFound)
    }
}

pub(crate) type NativeResult<T> = Result<T, NativeError>;

/// The identity on whose behalf a call is made.
#[derive(Debug, Clone)]
pub(crate) enum Identity {
    /// The API key of the request.
    Key(String),
    /// The holder of a sandbox's access token.
    Sandbox(DelegatedAccess),
}

/// The native API.
#[derive(Clone)]
pub(crate) struct Native {
    api: Router,
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) tokens: TokenKey,
}

/// The native API with an identity.
#[derive(Clone)]
pub(crate) struct Caller {
    api: Router,
    identity: Identity,
    /// The client: networks of keys and the limit of failed attempts depend on its address.
    client: Option<Client>,
}

impl Native {
    pub(crate) fn new(api: Router, directory: Arc<dyn Directory>, link: &LinkKey) -> Self {
        Self { api, directory, tokens: TokenKey::new(link) }
    }

    /// The access token of a sandbox for a caller; `None` if its key may not use sandboxes.
    pub(crate) async fn token_for(
        &self,
        caller: &Caller,
        sandbox: &SandboxId,
    ) -> Result<Option<String>, DirectoryUnavailable> {
        let Identity::Key(key) = &caller.identity else { return Ok(None) };
        let from = caller.client.as_ref().map(|client| client.address);
        let access = self.directory.access(sandbox, from).await?.unwrap_or_default();
        let prefix = access.keys.iter().find(|prefix| key.starts_with(prefix.as_str()));
        Ok(prefix.map(|prefix| self.tokens.token(sandbox, prefix, access.revision)))
    }

    /// Calls with an identity, made for the client of a request.
    pub(crate) fn caller(&self, identity: Identity, extensions: &Extensions) -> Caller {
        Caller { api: self.api.clone(), identity, client: extensions.get::<Client>().cloned() }
    }
}

impl Caller {
    /// The same for a token issued for the key with this prefix.
    pub(crate) fn with_token_of(mut self, prefix: String) -> Self {
        if let Identity::Sandbox(behalf) = &mut self.identity {
            behalf.key = Some(prefix);
        }
        self
    }

    /// Sends a request whose path is below `/v1`; an error status becomes an error.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> NativeResult<Response> {
        match &self.identity {
            Identity::Key(key) => {
                let value = HeaderValue::from_str(&format!("Bearer {key}"));
                let unreadable = |_| {
                    NativeError::new(
                        StatusCode::UNAUTHORIZED,
                        "the API key contains invalid characters; check E2B_API_KEY",
                    )
                };
                request.headers_mut().insert(header::AUTHORIZATION, value.map_err(unreadable)?);
            }
            Identity::Sandbox(behalf) => {
                request.extensions_mut().insert(behalf.clone());
            }
        }
        if let Some(client) = &self.client {
            request.extensions_mut().insert(client.clone());
        }
        let response = self.api.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        if response.status().is_client_error() || response.status().is_server_error() {
            return Err(refusal(response).await);
        }
        Ok(response)
    }

    /// Sends JSON, or nothing, and reads JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> NativeResult<T> {
        let bytes = self.bytes(method, path, body).await?;
        let text = if bytes.is_empty() { b"null".as_slice() } else { &bytes };
        serde_json::from_slice(text).map_err(NativeError::bad_response)
    }

    /// Reads JSON.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> NativeResult<T> {
        self.json(Method::GET, path, None::<&()>).await
    }

    /// Sends JSON, or nothing, and ignores the response body.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> NativeResult<()> {
        self.bytes(method, path, body).await.map(drop)
    }

    async fn bytes(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> NativeResult<Bytes> {
        let bytes = match body {
            Some(body) => serde_json::to_vec(body).map_err(NativeError::bad_response)?,
            None => Vec::new(),
        };
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(Body::from(bytes));
        read_all(self.send(request.map_err(NativeError::bad_response)?).await?).await
    }

    /// Opens a stream, or any response that is not read whole.
    pub(crate) async fn open(&self, path: &str) -> NativeResult<Response> {
        let request = Request::builder().uri(path).body(Body::empty());
        self.send(request.map_err(NativeError::bad_response)?).await
    }
}

async fn read_all(response: Response) -> NativeResult<Bytes> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    body.map(|collected| collected.to_bytes()).map_err(NativeError::bad_response)
}

async fn refusal(response: Response) -> NativeError {
    let status = response.status();
    let retry_after = response.headers().get(header::RETRY_AFTER).cloned();
    let body = match read_all(response).await {
        Ok(bytes) => serde_json::from_slice::<ErrorBody>(&bytes).ok(),
        Err(error) => return error,
    };
    match body {
        Some(body) => NativeError { status, code: Some(body.code), message: body.error, retry_after },
        None => NativeError::new(status, "the request failed without a reason"),
    }
}
