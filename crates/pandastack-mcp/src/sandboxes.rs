//! Tools that make, use, copy and end sandboxes.

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
use crate::answer::{self, Answer, ToolError, sandbox_id, shortened};
use crate::limits::{OUTPUT_BYTES_MAX, SANDBOXES_MAX};

/// A new sandbox.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Create {
    /// Template: `base` (Linux with Python, Node, Go, git, build tools) or `code-interpreter` (adds numpy, pandas, scipy,
    /// matplotlib). `base` when absent.
    template: Option<String>,
    /// Snapshot to start from instead.
    from_snapshot: Option<String>,
    /// Seconds it may live; 3600 when absent.
    ttl_seconds: Option<u64>,
    /// Virtual processors, when not the template's.
    cpu: Option<u32>,
    /// Memory in MiB, in steps of 128, when not the template's.
    memory_mb: Option<u32>,
    /// False cuts it off from the internet.
    internet: Option<bool>,
}

/// One sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Of {
    /// Id of the sandbox.
    sandbox_id: String,
}

/// A command.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Exec {
    /// Id of the sandbox.
    sandbox_id: String,
    /// Shell command. Servers and other long work belong in the background: `nohup CMD > log 2>&1 &`.
    command: String,
    /// Working directory.
    cwd: Option<String>,
    /// The command and all it started are killed after this; 300 when absent.
    timeout_seconds: Option<u64>,
}

/// A command in a sandbox of its own.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Run {
    /// Shell command.
    command: String,
    /// Template of the sandbox; `base` when absent.
    template: Option<String>,
    /// The command is killed after this; 300 when absent.
    timeout_seconds: Option<u64>,
}

/// Copies of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Fork {
    /// Id of the sandbox to copy; it goes on running.
    sandbox_id: String,
    /// How many copies; 1 when absent.
    count: Option<u32>,
}

/// A return to a snapshot.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Return {
    /// Id of the sandbox.
    sandbox_id: String,
    /// A snapshot of this sandbox; its newest when absent.
    snapshot_id: Option<String>,
}

/// A port of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Preview {
    /// Id of the sandbox.
    sandbox_id: String,
    /// TCP port that a server listens on inside.
    port: u16,
}

/// What a model needs to know of a sandbox.
#[derive(Debug, Serialize)]
struct Shown {
    sandbox_id: String,
    template: String,
    status: String,
    cpu: u32,
    memory_mb: u32,
}

impl From<Sandbox> for Shown {
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

/// What a command did.
#[derive(Debug, Serialize)]
struct Ran {
    exit_code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn new(exit_code: i32, stdout: &str, stderr: &str) -> Self {
        let (stdout, stderr) = (shortened(stdout, OUTPUT_BYTES_MAX), shortened(stderr, OUTPUT_BYTES_MAX));
        Self { exit_code, stdout, stderr }
    }
}

fn snapshot_id(text: &str) -> Result<SnapshotId, ToolError> {
    text.trim().parse().map_err(|error| ToolError(format!("{error}")))
}

fn fresh_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl Create {
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
    /// Create a sandbox: a fresh Linux machine with root, ready for commands. Answers its id.
    #[tool(name = "sandbox_create")]
    async fn create(
        &self,
        Parameters(args): Parameters<Create>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let made = async {
            let client = self.client(&context)?;
            Ok(Shown::from(client.create_sandbox(&args.request()?, &fresh_key()).await?))
        };
        answer::of(made.await)
    }

    /// List the sandboxes there are, newest first.
    #[tool(name = "sandbox_list", annotations(read_only_hint = true))]
    async fn list(&self, context: RequestContext<RoleServer>) -> Answer {
        let listed = async {
            let mut all = self.client(&context)?.list_sandboxes().await?;
            all.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
            Ok(all.into_iter().take(SANDBOXES_MAX).map(Shown::from).collect::<Vec<_>>())
        };
        answer::of(listed.await)
    }

    /// Delete a sandbox and everything in it.
    #[tool(name = "sandbox_delete", annotations(destructive_hint = true))]
    async fn delete(&self, Parameters(args): Parameters<Of>, context: RequestContext<RoleServer>) -> Answer {
        let gone = async {
            self.client(&context)?.delete_sandbox(&sandbox_id(&args.sandbox_id)?).await?;
            Ok(serde_json::json!({ "deleted": args.sandbox_id }))
        };
        answer::of(gone.await)
    }

    /// Run a shell command in a sandbox as root and wait for its end. Long output loses its middle. Wakes a sleeping sandbox.
    #[tool(name = "sandbox_exec")]
    async fn exec(&self, Parameters(args): Parameters<Exec>, context: RequestContext<RoleServer>) -> Answer {
        let ran = async {
            let request = ExecRequest {
                cmd: Some(args.command),
                cwd: args.cwd,
                timeout_seconds: args.timeout_seconds,
                ..ExecRequest::default()
            };
            let id = sandbox_id(&args.sandbox_id)?;
            let result = self.client(&context)?.exec(&id, &request).await?;
            Ok(Ran::new(result.exit_code, &result.stdout, &result.stderr))
        };
        answer::of(ran.await)
    }

    /// Run one shell command in a fresh sandbox that is deleted afterwards: for code that needs no state.
    #[tool(name = "run")]
    async fn run(&self, Parameters(args): Parameters<Run>, context: RequestContext<RoleServer>) -> Answer {
        let ran = async {
            let exec = ExecRequest {
                cmd: Some(args.command),
                timeout_seconds: args.timeout_seconds,
                ..ExecRequest::default()
            };
            let request = RunRequest { template: args.template, exec };
            let result = self.client(&context)?.run(&request).await?.result;
            Ok(Ran::new(result.exit_code, &result.stdout, &result.stderr))
        };
        answer::of(ran.await)
    }

    /// Copy a running sandbox, memory, processes and files included, in milliseconds. Try something different in each copy,
    /// then delete those that did not work.
    #[tool(name = "sandbox_fork")]
    async fn fork(&self, Parameters(args): Parameters<Fork>, context: RequestContext<RoleServer>) -> Answer {
        let forked = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let request = ForkTree { count: args.count.unwrap_or(1), metadata: None };
            let tree = self.client(&context)?.fork_tree(&id, &request).await?;
            let children: Vec<_> = tree.children.into_iter().map(Shown::from).collect();
            let failures: Vec<_> = tree.errors.into_iter().map(|error| error.err).collect();
            Ok(serde_json::json!({ "children": children, "failures": failures }))
        };
        answer::of(forked.await)
    }

