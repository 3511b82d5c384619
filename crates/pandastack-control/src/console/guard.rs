//! Checks that requests with a session cookie come from the console's own pages.
//!
//! `SameSite=Strict` is not enough: apps and previews can be on the same site. `Sec-Fetch-Site` and
//! `Origin`, as far as the browser sends them, must name this very origin; at least one is
//! required. The request must be made by a script, never a navigation: a file of a sandbox must not
//! become a page of this origin.

use axum::response::Response;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri, header};
use pandastack_types::{Error, ErrorCode, Result};

/// Responses to a session are data: a browser shows none as a page, and runs nothing in it.
const DATA_ONLY: &str = "default-src 'none'; sandbox; frame-ancestors 'none'";

/// Refuses requests that other pages make with the console's cookie.
pub(super) fn check(uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if text("sec-fetch-dest").is_some_and(|kind| !matches!(kind, "empty" | "websocket")) {
        return Err(refused("it is a page navigation"));
    }
    let site = text("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin") {
        return Err(refused("it comes from another site"));
    }
    match text("origin") {
        Some(origin) if is_own(origin, uri, headers) => Ok(()),
        Some(_) => Err(refused("it comes from another origin")),
        None if site.is_some() => Ok(()),
        None => Err(refused("it has no Origin header")),
    }
}

/// Returns whether an origin is this server's, under the name by which it was called.
fn is_own(origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
    // HTTP/2 names the host in the address, HTTP/1 in a header.
    let header = || headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(Authority::as_str).or_else(header).unwrap_or_default();
    let named = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    !host.is_empty() && named.is_some_and(|named| named.eq_ignore_ascii_case(host))
}

/// Returns whether a browser would keep the cookie: with TLS, and on loopback addresses.
pub(super) fn keeps_cookies(headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).unwrap_or_default();
    let Some(host) = origin.strip_prefix("http://") else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || name == "localhost" || name.ends_with(".localhost")
}

/// Makes a response to a session harmless if a browser ever opens it as a page.
pub(crate) fn protect(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(DATA_ONLY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn refused(why: &str) -> Error {
    let message = format!(
        "the console's cookie is not accepted for this request, because {why}; send an API key as \
         `Authorization: Bearer pds_...`"
    );
    Error::new(ErrorCode::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_same_origin_console_calls_are_accepted() {
        let host = ("host", "panda.example.com:8443");
        let own = ("origin", "https://panda.example.com:8443");
        for (good, pairs) in [
            (true, vec![host, ("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "empty")]),
            (true, vec![host, own]),
            (true, vec![host, own, ("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "websocket")]),
            (false, vec![host]),
            (false, vec![("origin", "https://")]),
            (false, vec![host, ("origin", "null")]),
            (false, vec![host, ("origin", "https://3000-abc.panda.example.com:8443")]),
            (false, vec![host, ("origin", "https://panda.example.com")]),
            (false, vec![host, own, ("sec-fetch-site", "same-site")]),
            (false, vec![host, ("sec-fetch-site", "same-site")]),
            (false, vec![host, ("sec-fetch-site", "none")]),
            (false, vec![host, ("sec-fetch-site", "cross-site"), own]),
            (false, vec![host, ("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")]),
            (false, vec![host, ("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "document")]),
            (false, vec![host, ("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "iframe")]),
        ] {
            assert_eq!(check(&Uri::from_static("/me"), &headers(&pairs)).is_ok(), good, "{pairs:?}");
        }
        let http2 = Uri::from_static("https://panda.example.com:8443/me");
        assert!(check(&http2, &headers(&[own])).is_ok());
        assert!(check(&http2, &headers(&[("origin", "https://evil.example")])).is_err());
    }

    #[test]
    fn cookies_require_tls_or_loopback() {
        for (origin, kept) in [
            ("https://panda.example.com", true),
            ("http://127.0.0.1:8080", true),
            ("http://localhost:8080", true),
            ("http://[::1]:8080", true),
            ("http://10.0.0.4:8080", false),
            ("http://panda.example.com", false),
            ("http://localhost.example.com", false),
        ] {
            assert_eq!(keeps_cookies(&headers(&[("origin", origin)])), kept, "{origin}");
        }
    }
}
