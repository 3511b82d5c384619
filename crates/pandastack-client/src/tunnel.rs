//! TCP tunnels to ports of sandboxes.

use pandastack_types::SandboxId;
use pandastack_types::grant::TUNNEL_UPGRADE;
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, Upgraded};

use crate::client::Client;
use crate::error::Result;

impl Client {
    /// Opens a stream to a port; wakes a hibernated sandbox.
    pub async fn tunnel(&self, id: &SandboxId, port: u16) -> Result<Upgraded> {
        let call = self.open_ended_call(Method::GET, &["sandboxes", id.as_str(), "tunnel"]);
        let call = call.query(&[("port", &port.to_string())]);
        let call = call.with(|builder| builder.header(CONNECTION, "upgrade").header(UPGRADE, TUNNEL_UPGRADE));
        call.upgrade().await
    }
}
