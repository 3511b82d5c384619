//! Sandboxes and snapshots.

use pandastack_types::api::{
    CreateSandbox, CreateSnapshot, EventList, ForkSandbox, ForkTree, ForkTreeResult, Hibernate, Keep,
    KeepAwake, Lifecycle, Lineage, PatchLifecycle, Port, PortList, Preview, Promote, Promoted, Rollback,
    RunRequest, RunResult, Sandbox, SignPreview, SignedPreview, Snapshot, SnapshotList, StatusAnswer,
};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{SandboxId, SnapshotId};
use reqwest::Method;

use crate::client::{Call, Client, List, READ_SECONDS, WRITE_SECONDS};
use crate::error::Result;

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

impl Client {
    /// Creates a sandbox. `key` is the idempotency key: a retry with the same key creates nothing twice.
    pub async fn create_sandbox(&self, request: &CreateSandbox, key: &str) -> Result<Sandbox> {
        let call = self.call(Method::POST, &["sandboxes"], WRITE_SECONDS);
        call.with(|builder| builder.header(IDEMPOTENCY_KEY, key)).json(request).receive().await
    }

    /// Every sandbox of the workspace.
    pub async fn list_sandboxes(&self) -> Result<Vec<Sandbox>> {
        let list: List<Sandbox> = self.call(Method::GET, &["sandboxes"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the sandbox.
    pub async fn get_sandbox(&self, id: &SandboxId) -> Result<Sandbox> {
        self.call(Method::GET, &["sandboxes", id.as_str()], READ_SECONDS).receive().await
    }

    /// Deletes a sandbox.
    pub async fn delete_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(Method::DELETE, &["sandboxes", id.as_str()], WRITE_SECONDS).finish().await
    }

    /// Pauses a sandbox.
    pub async fn pause_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.act(id, "pause").finish().await
    }

    /// Resumes a paused sandbox.
    pub async fn resume_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.act(id, "resume").finish().await
    }

    /// Hibernates a sandbox.
    pub async fn hibernate_sandbox(&self, id: &SandboxId, keep: Keep) -> Result<StatusAnswer> {
        self.act(id, "hibernate").json(&Hibernate { keep }).receive().await
    }

    /// Keeps a sandbox awake.
    pub async fn keep_awake(&self, id: &SandboxId, seconds: u64) -> Result<Lifecycle> {
        self.act(id, "keep-awake").json(&KeepAwake { seconds }).receive().await
    }

    /// Restores a sandbox to one of its snapshots.
    pub async fn rollback_sandbox(&self, id: &SandboxId, request: &Rollback) -> Result<Sandbox> {
        self.act(id, "rollback").json(request).receive().await
    }

    /// Parent, children and fork tree of a sandbox.
    pub async fn get_lineage(&self, id: &SandboxId) -> Result<Lineage> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "lineage"], READ_SECONDS).receive().await
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

    /// Keeps one fork of a tree.
    pub async fn promote_sandbox(&self, id: &SandboxId, request: &Promote) -> Result<Promoted> {
        self.act(id, "promote").json(request).receive().await
    }

    /// Takes a snapshot.
    pub async fn create_snapshot(&self, id: &SandboxId, request: &CreateSnapshot) -> Result<Snapshot> {
        self.act(id, "snapshots").json(request).receive().await
    }

    /// Snapshots, newest first, optionally of one sandbox.
    pub async fn list_snapshots(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Snapshot>> {
        let mut call = self.call(Method::GET, &["snapshots"], READ_SECONDS);
        if let Some(id) = sandbox {
            call = call.query(&[("sandbox_id", id.as_str())]);
        }
        Ok(call.receive::<SnapshotList>().await?.snapshots)
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, id: &SnapshotId) -> Result<()> {
        self.call(Method::DELETE, &["snapshots", id.as_str()], WRITE_SECONDS).finish().await
    }

    /// Network policy of a sandbox.
    pub async fn get_network(&self, id: &SandboxId) -> Result<NetworkPolicy> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "network"], READ_SECONDS).receive().await
    }

    /// Replaces the network policy of a sandbox; takes effect immediately.
    pub async fn set_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<NetworkPolicy> {
        let call = self.call(Method::PUT, &["sandboxes", id.as_str(), "network"], READ_SECONDS);
        call.json(policy).receive().await
    }

    /// TTL, idle timeout and checkpoints of a sandbox.
    pub async fn get_lifecycle(&self, id: &SandboxId) -> Result<Lifecycle> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "lifecycle"], READ_SECONDS).receive().await
    }

    /// Changes TTL, idle timeout and checkpoints of a sandbox.
    pub async fn patch_lifecycle(&self, id: &SandboxId, patch: &PatchLifecycle) -> Result<Lifecycle> {
        let call = self.call(Method::PATCH, &["sandboxes", id.as_str(), "lifecycle"], READ_SECONDS);
        call.json(patch).receive().await
    }

    /// Visibility of a sandbox's ports.
    pub async fn get_preview(&self, id: &SandboxId) -> Result<Preview> {
        self.call(Method::GET, &["sandboxes", id.as_str(), "preview"], READ_SECONDS).receive().await
    }

    /// Creates a temporary URL for one port.
    pub async fn sign_preview(&self, id: &SandboxId, request: &SignPreview) -> Result<SignedPreview> {
        self.act(id, "preview-token").json(request).receive().await
    }

    /// Listening ports.
    pub async fn list_ports(&self, id: &SandboxId) -> Result<Vec<Port>> {
        let call = self.call(Method::GET, &["sandboxes", id.as_str(), "ports"], WRITE_SECONDS);
        Ok(call.receive::<PortList>().await?.ports)
    }

    /// Events of a sandbox, oldest first.
    pub async fn list_events(&self, id: &SandboxId) -> Result<Vec<pandastack_types::api::Event>> {
        let call = self.call(Method::GET, &["sandboxes", id.as_str(), "events"], READ_SECONDS);
        Ok(call.receive::<EventList>().await?.events)
    }

    /// Runs a command in a new sandbox and deletes it, in one call.
    pub async fn run(&self, request: &RunRequest) -> Result<RunResult> {
        let seconds = request.exec.timeout_seconds.unwrap_or(EXEC_TIMEOUT_SECONDS_DEFAULT);
        self.call(Method::POST, &["run"], seconds + WRITE_SECONDS).json(request).receive().await
    }

    fn act(&self, id: &SandboxId, action: &str) -> Call {
        self.call(Method::POST, &["sandboxes", id.as_str(), action], WRITE_SECONDS)
    }
}
