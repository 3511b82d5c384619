//! Sandboxes as E2B's clients see them.

use http::{HeaderMap, header};
use jiff::Timestamp;
use pandastack_types::api::{Metadata, OnTimeout, Sandbox};
use serde_json::{Value, json};

use crate::sandbox_state::{auto_resumes, is_paused};

/// Version of the daemon that clients may expect in a sandbox: everything up to, and not including,
/// metadata of files (0.6.2) and entries in watch events (0.6.3). Clients refuse newer features by
/// themselves.
pub(super) const ENVD_VERSION: &str = "0.6.4";
/// Required by the clients and without meaning.
const CLIENT_ID: &str = "pandastack";
/// Prefix of our own labels; clients do not see them.
const OWN_LABELS: &str = "e2b.";
/// Labels that the platform gives to forks.
const FORK_LABELS: [&str; 2] = ["fork_tree_id", "fork_parent_id"];
/// Size of every root disk, as in the templates' recipes.
pub(super) const DISK_MB: u64 = 8 * 1024;

/// Answer of create, connect and fork.
pub(super) fn sandbox(sandbox: &Sandbox, token: Option<String>, domain: &str) -> Value {
    json!({
        "sandboxID": sandbox.id,
        "templateID": sandbox.template,
        "alias": sandbox.template,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": token,
        "domain": domain,
    })
}

/// An element of a list.
pub(super) fn listed(sandbox: &Sandbox) -> Value {
    // Clients require an end; a sandbox without one gets the farthest that all of them can read.
    let end = sandbox.expires_at.unwrap_or_else(|| far_future(sandbox.created_at));
    json!({
        "sandboxID": sandbox.id,
        "templateID": sandbox.template,
        "alias": sandbox.template,
        "clientID": CLIENT_ID,
        "startedAt": sandbox.created_at.to_string(),
        "endAt": end.to_string(),
        "cpuCount": sandbox.cpu,
        "memoryMB": sandbox.memory_mb,
        "diskSizeMB": DISK_MB,
        "state": state(sandbox),
        "envdVersion": ENVD_VERSION,
        "metadata": shown_metadata(&sandbox.metadata),
    })
}

/// Returns the sandbox in detail.
pub(super) fn detail(sandbox: &Sandbox, token: Option<String>, on_timeout: OnTimeout, domain: &str) -> Value {
    let mut detail = listed(sandbox);
    detail["envdAccessToken"] = token.into();
    detail["domain"] = domain.into();
    let on_timeout = match on_timeout {
        OnTimeout::Kill => "kill",
        OnTimeout::Hibernate => "pause",
    };
    detail["lifecycle"] = json!({ "autoResume": auto_resumes(sandbox), "onTimeout": on_timeout });
    detail
}

/// `running` or `paused`; E2B has no other states.
pub(super) fn state(sandbox: &Sandbox) -> &'static str {
    if is_paused(sandbox) { "paused" } else { "running" }
}

/// Labels without those of the platform.
pub(super) fn shown_metadata(metadata: &Metadata) -> Metadata {
    let own = |key: &str| key.starts_with(OWN_LABELS) || FORK_LABELS.contains(&key);
    metadata.iter().filter(|(key, _)| !own(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn far_future(from: Timestamp) -> Timestamp {
    from.checked_add(jiff::SignedDuration::from_hours(24 * 365)).unwrap_or(from)
}

/// Parent domain of a sandbox's ports, from the address that the client used.
pub(super) fn domain(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, Some(port)),
        _ => (host, None),
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let name = match bare.parse::<std::net::IpAddr>() {
        // Addresses have no names below them, `localhost` has.
        Ok(_) => "localhost",
        Err(_) => name.strip_prefix("api.").unwrap_or(name),
    };
    port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_ports_use_the_api_domain() {
        for (host, expected) in [
            ("127.0.0.1:8080", "localhost:8080"),
            ("[::1]:8080", "localhost:8080"),
            ("localhost:8080", "localhost:8080"),
            ("api.example.com", "example.com"),
            ("panda.example.com:8443", "panda.example.com:8443"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            assert_eq!(domain(&headers), expected, "{host}");
        }
    }

    #[test]
    fn platform_labels_are_hidden() {
        let metadata: Metadata = [("a", "1"), ("e2b.auto_resume", "true"), ("fork_tree_id", "x")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
        assert_eq!(shown_metadata(&metadata), [("a".to_owned(), "1".to_owned())].into());
    }
}
