//! The page that a browser shows after a failed sign-in.

use axum::response::{Html, IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use pandastack_rest::ApiError;
use pandastack_types::{Error, ErrorCode};

/// An error as a page for browsers, and as JSON for other clients.
pub(super) fn refusal(error: Error, headers: &HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accepted.contains("text/html") {
        return ApiError(error).into_response();
    }
    tracing::info!(%error, "a sign-in failed");
    let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers =
        [(header::CONTENT_SECURITY_POLICY, "default-src 'none'"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, Html(page(&error))).into_response()
}

fn page(error: &Error) -> String {
    let next = match error.code {
        ErrorCode::Forbidden => "An owner of the workspace or the operator can give you access.",
        ErrorCode::RateLimited => "Wait a minute before you try again.",
        ErrorCode::NotImplemented => "Use an API key instead.",
        _ => "Sign-in attempts end after 10 minutes, and each works once, in one browser.",
    };
    // Relative, because the API may be below another path.
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Sign-in failed</title>\
         <h1>Sign-in failed</h1><p>{}</p><p>{next}</p><p><a href=\"start\">Sign in again</a></p></html>\n",
        escaped(&error.to_string())
    )
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn browsers_get_a_page_and_other_clients_json() {
        let error = || Error::new(ErrorCode::Forbidden, "`<b>\"a&b@example.com\"` has no role");
        let mut headers = HeaderMap::new();
        let kind =
            |response: &Response| response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let json = refusal(error(), &headers);
        assert_eq!((json.status().as_u16(), kind(&json).as_str()), (403, "application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.8"));
        let html = refusal(error(), &headers);
        assert_eq!((html.status().as_u16(), kind(&html).as_str()), (403, "text/html; charset=utf-8"));
        let page = page(&error());
        assert!(page.contains("`&lt;b&gt;&quot;a&amp;b@example.com&quot;` has no role"), "{page}");
        assert!(page.contains("can give you access") && page.contains("href=\"start\""), "{page}");
    }
}
