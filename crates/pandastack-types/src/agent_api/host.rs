//! Host reports, and the response to them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::{AgentSandbox, AgentVolume};
use crate::link::LinkKey;
use crate::{HostId, SandboxId, SnapshotId};

/// A template as a host has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTemplate {
    /// The catalogue's description of it.
    pub template: TemplateInfo,
    /// Bake status: shows whether creates can start at once.
    pub status: crate::api::TemplateStatus,
    /// Bytes on this host.
    pub size_bytes: u64,
    /// Reason why the last bake failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A catalogue entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateInfo {
    /// Name to create from.
    pub name: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Human-readable name.
    pub label: String,
    /// Description of the contents.
    pub description: String,
    /// Group.
    pub category: String,
    /// Base of the template.
    pub base: String,
    /// Programs it offers.
    pub tools: Vec<String>,
    /// Number of vCPUs.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Volume that each sandbox of it comes with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<crate::api::TemplateVolume>,
    /// Hash of everything that its image is made of. Empty from agents that do not report it.
    #[serde(default)]
    pub image_key: String,
}

/// A report of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// The host's id.
    pub host: HostId,
    /// Address at which control reaches the agent: `unix:/path`, `http://address:port`, or for a host with a
    /// certificate `https://address:port`.
    pub address: String,
    /// Version of the agent.
    pub version: String,
    /// Engine of new sandboxes.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Memory of the host that may be promised.
    pub memory_total_mb: u64,
    /// Memory not promised to anyone.
    pub memory_free_mb: u64,
    /// Memory that sandboxes in light sleep release when a new one needs it.
    #[serde(default)]
    pub memory_held_asleep_mb: u64,
    /// Percent of a sandbox's memory that this host promises to it; all of it on hosts that do not say.
    #[serde(default = "all_of_it")]
    pub memory_promised_percent: u32,
    /// Free space of the store.
    pub disk_free_bytes: u64,
    /// Network slots not in use.
    pub slots_free: u32,
    /// Templates on the host.
    pub templates: Vec<AgentTemplate>,
    /// Every sandbox it has.
    pub sandboxes: Vec<AgentSandbox>,
    /// Every snapshot it has.
    pub snapshots: Vec<SnapshotId>,
    /// Every volume it has.
    #[serde(default)]
    pub volumes: Vec<AgentVolume>,
    /// Connections that network policies refused since the last acknowledged report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<AgentDenial>,
    /// When the report was made.
    pub at: Timestamp,
}

fn all_of_it() -> u32 {
    100
}

/// A limit on a sandbox's new connections, under the name of its setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressLimit {
    /// Connections at the same time.
    ConnectionsMax,
    /// New connections in a minute.
    ConnectionsPerMinute,
    /// Different addresses in a minute.
    DestinationsPerMinute,
}

impl EgressLimit {
    /// Every limit.
    pub const ALL: [Self; 3] =
        [Self::ConnectionsMax, Self::ConnectionsPerMinute, Self::DestinationsPerMinute];

    /// The name of its setting.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectionsMax => "connections_max",
            Self::ConnectionsPerMinute => "connections_per_minute",
            Self::DestinationsPerMinute => "destinations_per_minute",
        }
    }
}

/// A connection or lookup of a sandbox that its network policy refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentDenial {
    /// Sandbox ID.
    pub sandbox: SandboxId,
    /// `tcp`, `udp`, `icmp`, another protocol's number, or `dns` for a name that was not resolved.
    pub protocol: String,
    /// Destination address; none for names and for totals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::Ipv4Addr>,
    /// Destination port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The requested name, if the sandbox named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The limit that it was over; none if the policy refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<EgressLimit>,
    /// Occurrences since the last report.
    pub count: u64,
}

impl AgentDenial {
    /// Describes the refusal: `tcp 10.0.0.5:5432`, `tcp 93.184.216.34:443 (example.com), 3 times`.
    pub fn sentence(&self) -> String {
        let mut text = match (&self.address, &self.name) {
            (Some(address), name) => {
                let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
                let name = name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
                format!("{} {address}{port}{name}", self.protocol)
            }
            (None, Some(name)) => format!("{} {name}", self.protocol),
            (None, None) => "other destinations".to_owned(),
        };
        if let Some(limit) = self.limit {
            text.push_str(&format!(", over {}", limit.as_str()));
        }
        if self.count > 1 {
            text.push_str(&format!(", {} times", self.count));
        }
        text
    }
}

/// Answer to a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// Sandboxes that control does not know (a create whose answer was lost, a delete that found
    /// the host down): the agent removes them.
    pub forget_sandboxes: Vec<SandboxId>,
    /// Likewise snapshots.
    pub forget_snapshots: Vec<SnapshotId>,
    /// Whether more than one workspace exists.
    #[serde(default)]
    pub shared: bool,
    /// Edges with a certificate, and their memberships: only these may ask the agent for traffic grants.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub edges: BTreeMap<HostId, u32>,
    /// The host has no certificate yet, and may get one with the join secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate: Option<MigrationOffer>,
}

/// Control lets a host without a certificate join with the join secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationOffer {
    /// Fingerprint of the authority.
    pub authority: String,
    /// Proof that a holder of the join secret made the offer: the answer may have come over a plain
    /// connection.
    pub proof: String,
}

impl MigrationOffer {
    /// An offer of control.
    pub fn new(secret: &LinkKey, authority: String) -> Self {
        Self { proof: secret.derive(OFFER, &[&authority]), authority }
    }

    /// Whether a holder of the join secret made the offer.
    pub fn is_proven(&self, secret: &LinkKey) -> bool {
        let proofs = secret.derive_each(OFFER, &[&self.authority]);
        proofs.iter().any(|proof| proof.as_bytes().ct_eq(self.proof.as_bytes()).into())
    }
}

/// What the proof is derived for.
const OFFER: &str = "authority of hosts";
