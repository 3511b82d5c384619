//! Addresses as the caller reaches them.

use std::net::IpAddr;

use http::HeaderMap;

/// The address of something that has a host name of its own beside the API's.
pub fn beside(headers: &HeaderMap, label: &str) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    let host = text("host").unwrap_or("localhost");
    let (name, number) = match host.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => (name, Some(number)),
        _ => (host, None),
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let name = match bare.parse::<IpAddr>() {
        Ok(_) => "localhost",
        Err(_) => name.strip_prefix("api.").unwrap_or(name),
    };
    let number = number.map(|number| format!(":{number}")).unwrap_or_default();
    format!("{scheme}://{label}.{name}{number}")
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[track_caller]
    fn check(host: &'static str, expect: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static(host));
        assert_eq!(beside(&headers, "80-a"), expect, "{host}");
    }

    #[test]
    fn a_preview_has_a_name_beside_the_api() {
        check("127.0.0.1:8080", "http://80-a.localhost:8080");
        check("[::1]:8080", "http://80-a.localhost:8080");
        check("localhost", "http://80-a.localhost");
        check("api.example.com", "http://80-a.example.com");
        check("panda.example.com:8443", "http://80-a.panda.example.com:8443");
    }
}
