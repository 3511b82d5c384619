//! Determines where a request goes, from its `Host` and headers only.
//!
//! | `Host` | goes to |
//! |---|---|
//! | `<port>-<sandbox id>.<domain>`, cut at the first `-` | that port of that sandbox |
//! | `localhost`, an address, or `sandbox.<domain>`, with `E2b-Sandbox-Id` and `E2b-Sandbox-Port` | likewise |
//! | another name with a dot, but for `api.` and `sandbox.` | the app of that name, if there is one, else the API |
//! | anything else | the API |
//!
//! Any domain will do: which ones lead here is a matter of DNS, and an id is unguessable under each of them.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Uri, header};
use pandastack_types::SandboxId;

/// Names the sandbox in the header form.
const SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
/// Names the port in the header form.
const SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");

/// Longest host name there can be.
const NAME_BYTES_MAX: usize = 253;

/// The destination of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The platform's own API.
    Api,
    /// A port of a sandbox.
    Sandbox(Target),
    /// Perhaps an app's name, in lowercase; else the API's.
    Named(String),
    /// The host name resembles a sandbox's name but is malformed.
    Malformed(&'static str),
}

/// A port of a sandbox, and how it was named: answers of ours follow the form of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// TCP port inside it.
    pub port: u16,
    /// Named by headers, so errors have the form that those clients read.
    pub by_header: bool,
    /// The host name is the app owner's own, not one below the platform's domains.
    pub own_domain: bool,
}

/// Decides where a request goes.
pub fn destination(uri: &Uri, headers: &HeaderMap) -> Destination {
    // HTTP/2 and absolute forms name the host in the URI, and that one wins over the header.
    let host = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    };
    let name = without_port(host);
    if let Some((label, _domain)) = name.split_once('.')
        && let Some((port, id)) = label.split_once('-')
        && (1..=PORT_DIGITS_MAX).contains(&port.len())
        && port.bytes().all(|byte| byte.is_ascii_digit())
    {
        return target(port, id, false);
    }
    if takes_headers(name)
        && let Some(id) = headers.get(SANDBOX_ID)
    {
        let port = headers.get(SANDBOX_PORT).and_then(|port| port.to_str().ok()).unwrap_or_default();
        return target(port, id.to_str().unwrap_or_default(), true);
    }
    if may_be_app(name) { Destination::Named(name.to_ascii_lowercase()) } else { Destination::Api }
}

/// Longest port number. A label that starts with more digits is an app's id.
const PORT_DIGITS_MAX: usize = 5;

/// Whether a name may be an app's: names of the platform and addresses are not.
fn may_be_app(name: &str) -> bool {
    let reserved = name.starts_with("api.") || name.starts_with("sandbox.");
    name.contains('.') && !reserved && name.len() <= NAME_BYTES_MAX && name.parse::<IpAddr>().is_err()
}

fn target(port: &str, id: &str, by_header: bool) -> Destination {
    let Some(port) = port.parse::<u16>().ok().filter(|port| *port > 0) else {
        return Destination::Malformed("invalid port in the host name; use 1 to 65535");
    };
    // Host names do not know case, ids are lowercase, and so are nearly all names.
    match id.parse().or_else(|_| id.to_ascii_lowercase().parse()) {
        Ok(sandbox) => Destination::Sandbox(Target { sandbox, port, by_header, own_domain: false }),
        Err(_) => Destination::Malformed("the host name has no sandbox id; use <port>-<sandbox id>.<domain>"),
    }
}

fn takes_headers(name: &str) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.starts_with("sandbox.") || bare.parse::<IpAddr>().is_ok()
}

/// The name in `name:port` and `[v6]:port`.
fn without_port(host: &str) -> &str {
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55";

    #[track_caller]
    fn check(host: &str, extra: &[(&'static str, &str)], expect: Destination) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        for (name, value) in extra {
            headers.insert(*name, value.parse().unwrap());
        }
        assert_eq!(destination(&Uri::from_static("/x"), &headers), expect, "{host} {extra:?}");
    }

    fn sandbox(port: u16, by_header: bool) -> Destination {
        Destination::Sandbox(Target { sandbox: ID.parse().unwrap(), port, by_header, own_domain: false })
    }

    #[test]
    fn sandbox_host_names_are_split_at_the_first_dash() {
        check(&format!("8000-{ID}.localhost:8080"), &[], sandbox(8000, false));
        check(&format!("8000-{ID}.preview.example.com"), &[], sandbox(8000, false));
        check(&format!("8000-{}.LOCALHOST", ID.to_uppercase()), &[], sandbox(8000, false));
    }

    #[test]
    fn unmatched_host_names_are_treated_as_app_names() {
        let named = |name: &str| Destination::Named(name.to_owned());
        check(&format!("{ID}.localhost"), &[], named(&format!("{ID}.localhost")));
        check("Shop.Example.com:443", &[], named("shop.example.com"));
        for api in
            ["api.example.com", "sandbox.example.com", "127.0.0.1:8080", "[::1]:80", "localhost", "host"]
        {
            check(api, &[], Destination::Api);
        }
        check(&format!("{}.com", "a".repeat(253)), &[], Destination::Api);
    }

    #[test]
    fn headers_select_the_sandbox_when_the_host_name_does_not() {
        let named = [("e2b-sandbox-id", ID), ("e2b-sandbox-port", "49983")];
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "sandbox.example.com"] {
            check(host, &named, sandbox(49983, true));
        }
        let digits = "91234567-7d7f-4c58-9d0e-0d2b7a0f9a55.localhost";
        check(digits, &[], Destination::Named(digits.to_owned()));
        check("api.example.com", &named, Destination::Api);
        check(&format!("80-{ID}.localhost"), &named, sandbox(80, false));
        check("localhost", &[], Destination::Api);
    }

    #[test]
    fn a_malformed_sandbox_host_name_is_reported() {
        for host in [&format!("0-{ID}.localhost"), &format!("70000-{ID}.localhost"), "80-.localhost"] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            let found = destination(&Uri::from_static("/"), &headers);
            assert!(matches!(found, Destination::Malformed(_)), "{host}: {found:?}");
        }
        check(
            "localhost",
            &[("e2b-sandbox-id", ID)],
            Destination::Malformed("invalid port in the host name; use 1 to 65535"),
        );
    }

    #[test]
    fn the_uri_overrides_the_host_header() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "localhost".parse().unwrap());
        let uri: Uri = format!("http://80-{ID}.localhost/").parse().unwrap();
        assert_eq!(destination(&uri, &headers), sandbox(80, false));
    }
}
