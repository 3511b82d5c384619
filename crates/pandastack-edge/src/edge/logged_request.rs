//! The parts of a request that the access log needs.

use std::sync::Arc;
use std::time::Instant;

use http::request::Parts;
use http::{Method, Uri};
use pandastack_types::SandboxId;

use crate::access_log::{AccessLog, Entry};
use crate::headers::Client;

/// A request as the access log shows it.
pub(super) struct LoggedRequest {
    pub(super) began: Instant,
    client: Arc<str>,
    method: Method,
    uri: Uri,
}

impl LoggedRequest {
    pub(super) fn of(parts: &Parts, client: &Client) -> Self {
        Self {
            began: Instant::now(),
            client: client.text(),
            method: parts.method.clone(),
            uri: parts.uri.clone(),
        }
    }

    pub(super) fn entry(self, log: Arc<AccessLog>, sandbox: Arc<SandboxId>, port: u16, status: u16) -> Entry {
        let Self { began, client, method, uri } = self;
        Entry { log, sandbox, port, client, method, uri, status, bytes: 0, began }
    }
}
