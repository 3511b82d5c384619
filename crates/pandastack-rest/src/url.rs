//! URLs as the caller can reach them.

use std::net::IpAddr;

use http::HeaderMap;
use pandastack_types::domains::Domains;

/// URL of a host name next to the API's, based on the name by which the caller reached the API.
pub fn beside(headers: &HeaderMap, label: &str) -> String {
    let (scheme, name, number) = reached(headers);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let name = match bare.parse::<IpAddr>() {
        Ok(_) => "localhost",
        Err(_) => name.strip_prefix("api.").unwrap_or(name),
    };
    format!("{scheme}://{label}.{name}{number}")
}

/// The address of an app below one of the installation's domains: the caller's if it is one of those.
pub fn below(headers: &HeaderMap, label: &str, domains: &Domains) -> String {
    let (scheme, name, number) = reached(headers);
    format!("{scheme}://{label}.{}{number}", domains.for_caller(name))
}

/// Scheme, host and port (with its colon) by which the caller reached the API.
fn reached(headers: &HeaderMap) -> (&'static str, &str, String) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    let host = text("host").unwrap_or("localhost");
    match host.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            (scheme, name, format!(":{number}"))
        }
        _ => (scheme, host, String::new()),
    }
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
    fn an_app_url_uses_only_a_configured_domain() {
        let domains = Domains::new(&["example.com".to_owned()], &[]).unwrap();
        let told = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            below(&headers, "shop", &domains)
        };
        assert_eq!(told("api.example.com:8443"), "http://shop.example.com:8443");
        assert_eq!(told("x.evil.example"), "http://shop.example.com");
        assert_eq!(told("127.0.0.1:8080"), "http://shop.localhost:8080");
    }

    #[test]
    fn a_preview_host_name_derives_from_the_api_host() {
        check("127.0.0.1:8080", "http://80-a.localhost:8080");
        check("[::1]:8080", "http://80-a.localhost:8080");
        check("localhost", "http://80-a.localhost");
        check("api.example.com", "http://80-a.example.com");
        check("panda.example.com:8443", "http://80-a.panda.example.com:8443");
    }
}
