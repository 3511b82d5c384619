//! Asks other replicas for their operations in progress when something looks abandoned.
//!
//! A replica that makes, copies or saves a sandbox marks it in its own memory ([`InFlight`]). The leader, who compares
//! reports with the record, asks the others for their marks before it takes anything for a leftover: a question now and
//! then instead of two writes for each create.
//!
//! [`InFlight`]: pandastack_sandboxes::in_flight::InFlight

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_sandboxes::Peers;
use pandastack_sandboxes::in_flight::Marks;
use pandastack_store::Store;
use pandastack_store::replicas::Replica;
use pandastack_types::agent_api::internal::IN_FLIGHT;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::{Error, HostId, Result};

use super::Replicas;
use super::forward::client_for;

/// Longest time for a replica to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The other replicas on the database.
pub(crate) struct ReplicaPeers {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) link: LinkKey,
}

#[async_trait]
impl Peers for ReplicaPeers {
    async fn marks(&self) -> Result<Marks> {
        let mut marks = Marks::default();
        for replica in self.store.replicas().await? {
            if replica.instance != self.replicas.instance {
                marks.extend(self.fetch_marks(&replica).await?);
            }
        }
        Ok(marks)
    }
}

impl ReplicaPeers {
    async fn fetch_marks(&self, replica: &Replica) -> Result<Marks> {
        let (http, base) = client_for(&replica.address, &self.replicas.tls)?;
        let me: HostId = self.replicas.instance.parse().map_err(Error::internal)?;
        let at = Timestamp::now().as_second();
        let signature = self.link.sign(Direction::AgentToControl, &me, "GET", IN_FLIGHT, at);
        let asked = http.get(format!("{base}{IN_FLIGHT}")).header(LINK_HEADER, signature).timeout(ANSWER_MAX);
        let answered = asked.send().await.and_then(reqwest::Response::error_for_status);
        answered.map_err(Error::internal)?.json().await.map_err(Error::internal)
    }
}
