//! The private API between control and agents. Every request is signed ([`crate::link`]).
//!
//! Control calls an agent under `/agent/v1`:
//!
//! | call | does |
//! |---|---|
//! | `GET /host` | [`HostReport`] |
//! | `POST /sandboxes` ([`AgentCreate`]) | makes a sandbox; answers [`AgentSandbox`] when it is ready |
//! | `GET /sandboxes/{id}`, `DELETE /sandboxes/{id}` | looks, removes (gone already is success) |
//! | `POST /sandboxes/{id}/pause`, `/resume`, `/hibernate`, `/wake` | moves it; answers [`AgentSandbox`] |
//! | `POST /sandboxes/{id}/hibernate` takes [`crate::api::Hibernate`] | |
//! | `PATCH /sandboxes/{id}` ([`AgentPatch`]) | changes idle behaviour |
//! | `PUT /sandboxes/{id}/network` ([`NetworkPolicy`]) | changes what it may reach, at once; wakes nobody |
//! | `POST /sandboxes/{id}/keep-awake` ([`AgentKeepAwake`]) | wakes it, and keeps it from counting as idle; answers [`AgentSandbox`] |
//! | `POST /sandboxes/{id}/rollback` ([`AgentRollback`]) | returns it to one of its snapshots; answers [`AgentSandbox`] |
//! | `POST /sandboxes/{id}/snapshots` ([`AgentSnapshot`]) | answers [`AgentSnapshotDone`] |
//! | `DELETE /snapshots/{id}` | removes a snapshot (gone already is success) |
//! | `POST /sandboxes/{id}/fork` ([`AgentFork`]) | answers [`AgentForked`] |
//! | `POST /templates/{name}/bake` | begins or joins a bake; answers a [`crate::api::Build`] at once |
//! | `GET /builds`, `GET /builds/{id}` | [`crate::api::Build`]s |
//! | `GET /sandboxes/{id}/metrics` | [`crate::api::SandboxMetrics`]; wakes nobody |
//! | `/sandboxes/{id}/exec`, `/exec/stream`, `/processes...`, `/fs`, `/fs/dir`, `/fs/stat`, `/fs/mkdir`, `/fs/rename`, `/fs/copy`, `/fs/find`, `/fs/grep`, `/fs/tar`, `/fs/watch`, `/ports`, `/logs` | the data path: the same shapes as the public API, so that control passes bodies through; wakes a sleeper |
//! | `POST /sandboxes/{id}/door`, `POST /sandboxes/{id}/tunnel?port=N` | streams for an edge, see [`crate::door`]; a door wakes a sleeper unless `?wake=false` |
//!
//! | `POST /volumes` ([`AgentVolumeCreate`]) | makes a volume, empty or as a copy; answers [`AgentVolume`] |
//! | `POST /volumes/{id}/grow` ([`AgentVolumeGrow`]), `DELETE /volumes/{id}` | grows, removes (gone already is success) |
//!
//! Calls on a sandbox carry its incarnation in [`INCARNATION_HEADER`]; a stale one is refused with 409. Errors have the
//! public [`crate::ErrorBody`].
//!
//! An agent calls control under `/internal/v1`: `POST /hosts/{host}/report` ([`HostReport`], every
//! [`REPORT_SECONDS`] and after every change) answers [`ReportAnswer`]. Reports are complete, so one that is lost is
//! made good by the next. An edge asks there for `GET /routes/{sandbox}` ([`EdgeRoute`]) and follows `GET /routes`. What a
//! machine says to [`crate::network::DATABASES_ADDRESS`] goes to `GET /databases/{sandbox}` with an upgrade to
//! [`DATABASE_UPGRADE`]; control decides which databases the machine may mean.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::network::NetworkPolicy;
use crate::{HostId, Residency, SandboxId, SandboxState, SnapshotId, VolumeId};

/// Protocol of a stream that a machine opened to its databases.
pub const DATABASE_UPGRADE: &str = "pandastack-database";
/// Header with the incarnation of the sandbox that a call means.
pub const INCARNATION_HEADER: &str = "x-pandastack-incarnation";
/// Header with the id of the client's request that a call belongs to.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// Header of an event stream that names the process it is of.
pub const PROCESS_HEADER: &str = "x-pandastack-process";
/// Header of the event stream of a process that was just started: the kernel's process id inside the sandbox.
pub const PID_HEADER: &str = "x-pandastack-pid";
/// Longest time between two reports of an agent.
pub const REPORT_SECONDS: u64 = 5;
/// A host not heard for this long is shown as unreachable.
pub const HOST_LOST_SECONDS: u64 = 20;

