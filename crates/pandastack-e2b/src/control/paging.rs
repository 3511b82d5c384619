//! Pagination: a sorted list, continued after the last item of the previous page.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue};
use serde_json::Value;

use crate::error::{RestError, RestResult};
use crate::limits::PAGE_ITEMS_MAX;

const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// One page of `items`, each with its key. The token is the key of the last item shown, so that
/// items added or removed between two pages do not shift the others.
pub(super) fn page(
    items: Vec<(String, Value)>,
    limit: Option<usize>,
    token: Option<&str>,
) -> RestResult<Response> {
    let limit = match limit {
        Some(0) => return Err(RestError::bad_request("`limit` must be at least 1")),
        given => given.unwrap_or(PAGE_ITEMS_MAX).min(PAGE_ITEMS_MAX),
    };
    let start = match token {
        None | Some("") => 0,
        Some(token) => items.iter().position(|(key, _)| key == token).map(|at| at + 1).ok_or_else(|| {
            RestError::bad_request("`nextToken` has expired; list again from the first page")
        })?,
    };
    let more = items.len() > start + limit;
    let shown: Vec<_> = items.into_iter().skip(start).take(limit).collect();
    let next = shown.last().filter(|_| more).and_then(|(key, _)| HeaderValue::from_str(key).ok());
    let mut response = Json(shown.into_iter().map(|(_, item)| item).collect::<Vec<_>>()).into_response();
    if let Some(next) = next {
        response.headers_mut().insert(NEXT_TOKEN, next);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: usize) -> Vec<(String, Value)> {
        (0..count).map(|n| (format!("k{n}"), n.into())).collect()
    }

    #[test]
    fn pages_are_linked_by_tokens_until_the_last() {
        let next =
            |response: Response| response.headers().get(NEXT_TOKEN).map(|v| v.to_str().unwrap().to_owned());
        let first = next(page(items(5), Some(2), None).unwrap());
        assert_eq!(first.as_deref(), Some("k1"));
        assert_eq!(next(page(items(5), Some(2), Some("k1")).unwrap()).as_deref(), Some("k3"));
        assert_eq!(next(page(items(5), Some(2), Some("k3")).unwrap()), None);
        assert_eq!(next(page(items(4), Some(2), Some("k1")).unwrap()), None);
        assert!(page(items(4), Some(2), Some("gone")).is_err());
        assert!(page(items(4), Some(0), None).is_err());
    }

    #[test]
    fn page_size_is_limited() {
        let full = page(items(PAGE_ITEMS_MAX + 1), Some(usize::MAX), None).unwrap();
        assert_eq!(full.headers()[NEXT_TOKEN], format!("k{}", PAGE_ITEMS_MAX - 1));
        assert!(!page(items(PAGE_ITEMS_MAX), None, None).unwrap().headers().contains_key(NEXT_TOKEN));
    }
}
