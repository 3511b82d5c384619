//! Identifies webhook deliveries, to detect repeated ones.

use http::HeaderMap;

/// Bytes of a delivery's name that are kept.
const DELIVERY_BYTES_MAX: usize = 200;

/// A header that is text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The Git host's id of a delivery.
pub(crate) fn delivery(headers: &HeaderMap) -> Option<String> {
    let names = ["x-github-delivery", "x-gitea-delivery", "x-gitlab-event-uuid"];
    let found = names.into_iter().find_map(|name| header(headers, name))?;
    Some(found.chars().take(DELIVERY_BYTES_MAX).collect())
}
