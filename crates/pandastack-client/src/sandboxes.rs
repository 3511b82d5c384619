//! Sandboxes: making, looking, moving, copying.

use pandastack_types::api::{
    CreateSandbox, CreateSnapshot, EventList, ForkSandbox, ForkTree, ForkTreeResult, Hibernate, Keep,
    KeepAwake, Lifecycle, Lineage, PatchLifecycle, Port, PortList, Promote, Promoted, Rollback, RunRequest,
    RunResult, Sandbox, Snapshot, SnapshotList, StatusAnswer,
};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{SandboxId, SnapshotId};
use reqwest::Method;

use crate::client::{CHANGE_SECONDS, LOOK_SECONDS, List};
use crate::{Client, Result};

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

impl Client {
    /// Makes a sandbox. `key` names the attempt: repeated with the same one, it makes nothing twice.
    pub async fn create_sandbox(&self, request: &CreateSandbox, key: &str) -> Result<Sandbox> {
        let call = self.call(Method::POST, &["sandboxes"], CHANGE_SECONDS);
        call.with(|builder| builder.header(IDEMPOTENCY_KEY, key)).json(request).receive().await
    }

    /// Every sandbox of the workspace.
    pub async fn list_sandboxes(&self) -> Result<Vec<Sandbox>> {
        let list: List<Sandbox> = self.call(Method::GET, &["sandboxes"], LOOK_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// One sandbox.
    pub async fn get_sandbox(&self, id: &SandboxId) -> Result<Sandbox> {
        self.call(Method::GET, &["sandboxes", id.as_str()], LOOK_SECONDS).receive().await
    }

    /// Deletes a sandbox.
    pub async fn delete_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(Method::DELETE, &["sandboxes", id.as_str()], CHANGE_SECONDS).finish().await
    }

    /// Stops a sandbox's processors.
    pub async fn pause_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.act(id, "pause").finish().await
    }

    /// Runs a paused sandbox's processors again.
    pub async fn resume_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.act(id, "resume").finish().await
    }

    /// Puts a sandbox to sleep.
    pub async fn hibernate_sandbox(&self, id: &SandboxId, keep: Keep) -> Result<StatusAnswer> {
        self.act(id, "hibernate").json(&Hibernate { keep }).receive().await
    }

    /// Keeps a sandbox from counting as idle.
    pub async fn keep_awake(&self, id: &SandboxId, seconds: u64) -> Result<Lifecycle> {
        self.act(id, "keep-awake").json(&KeepAwake { seconds }).receive().await
    }

    /// Returns a sandbox to one of its snapshots.
    pub async fn rollback_sandbox(&self, id: &SandboxId, request: &Rollback) -> Result<Sandbox> {
        self.act(id, "rollback").json(request).receive().await
    }

    /// Where a sandbox stands among its relatives.
    pub async fn get_lineage(&self, id: &SandboxId) -> Result<Lineage> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "lineage"], LOOK_SECONDS).receive().await
    }

    /// Wakes a sandbox.
    pub async fn wake_sandbox(&self, id: &SandboxId) -> Result<StatusAnswer> {
        self.act(id, "wake").receive().await
    }

    /// Forks a sandbox once.
    pub async fn fork_sandbox(&self, id: &SandboxId, request: &ForkSandbox) -> Result<Sandbox> {
        self.act(id, "fork").json(request).receive().await
    }

    /// Forks a sandbox into several children in one pause.
    pub async fn fork_tree(&self, id: &SandboxId, request: &ForkTree) -> Result<ForkTreeResult> {
        self.act(id, "fork-tree").json(request).receive().await
    }

    /// Keeps one child of a tree.
    pub async fn promote_sandbox(&self, id: &SandboxId, request: &Promote) -> Result<Promoted> {
        self.act(id, "promote").json(request).receive().await
    }

    /// Takes a snapshot.
    pub async fn create_snapshot(&self, id: &SandboxId, request: &CreateSnapshot) -> Result<Snapshot> {
        self.act(id, "snapshots").json(request).receive().await
    }

    /// Snapshots, newest first; of one sandbox when given.
    pub async fn list_snapshots(&self, of: Option<&SandboxId>) -> Result<Vec<Snapshot>> {
        let mut call = self.call(Method::GET, &["snapshots"], LOOK_SECONDS);
        if let Some(id) = of {
            call = call.query(&[("sandbox_id", id.as_str())]);
        }
        Ok(call.receive::<SnapshotList>().await?.snapshots)
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, id: &SnapshotId) -> Result<()> {
        self.call(Method::DELETE, &["snapshots", id.as_str()], CHANGE_SECONDS).finish().await
    }

    /// What a sandbox may reach.
    pub async fn get_network(&self, id: &SandboxId) -> Result<NetworkPolicy> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "network"], LOOK_SECONDS).receive().await
    }

    /// Changes what a sandbox may reach, at once.
    pub async fn set_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<NetworkPolicy> {
        let call = self.call(Method::PUT, &["sandboxes", id.as_str(), "network"], LOOK_SECONDS);
        call.json(policy).receive().await
    }

    /// How long a sandbox lives and when it sleeps.
    pub async fn get_lifecycle(&self, id: &SandboxId) -> Result<Lifecycle> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "lifecycle"], LOOK_SECONDS).receive().await
    }

    /// Changes how long a sandbox lives and when it sleeps.
    pub async fn patch_lifecycle(&self, id: &SandboxId, patch: &PatchLifecycle) -> Result<Lifecycle> {
        let call = self.call(Method::PATCH, &["sandboxes", id.as_str(), "lifecycle"], LOOK_SECONDS);
        call.json(patch).receive().await
    }

    /// Ports something listens on.
    pub async fn list_ports(&self, id: &SandboxId) -> Result<Vec<Port>> {
        let call = self.call(Method::GET, &["sandboxes", id.as_str(), "ports"], CHANGE_SECONDS);
        Ok(call.receive::<PortList>().await?.ports)
    }

    /// What happened to a sandbox, oldest first.
    pub async fn list_events(&self, id: &SandboxId) -> Result<Vec<pandastack_types::api::Event>> {
        let call = self.call(Method::GET, &["sandboxes", id.as_str(), "events"], LOOK_SECONDS);
        Ok(call.receive::<EventList>().await?.events)
    }

    /// Creates, runs, returns and deletes in one call.
    pub async fn run(&self, request: &RunRequest) -> Result<RunResult> {
        let seconds = request.exec.timeout_seconds.unwrap_or(EXEC_TIMEOUT_SECONDS_DEFAULT);
        self.call(Method::POST, &["run"], seconds + CHANGE_SECONDS).json(request).receive().await
    }

    fn act(&self, id: &SandboxId, action: &str) -> crate::client::Call {
        self.call(Method::POST, &["sandboxes", id.as_str(), action], CHANGE_SECONDS)
    }
}