    /// Save a sandbox as it is now, memory included, to return to or to start others from.
    #[tool(name = "sandbox_snapshot")]
    async fn snapshot(
        &self,
        Parameters(args): Parameters<Of>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let taken = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let taken = self.client(&context)?.create_snapshot(&id, &CreateSnapshot::default()).await?;
            Ok(serde_json::json!({ "snapshot_id": taken.id, "sandbox_id": id }))
        };
        answer::of(taken.await)
    }

    /// Return a sandbox to one of its snapshots: files, memory and processes are as they were then.
    #[tool(name = "sandbox_rollback", annotations(destructive_hint = true))]
    async fn rollback(
        &self,
        Parameters(args): Parameters<Return>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let returned = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let request = Rollback { snapshot_id: args.snapshot_id.as_deref().map(snapshot_id).transpose()? };
            Ok(Shown::from(self.client(&context)?.rollback_sandbox(&id, &request).await?))
        };
        answer::of(returned.await)
    }

    /// Put a sandbox to sleep: it costs nothing but disk, and wakes with the next command.
    #[tool(name = "sandbox_hibernate")]
    async fn hibernate(
        &self,
        Parameters(args): Parameters<Of>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let slept = async {
            let id = sandbox_id(&args.sandbox_id)?;
            Ok(self.client(&context)?.hibernate_sandbox(&id, Keep::Memory).await?)
        };
        answer::of(slept.await)
    }

    /// The URL at which a web server inside a sandbox is reached from outside. The server must listen on 0.0.0.0.
    #[tool(name = "preview_url", annotations(read_only_hint = true))]
    async fn preview(
        &self,
        Parameters(args): Parameters<Preview>,
        context: RequestContext<RoleServer>,
    ) -> Answer {
        let found = async {
            let id = sandbox_id(&args.sandbox_id)?;
            let ports = self.client(&context)?.list_ports(&id).await?;
            let Some(port) = ports.iter().find(|port| port.port == args.port) else {
                let listening: Vec<_> = ports.iter().map(|port| port.port.to_string()).collect();
                return Err(ToolError(format!(
                    "nothing listens on port {} of the sandbox; ports with a server: {}",
                    args.port,
                    if listening.is_empty() { "none".to_owned() } else { listening.join(", ") }
                )));
            };
            let inside_only = || {
                let address = &port.address;
                ToolError(format!(
                    "the server listens on {address} only; start it on 0.0.0.0 to reach it from outside"
                ))
            };
            Ok(serde_json::json!({ "url": port.proxy_url.clone().ok_or_else(inside_only)? }))
        };
        answer::of(found.await)
    }
}
