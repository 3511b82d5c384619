//! What a key needs to be allowed to do, by request.
//!
//! One rule for every route, so that a new one is closed to keys that only read unless it only reads.

use http::{HeaderMap, Method, header};
use pandastack_types::api::Scope;

/// Routes about the installation and its keys, below `/v1`.
const ADMIN_ROUTES: [&str; 4] = ["/me/tokens", "/hosts", "/audit", "/console/sessions"];

/// The least scope that may make a request.
pub(crate) fn needed(method: &Method, path: &str, headers: &HeaderMap) -> Scope {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let under =
        |route: &str| path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if ADMIN_ROUTES.iter().any(|route| under(route)) {
        return Scope::Admin;
    }
    if (under("/me/quota") || under("/me/workspace")) && method != Method::GET {
        return Scope::Admin;
    }
    // A GET that asks for another protocol opens a session in the sandbox.
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    if reads && !headers.contains_key(header::UPGRADE) { Scope::Read } else { Scope::Sandboxes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_needs_the_least_and_keys_the_most() {
        let none = HeaderMap::new();
        let mut upgrade = HeaderMap::new();
        upgrade.insert(header::UPGRADE, "websocket".parse().unwrap());
        for (method, path, headers, scope) in [
            (Method::GET, "/sandboxes", &none, Scope::Read),
            (Method::HEAD, "/v1/sandboxes/x/fs", &none, Scope::Read),
            (Method::POST, "/v1/sandboxes", &none, Scope::Sandboxes),
            (Method::PUT, "/sandboxes/x/fs", &none, Scope::Sandboxes),
            (Method::GET, "/sandboxes/x/exec/ws", &upgrade, Scope::Sandboxes),
            (Method::GET, "/me", &none, Scope::Read),
            (Method::GET, "/me/tokens", &none, Scope::Admin),
            (Method::DELETE, "/v1/me/tokens/pds_1", &none, Scope::Admin),
            (Method::GET, "/v1/me/quota", &none, Scope::Read),
            (Method::PUT, "/v1/me/quota", &none, Scope::Admin),
            (Method::GET, "/v1/me/workspace", &none, Scope::Read),
            (Method::PATCH, "/v1/me/workspace", &none, Scope::Admin),
            (Method::GET, "/hosts", &none, Scope::Admin),
            (Method::DELETE, "/v1/console/sessions/x", &none, Scope::Admin),
            (Method::GET, "/audit", &none, Scope::Admin),
            (Method::GET, "/hostsome", &none, Scope::Read),
        ] {
            assert_eq!(needed(&method, path, headers), scope, "{method} {path}");
        }
    }
}
