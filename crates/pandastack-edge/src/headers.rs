//! Changes that the edge makes to headers.
//!
//! Headers that belong to one connection are not passed on (RFC 9110, 7.6.1), nor is anything that a client
//! may claim about itself: the guest can trust every `X-Forwarded-*` and `Forwarded` it sees. Bodies are
//! framed again on each side, so two ends can never disagree about where one ends.

mod client;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, Uri, Version};
use pandastack_types::api_key::{E2B_START, KEY_START, canonical};

pub use self::client::Client;

const PROXY: HeaderName = HeaderName::from_static("proxy");
/// E2B's clients send their API key in it. Apps use it for keys of their own, too, so only ours is removed.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Hop-by-hop headers, whether or not `Connection` names them.
const HOP_BY_HOP: [HeaderName; 4] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    TRANSFER_ENCODING,
];

/// Returns whether two parties could read different lengths from this head. Such a request is
/// refused, not repaired.
pub fn is_ambiguous(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let coded = headers.contains_key(TRANSFER_ENCODING);
    lengths > 1 || (lengths == 1 && coded) || headers.get_all(HOST).iter().count() > 1
}

/// The protocol to which a client wants to upgrade, such as `websocket`.
pub fn upgrade_of(parts: &Parts) -> Option<HeaderValue> {
    let wanted = parts.version == Version::HTTP_11 && names(&parts.headers, "upgrade");
    parts.headers.get(UPGRADE).filter(|_| wanted).cloned()
}

/// Returns whether `Connection` names an option.
pub(crate) fn names(headers: &HeaderMap, token: &str) -> bool {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case(token))
}

/// Returns whether a header must not be passed on unchanged. Checking the few headers of a head
/// costs less than looking up each of these in it.
fn is_ours(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authorization"
            | "transfer-encoding"
            | "upgrade"
            | "te"
            | "expect"
            | "authorization"
            | "x-api-key"
            // Programs that take their environment from headers read it as their own proxy.
            | "proxy"
    ) || is_claim(name)
}

/// Returns whether guests trust a header because proxies set it, so that only the edge may set it.
/// Programs that read headers from their environment cannot distinguish `_` from `-`.
fn is_claim(name: &HeaderName) -> bool {
    match name.as_str().as_bytes() {
        b"forwarded" => true,
        [b'x', b'-' | b'_', b'f', rest @ ..] => {
            rest.strip_prefix(b"orwarded").is_some_and(|rest| matches!(rest.first(), Some(b'-' | b'_')))
        }
        [b'x', b'-' | b'_', b'r', b'e', b'a', b'l', b'-' | b'_', b'i', b'p'] => true,
        _ => false,
    }
}

/// Removes headers that belong to one connection.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.keys().any(is_ours) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let named: Vec<HeaderName> =
            values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
        for name in named.into_iter().filter(|name| *name != HOST && *name != CONTENT_LENGTH) {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(UPGRADE);
}

/// Removes headers that a guest must not see or trust.
fn strip_claims(headers: &mut HeaderMap) {
    let trailers = headers.get(TE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    strip_hop_by_hop(headers);
    headers.remove(EXPECT);
    strip_header_keys(headers);
    if !trailers {
        headers.remove(TE);
    }
    let claims: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
    headers.remove(PROXY);
}

/// Removes API keys of ours from a head. Clients of the API may send theirs along; programs of users must
/// never see it.
pub fn strip_keys(parts: &mut Parts) {
    strip_header_keys(&mut parts.headers);
    strip_query_key(&mut parts.uri);
}

fn strip_header_keys(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, API_KEY] {
        if headers.get_all(&name).iter().any(|value| has_key(value.as_bytes())) {
            headers.remove(name);
        }
    }
}