/// What a new sandbox is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A template, by name.
    Template(String),
    /// A template's disk, by the template's name, booted: for a volume at the place of the template's own that has seen more
    /// than the template's memory knows of.
    TemplateDisk(String),
    /// A snapshot on that host.
    Snapshot(SnapshotId),
}

/// What the agent must know of a sandbox beyond its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Its id.
    pub id: SandboxId,
    /// Its incarnation.
    pub incarnation: u64,
    /// Environment of every command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Hibernate after this long without activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// What it may reach.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default")]
    pub network: NetworkPolicy,
    /// Its durable disks, by their places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeSpec>,
}

/// A durable disk of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Which.
    pub id: VolumeId,
    /// Where the guest mounts it.
    pub path: String,
    /// Only read.
    #[serde(default)]
    pub read_only: bool,
    /// The volume's generation for this sandbox: the fencing token of everything it does with it. An older one than the
    /// host knows is refused.
    pub generation: u64,
}

/// Make a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVolumeCreate {
    /// Its id.
    pub id: VolumeId,
    /// Its size; at least that of `from`.
    pub size_bytes: u64,
    /// What it is a copy of; empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<VolumeId>,
    /// The sandbox that writes `from`: it stands still for the moment of the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<SandboxId>,
}

/// Make a volume larger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVolumeGrow {
    /// Its new size.
    pub size_bytes: u64,
    /// The sandbox that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<SandboxId>,
}

/// A volume as its host has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes it takes on disk.
    pub used_bytes: u64,
    /// Highest generation that opened it.
    pub generation: u64,
}

/// Make a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCreate {
    /// What it is.
    pub spec: SandboxSpec,
    /// What it is made of.
    pub source: Source,
    /// Its size, where that is not the template's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<MachineSize>,
}

/// Processors and memory of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSize {
    /// Virtual processors.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
}

/// Change a sandbox's idle behaviour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentPatch {
    /// Hibernate after this long without activity; `None` never.
    pub idle_timeout_seconds: Option<u64>,
}

/// Keep a sandbox awake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentKeepAwake {
    /// Until then it does not count as idle; `None` ends an earlier lease.
    pub until: Option<Timestamp>,
}

/// Return a sandbox to one of its snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRollback {
    /// Which.
    pub snapshot_id: SnapshotId,
}

/// A sandbox as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSandbox {
    /// Its id.
    pub id: SandboxId,
    /// Its incarnation.
    pub incarnation: u64,
    /// Where it stands.
    pub state: SandboxState,
    /// Where a sleeper's memory is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
    /// Template it descends from.
    pub template: String,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Address on the host, while awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_ip: Option<String>,
    /// Engine.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// `fork`, `restore` or `boot`.
    pub boot_mode: String,
    /// Time from request to ready.
    pub boot_ms: u64,
    /// Where that time went, in microseconds.
    #[serde(default)]
    pub boot_stages_us: BTreeMap<String, u64>,
    /// Seconds since the last activity.
    pub idle_seconds: u64,
    /// Until when it does not count as idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awake_until: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// What it used so far. Only grows within an incarnation.
    #[serde(default)]
    pub usage: Usage,
}

/// Totals since the sandbox was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of its process, in milliseconds.
    pub cpu_ms: u64,
    /// Memory promised to it times seconds awake.
    pub memory_mb_seconds: u64,
    /// Seconds asleep.
    pub asleep_seconds: u64,
    /// Bytes it sent.
    pub sent_bytes: u64,
    /// Bytes it received.
    pub received_bytes: u64,
}

/// Take a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSnapshot {
    /// Id it shall have.
    pub snapshot_id: SnapshotId,
}

/// A snapshot was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSnapshotDone {
    /// Bytes written for it.
    pub size_bytes: u64,
    /// How long the sandbox stood still.
    pub pause_ms: f64,
}

/// Fork a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFork {
    /// One per child.
    pub children: Vec<SandboxSpec>,
}

