//! Tools for sandboxes.

use pandastack_types::SnapshotId;
use pandastack_types::api::{
    CreateSandbox, CreateSnapshot, ExecRequest, ForkTree, Keep, Rollback, RunRequest, Sandbox,
};
use pandastack_types::network::{Egress, NetworkPolicy};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Tools;
use crate::limits::{OUTPUT_BYTES_MAX, SANDBOXES_MAX};
use crate::tool_result::{self, ToolError, ToolResult, sandbox_id, truncate_middle};

/// Arguments of `sandbox_create`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct CreateArgs {
    /// Template: `base` (Linux with Python, Node, Go, git and build tools) or `code-interpreter`
    /// (adds numpy, pandas, scipy and matplotlib). Default: `base`.
    template: Option<String>,
    /// Snapshot to create from, instead of a template.
    from_snapshot: Option<String>,
    /// Time to live in seconds. Default: 3600.
    ttl_seconds: Option<u64>,
    /// Number of vCPUs. Default: from the template.
    cpu: Option<u32>,
    /// Memory in MiB, a multiple of 128. Default: from the template.
    memory_mb: Option<u32>,
    /// Whether the sandbox can access the internet. Default: true.
    internet: Option<bool>,
}

/// Arguments of tools that take only a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SandboxArgs {
    /// Sandbox ID.
    sandbox_id: String,
}

/// Arguments of `sandbox_exec`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ExecArgs {
    /// Sandbox ID.
    sandbox_id: String,
    /// Shell command. Run servers and other long-running processes in the background: `nohup CMD >
    /// log 2>&1 &`.
    command: String,
    /// Working directory of the command.
    cwd: Option<String>,
    /// Kill the command and its child processes after this many seconds. Default: 300.
    timeout_seconds: Option<u64>,
}

/// Arguments of `run`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RunArgs {
    /// Shell command.
    command: String,
    /// Template of the sandbox. Default: `base`.
    template: Option<String>,
    /// Kill the command after this many seconds. Default: 300.
    timeout_seconds: Option<u64>,
}

/// Arguments of `sandbox_fork`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ForkArgs {
    /// ID of the sandbox to fork. It keeps running.
    sandbox_id: String,
    /// Number of forks. Default: 1.
    count: Option<u32>,
}

/// Arguments of `sandbox_rollback`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RollbackArgs {
    /// Sandbox ID.
    sandbox_id: String,
    /// Snapshot of this sandbox to restore. Default: the newest.
    snapshot_id: Option<String>,
}

/// Arguments of `preview_url`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PreviewArgs {
    /// Sandbox ID.
    sandbox_id: String,
    /// TCP port that the server listens on in the sandbox.
    port: u16,
}

/// Summary of a sandbox for a model.
#[derive(Debug, Serialize)]
struct SandboxSummary {
    sandbox_id: String,
    template: String,
    status: String,
    cpu: u32,
    memory_mb: u32,
}

impl From<Sandbox> for SandboxSummary {
    fn from(sandbox: Sandbox) -> Self {
        Self {
            sandbox_id: sandbox.id.to_string(),
            template: sandbox.template,
            status: sandbox.status.as_str().to_owned(),
            cpu: sandbox.cpu,
            memory_mb: sandbox.memory_mb,
        }
    }
}

/// Result of a command.
#[derive(Debug, Serialize)]
struct CommandResult {
    exit_code: i32,
    stdout: String,
    stderr: String,
}

impl CommandResult {
    fn new(exit_code: i32, stdout: &str, stderr: &str) -> Self {
        let (stdout, stderr) =
            (truncate_middle(stdout, OUTPUT_BYTES_MAX), truncate_middle(stderr, OUTPUT_BYTES_MAX));
        Self { exit_code, stdout, stderr }
    }
}

fn snapshot_id(text: &str) -> Result<SnapshotId, ToolError> {
    text.trim().parse().map_err(|error| ToolError(format!("{error}")))
}

fn fresh_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl CreateArgs {
    fn request(self) -> Result<CreateSandbox, ToolError> {
        let network = match self.internet {
            Some(false) => Some(NetworkPolicy { egress: Egress::None, ..NetworkPolicy::default() }),
            _ => None,
        };
        Ok(CreateSandbox {
            template: self.template,
            from_snapshot: self.from_snapshot.as_deref().map(snapshot_id).transpose()?,
            ttl_seconds: self.ttl_seconds,
            cpu: self.cpu,
            memory_mb: self.memory_mb,
            network,
            ..CreateSandbox::default()
        })
    }
}