/// Whether a value has an API key of ours, in either form.
fn has_key(bytes: &[u8]) -> bool {
    let begins = |start: &str| bytes.windows(start.len()).any(|part| part == start.as_bytes());
    begins(KEY_START) || begins(E2B_START) && words(bytes).any(|word| canonical(word).starts_with(KEY_START))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = &str> {
    let separated = bytes.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    separated.filter_map(|word| std::str::from_utf8(word).ok())
}

/// Removes API keys of ours from a query, where the API takes them as `access_token`.
fn strip_query_key(uri: &mut Uri) {
    let Some(query) = uri.query().filter(|query| has_key(query.as_bytes())) else { return };
    let is_key = |pair: &&str| pair.strip_prefix("access_token=").is_some_and(|key| has_key(key.as_bytes()));
    let rest = query.split('&').filter(|pair| !is_key(pair)).collect::<Vec<_>>().join("&");
    let target = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{rest}", uri.path()) };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = target.parse().ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

/// Rewrites a client's head for the guest, except for the headers that describe the client: see
/// [`Client::write_lines`].
pub fn to_guest(parts: &mut Parts) {
    let headers = &mut parts.headers;
    if headers.keys().any(is_ours) {
        strip_claims(headers);
    }
    strip_query_key(&mut parts.uri);
    name_host(&parts.uri, &mut parts.headers);
}

/// HTTP/2 and absolute forms carry the host in the URI; whoever serves the request finds it in the usual
/// header.
pub fn name_host(uri: &Uri, headers: &mut HeaderMap) {
    if let Some(authority) = uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
}

/// The name that the client used, where the guest sees another one in `Host`.
#[derive(Clone)]
struct ClientHost(HeaderValue);

/// Gives a request another `Host`. `X-Forwarded-Host` and `Forwarded` keep the client's.
pub fn replace_host(parts: &mut Parts, host: &str) {
    if let Ok(host) = HeaderValue::from_str(host)
        && let Some(from) = parts.headers.insert(HOST, host)
        // A request that is sent to a second machine has had its host replaced before.
        && parts.extensions.get::<ClientHost>().is_none()
    {
        parts.extensions.insert(ClientHost(from));
    }
}

/// Removes the extensions of a request, except for the name that the client used.
pub(crate) fn forget_extensions(parts: &mut Parts) {
    let host = parts.extensions.remove::<ClientHost>();
    parts.extensions.clear();
    if let Some(host) = host {
        parts.extensions.insert(host);
    }
}

/// The name that the client used.
pub(crate) fn client_host(parts: &Parts) -> Option<&HeaderValue> {
    let replaced = parts.extensions.get::<ClientHost>().map(|host| &host.0);
    replaced.or_else(|| parts.headers.get(HOST))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(lines: &[(&'static str, &'static str)]) -> Parts {
        let mut request = Request::builder().uri("/x?y=1");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn client() -> Client {
        Client::new("203.0.113.9".parse().unwrap(), 8080, false)
    }

    #[test]
    fn forwarding_headers_of_a_client_are_replaced() {
        let mut head = parts(&[
            ("host", "80-a.localhost:8080"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=9.9.9.9"),
            ("x-real-ip", "9.9.9.9"),
            ("x_forwarded_for", "9.9.9.9"),
            ("x-forwarded-user", "root"),
            ("x-forwarded-email", "root@example.com"),
            ("x-forwarded-uri", "/admin"),
            ("x-forwarded-client-cert", "Subject=root"),
            ("proxy", "http://evil"),
            ("x-forwardedness", "1"),
        ]);
        to_guest(&mut head);
        let host = head.headers["host"].clone();
        client().insert_headers(&host, &mut head.headers);
        let get = |name: &str| -> Vec<_> { head.headers.get_all(name).iter().collect() };
        assert_eq!(get("x-forwarded-for"), ["203.0.113.9"]);
        assert_eq!(get("x-forwarded-proto"), ["http"]);
        assert_eq!(get("x-forwarded-host"), ["80-a.localhost:8080"]);
        assert_eq!(get("x-forwarded-port"), ["8080"]);
        assert_eq!(get("forwarded"), ["for=203.0.113.9;host=\"80-a.localhost:8080\";proto=http"]);
        for gone in ["user", "email", "uri", "client-cert"] {
            assert!(get(&format!("x-forwarded-{gone}")).is_empty(), "{gone}");
        }
        assert!(get("x-real-ip").is_empty() && get("proxy").is_empty() && get("x_forwarded_for").is_empty());
        assert_eq!(get("x-forwardedness"), ["1"]);
    }

    #[test]
    fn forwarding_headers_from_clients_are_removed() {
        let claims = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-user",
            "x_forwarded_for",
            "x-real-ip",
            "forwarded",
            "proxy",
        ];
        for claim in claims {
            let mut head = parts(&[("host", "a"), (claim, "1")]);
            to_guest(&mut head);
            assert_eq!(head.headers.keys().collect::<Vec<_>>(), ["host"], "{claim}");
        }
    }

    #[test]
    fn platform_api_keys_are_stripped_before_the_guest() {
        let mut head = parts(&[("host", "a"), ("x-api-key", "pds_0123456789abcdef0123456789abcdef")]);
        head.uri = "/x?y=1&access_token=pds_0123&z=2".parse().unwrap();
        to_guest(&mut head);
        assert_eq!(head.headers.keys().collect::<Vec<_>>(), ["host"]);
        assert_eq!(head.uri, "/x?y=1&z=2");
        let mut both = parts(&[("x-api-key", "own"), ("x-api-key", "pds_0123")]);
        to_guest(&mut both);
        assert!(both.headers.is_empty(), "{:?}", both.headers);
        let form = pandastack_types::api_key::for_e2b("pds_0123456789abcdef0123456789abcdef").unwrap();
        let mut e2b = Request::builder().uri(format!("/?access_token={form}")).header("x-api-key", &form);
        e2b = e2b.header("authorization", format!("Bearer {form}"));
        let mut e2b = e2b.body(()).unwrap().into_parts().0;
        to_guest(&mut e2b);
        assert!(e2b.headers.is_empty() && e2b.uri == "/", "{e2b:?}");
        let mut own = parts(&[("x-api-key", "a key of the app, or e2b_00 of another service")]);
        own.uri = "/?access_token=own&q=pds_".parse().unwrap();
        to_guest(&mut own);
        assert_eq!(own.headers["x-api-key"], "a key of the app, or e2b_00 of another service");
        assert_eq!(own.uri, "/?access_token=own&q=pds_");
    }

    #[test]
    fn every_platform_header_is_recognized() {
        let others = [CONNECTION, UPGRADE, TE, EXPECT, AUTHORIZATION, API_KEY, PROXY];
        for name in HOP_BY_HOP.iter().chain(&others) {
            assert!(is_ours(name), "{name}");
        }
        assert!(!is_ours(&HOST) && !is_ours(&CONTENT_LENGTH));
    }

    #[test]
    fn hop_by_hop_headers_are_not_forwarded() {
        let mut head = parts(&[
            ("host", "a"),
            ("connection", "keep-alive, X-Secret-Hop, host"),
            ("x-secret-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-kept", "1"),
        ]);
        to_guest(&mut head);
        for gone in ["connection", "x-secret-hop", "keep-alive", "te", "transfer-encoding", "upgrade"] {
            assert!(!head.headers.contains_key(gone), "{gone}");
        }
        assert!(head.headers.contains_key("x-kept") && head.headers.contains_key("host"));
    }

    #[test]
    fn only_platform_keys_are_stripped_from_authorization() {
        for (value, kept) in [("Bearer pds_0123", false), ("Bearer eyJ", true), ("Basic dTpw", true)] {
            let mut head = parts(&[("authorization", value)]);
            to_guest(&mut head);
            assert_eq!(head.headers.contains_key("authorization"), kept, "{value}");
        }
    }

    #[test]
    fn conflicting_length_and_host_headers_are_ambiguous() {
        let check = |lines: &[(&'static str, &'static str)], expect| {
            assert_eq!(is_ambiguous(&parts(lines).headers), expect, "{lines:?}");
        };
        check(&[("content-length", "3")], false);
        check(&[("transfer-encoding", "chunked")], false);
        check(&[("content-length", "3"), ("transfer-encoding", "chunked")], true);
        check(&[("content-length", "3"), ("content-length", "4")], true);
        check(&[("host", "a"), ("host", "b")], true);
    }

    #[test]
    fn an_upgrade_requires_both_headers() {
        assert!(
            upgrade_of(&parts(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")])).is_some()
        );
        assert!(upgrade_of(&parts(&[("upgrade", "websocket")])).is_none());
        assert!(upgrade_of(&parts(&[("connection", "upgrade")])).is_none());
    }
}