/// A fork was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentForked {
    /// How long the parent stood still.
    pub pause_ms: f64,
    /// One per child, in order.
    pub children: Vec<ChildOutcome>,
}

/// What became of one child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildOutcome {
    /// It is ready.
    Made(Box<AgentSandbox>),
    /// It is not, and nothing is left of it.
    Failed(String),
}

/// A template as a host has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTemplate {
    /// The catalogue's description of it.
    pub template: TemplateInfo,
    /// Whether creates can start at once.
    pub status: crate::api::TemplateStatus,
    /// Bytes on this host.
    pub size_bytes: u64,
    /// Why the last bake failed.
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
    /// Name for people.
    pub label: String,
    /// What is in it.
    pub description: String,
    /// Group.
    pub category: String,
    /// What it is built from.
    pub base: String,
    /// Programs it offers.
    pub tools: Vec<String>,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Volume that each sandbox of it comes with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<crate::api::TemplateVolume>,
}

/// Everything an agent has to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// Its id.
    pub host: HostId,
    /// Where control reaches it: `unix:/path` or `http://address:port`.
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
    /// Memory that sandboxes in light sleep give up when a new one needs it.
    #[serde(default)]
    pub memory_held_asleep_mb: u64,
    /// Percent of a sandbox's memory that this host promises to it; all of it on hosts that do not say.
    #[serde(default = "all_of_it")]
    pub memory_promised_percent: u32,
    /// Free space of the store.
    pub disk_free_bytes: u64,
    /// Network slots not in use.
    pub slots_free: u32,
    /// Its templates.
    pub templates: Vec<AgentTemplate>,
    /// Every sandbox it has.
    pub sandboxes: Vec<AgentSandbox>,
    /// Every snapshot it has.
    pub snapshots: Vec<SnapshotId>,
    /// Every volume it has.
    #[serde(default)]
    pub volumes: Vec<AgentVolume>,
    /// What network policies refused since the last report that was answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<AgentDenial>,
    /// When the report was made.
    pub at: Timestamp,
}

fn all_of_it() -> u32 {
    100
}

/// Something that a sandbox wanted to reach and may not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentDenial {
    /// Which sandbox.
    pub sandbox: SandboxId,
    /// `tcp`, `udp`, `icmp`, another protocol's number, or `dns` for a name that was not resolved.
    pub protocol: String,
    /// Where to; none for names, and for what is only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::Ipv4Addr>,
    /// Which port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// For which name, where the sandbox said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How often since it was last told.
    pub count: u64,
}

impl AgentDenial {
    /// What happened, for people: `tcp 10.0.0.5:5432`, `tcp 93.184.216.34:443 (example.com), 3 times`.
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
        if self.count > 1 {
            text.push_str(&format!(", {} times", self.count));
        }
        text
    }
}

/// What an edge must know of a sandbox: `GET /internal/v1/routes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeRoute {
    /// Host it lives on.
    pub host: HostId,
    /// Where that host's agent is: `unix:/path` or `http://address:port`.
    pub agent_address: String,
    /// Its incarnation.
    pub incarnation: u64,
    /// Who may open its ports.
    pub visibility: crate::preview::Visibility,
    /// How often the credentials of its previews were revoked.
    pub preview_revision: u64,
}

/// What stands behind an app's host name: `GET /internal/v1/names/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeName {
    /// A port of a sandbox, or of several.
    Serving {
        /// The sandbox.
        sandbox: SandboxId,
        /// TCP port inside it.
        port: u16,
        /// Further ones that serve the same.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        more: Vec<SandboxId>,
        /// How many of them all, from the first on, share requests; each further one is used while those before it are busy.
        #[serde(default)]
        always: usize,
    },
    /// It serves nobody yet.
    NotServing {
        /// What to do about it.
        why: String,
    },
}

/// The line by which control tells edges that names may lead elsewhere. Edges that do not know it read all routes anew.
pub const NAMES_CHANGED: &str = "@names";

/// Answer to a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// Sandboxes that control does not know (a create whose answer was lost, a delete that found the host down): the
    /// agent removes them.
    pub forget_sandboxes: Vec<SandboxId>,
    /// Likewise snapshots.
    pub forget_snapshots: Vec<SnapshotId>,
}
