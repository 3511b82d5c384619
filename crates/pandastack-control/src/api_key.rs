//! The API key of a request, and names in paths that are looked up for it.

use async_trait::async_trait;
use axum::extract::Request;
use http::HeaderValue;
use http::header::AUTHORIZATION;
use pandastack_rest::FindNamed;
use pandastack_store::names::Named;
use pandastack_types::{Result, WorkspaceId};

use crate::auth::{Keys, unauthorized};

/// Header of a key, beside `Authorization`.
pub(crate) const API_KEY_HEADER: &str = "x-api-key";

/// The key in a header, else in the query. Refuses headers with different ones: which of them counts would be
/// a guess.
pub(crate) fn presented(request: &Request) -> Result<Option<String>> {
    let bearers = request.headers().get_all(AUTHORIZATION).iter().filter_map(bearer);
    let own = request.headers().get_all(API_KEY_HEADER).iter().filter_map(|value| value.to_str().ok());
    let mut keys = bearers.chain(own.map(str::trim));
    if let Some(first) = keys.next() {
        return match keys.all(|key| key == first) {
            true => Ok(Some(first.to_owned())),
            false => Err(unauthorized("the request has different API keys; send one")),
        };
    }
    if request.headers().contains_key(AUTHORIZATION) {
        return Ok(None);
    }
    let mut pairs = request.uri().query().unwrap_or_default().split('&');
    Ok(pairs.find_map(|pair| pair.strip_prefix("access_token=")).map(str::to_owned))
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

#[async_trait]
impl FindNamed for Keys {
    async fn find(&self, workspace: &WorkspaceId, what: &'static str, text: &str) -> Result<Option<String>> {
        let kinds = [Named::Sandbox, Named::Snapshot, Named::Database];
        match kinds.into_iter().find(|kind| kind.what() == what) {
            Some(kind) => Ok(self.store.find_named(workspace, kind, text).await?),
            None => Ok(None),
        }
    }
}