#[tool_router(router = sandbox_tools, vis = "pub(crate)")]
impl Tools {
    /// Create a sandbox: a new Linux virtual machine with root access, ready for commands. Returns its ID.
    #[tool(name = "sandbox_create")]
    async fn create(
        &self,
        Parameters(args): Parameters<CreateArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let client = self.client(&context)?;
            Ok(SandboxSummary::from(client.create_sandbox(&args.request()?, &fresh_key()).await?))
        };
        tool_result::from_outcome(outcome.await)
    }

    /// List sandboxes, newest first.
    #[tool(name = "sandbox_list", annotations(read_only_hint = true))]
    async fn list(&self, context: RequestContext<RoleServer>) -> ToolResult {
        let outcome = async {
            let mut all = self.client(&context)?.list_sandboxes().await?;
            all.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
            Ok(all.into_iter().take(SANDBOXES_MAX).map(SandboxSummary::from).collect::<Vec<_>>())
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Delete a sandbox and all its data.
    #[tool(name = "sandbox_delete", annotations(destructive_hint = true))]
    async fn delete(
        &self,
        Parameters(args): Parameters<SandboxArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            self.client(&context)?.delete_sandbox(&sandbox_id(&args.sandbox_id)?).await?;
            Ok(serde_json::json!({ "deleted": args.sandbox_id }))
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Run a shell command as root in a sandbox and wait until it exits. Long output is truncated
    /// in the middle. Wakes a hibernated sandbox.
    #[tool(name = "sandbox_exec")]
    async fn exec(
        &self,
        Parameters(args): Parameters<ExecArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let request = ExecRequest {
                cmd: Some(args.command),
                cwd: args.cwd,
                timeout_seconds: args.timeout_seconds,
                ..ExecRequest::default()
            };
            let id = sandbox_id(&args.sandbox_id)?;
            let result = self.client(&context)?.exec(&id, &request).await?;
            Ok(CommandResult::new(result.exit_code, &result.stdout, &result.stderr))
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Run a shell command in a new sandbox and delete the sandbox afterwards. Use it for code that
    /// needs no state.
    #[tool(name = "run")]
    async fn run(
        &self,
        Parameters(args): Parameters<RunArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let exec = ExecRequest {
                cmd: Some(args.command),
                timeout_seconds: args.timeout_seconds,
                ..ExecRequest::default()
            };
            let request = RunRequest { template: args.template, exec };
            let result = self.client(&context)?.run(&request).await?.result;
            Ok(CommandResult::new(result.exit_code, &result.stdout, &result.stderr))
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Fork a running sandbox in milliseconds, including its memory, processes and files. Try a
    /// different approach in each fork, then delete the forks that did not work.
    #[tool(name = "sandbox_fork")]
    async fn fork(
        &self,
        Parameters(args): Parameters<ForkArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let request = ForkTree { count: args.count.unwrap_or(1), metadata: None };
            let tree = self.client(&context)?.fork_tree(&id, &request).await?;
            let children: Vec<_> = tree.children.into_iter().map(SandboxSummary::from).collect();
            let failures: Vec<_> = tree.errors.into_iter().map(|error| error.err).collect();
            Ok(serde_json::json!({ "children": children, "failures": failures }))
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Take a snapshot of a sandbox, including its memory, to roll back to or to create sandboxes from.
    #[tool(name = "sandbox_snapshot")]
    async fn snapshot(
        &self,
        Parameters(args): Parameters<SandboxArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let taken = self.client(&context)?.create_snapshot(&id, &CreateSnapshot::default()).await?;
            Ok(serde_json::json!({ "snapshot_id": taken.id, "sandbox_id": id }))
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Restore a sandbox to one of its snapshots, including files, memory and processes.
    #[tool(name = "sandbox_rollback", annotations(destructive_hint = true))]
    async fn rollback(
        &self,
        Parameters(args): Parameters<RollbackArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let request = Rollback { snapshot_id: args.snapshot_id.as_deref().map(snapshot_id).transpose()? };
            Ok(SandboxSummary::from(self.client(&context)?.rollback_sandbox(&id, &request).await?))
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Hibernate a sandbox: it uses only disk space, and the next command wakes it.
    #[tool(name = "sandbox_hibernate")]
    async fn hibernate(
        &self,
        Parameters(args): Parameters<SandboxArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            Ok(self.client(&context)?.hibernate_sandbox(&id, Keep::Memory).await?)
        };
        tool_result::from_outcome(outcome.await)
    }

    /// Get the public URL of a web server in a sandbox. The server must listen on 0.0.0.0.
    #[tool(name = "preview_url", annotations(read_only_hint = true))]
    async fn preview(
        &self,
        Parameters(args): Parameters<PreviewArgs>,
        context: RequestContext<RoleServer>,
    ) -> ToolResult {
        let outcome = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let ports = self.client(&context)?.list_ports(&id).await?;
            let Some(port) = ports.iter().find(|port| port.port == args.port) else {
                let listening: Vec<_> = ports.iter().map(|port| port.port.to_string()).collect();
                return Err(ToolError(format!(
                    "nothing is listening on port {} in the sandbox; listening ports: {}",
                    args.port,
                    if listening.is_empty() { "none".to_owned() } else { listening.join(", ") }
                )));
            };
            let not_public = || {
                let address = &port.address;
                ToolError(format!(
                    "the server only listens on {address}; start it on 0.0.0.0 to get a preview URL"
                ))
            };
            Ok(serde_json::json!({ "url": port.proxy_url.clone().ok_or_else(not_public)? }))
        };
        tool_result::from_outcome(outcome.await)
    }
}
