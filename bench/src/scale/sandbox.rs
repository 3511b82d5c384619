//! The sandboxes that are measured.

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::api::{CreateSandbox, Sandbox};

/// TTL of a measured sandbox, in case this program dies; longer than the longest run.
const TTL_SECONDS: u64 = 6 * 3600;

/// Creates a sandbox of `base`.
pub async fn create(client: &Client) -> Result<Sandbox> {
    let request = CreateSandbox {
        template: Some("base".to_owned()),
        ttl_seconds: Some(TTL_SECONDS),
        ..CreateSandbox::default()
    };
    client.create_sandbox(&request, &uuid::Uuid::new_v4().to_string()).await.context("create")
}
