//! Deploys a version: creates a machine, uploads the code, installs dependencies, imports the handler, and
//! takes the version's snapshot.
//!
//! ```text
//!   template, or a snapshot with the same dependencies
//!     -> bundle into /var/task -> install into /var/dependencies -> snapshot for the next deploy with these dependencies
//!     -> runtime starts, handler is imported and waits for its first event -> snapshot of the version -> machine deleted
//! ```
//!
//! Invariants: a version is `ready` only when its handler asked for an event, and `failed` with a
//! reason and the log otherwise; no machine outlives its deploy; a deploy that a stopped server
//! left behind is failed by the next one ([`crate::background`]), never stuck. Installing is fatal
//! when it fails, and happens here only: calls install nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pandastack_function_proto::PORT;
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::{MachineSpec, WaitPolicy};
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, VersionRecord};
use pandastack_types::api::{
    CreateSandbox, CreateSnapshot, DeployStatus, ExecRequest, ExecResult, Runtime, StartProcess,
};
use pandastack_types::limits::{INIT_SECONDS_MAX, INSTALL_SECONDS_MAX};
use pandastack_types::preview::Visibility;
use pandastack_types::{Error, ErrorCode, Result, SnapshotId, chain};

use crate::bundle::{self, CheckedBundle};
use crate::connection::Connection;
use crate::functions::Functions;
use crate::pool::{self, owner};
use crate::requirements::{REQUIREMENTS, Requirements};
use crate::versions;

const TASK_ROOT: &str = "/var/task";
const DEPENDENCIES: &str = "/var/dependencies";
const RUNTIME_DIR: &str = "/opt/pandastack/function";
pub(crate) const PYTHON_BOOTSTRAP: &str = include_str!("bootstrap/bootstrap.py");
pub(crate) const NODE_BOOTSTRAP: &str = include_str!("bootstrap/bootstrap.mjs");
/// TTL of the machine of a deploy, in case the server ends in between.
const TTL_SECONDS: u64 = 2 * 3600;
/// Longest duration of small steps in the machine.
const STEP_SECONDS: u64 = 60;
/// Time for a host to answer, beyond the command's own.
const GRACE: Duration = Duration::from_secs(30);
/// Bytes kept of the end of a deploy's log.
const LOG_BYTES_MAX: usize = 256 * 1024;

/// A deploy in progress.
struct Build<'a> {
    functions: &'a Arc<Functions>,
    version: VersionRecord,
    machine: Machine,
    log: String,
}

/// Builds a version and records the result.
pub(crate) async fn run(
    functions: &Arc<Functions>,
    function: FunctionRecord,
    mut version: VersionRecord,
    checked: CheckedBundle,
) {
    let began = Instant::now();
    let mut log = String::new();
    let built = build(functions, &mut version, &checked, &mut log).await;
    version.spec.log = tail(&log);
    version.spec.build_ms = Some(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
    match built {
        Ok(()) => version.state = DeployStatus::Ready,
        Err(error) => {
            tracing::info!(
                function = %function.id, version = version.version, error = %chain(&error),
                "a deployment failed"
            );
            version.state = DeployStatus::Failed;
            version.spec.error_code = Some(error.code);
            version.spec.error = Some(error.message);
        }
    }
    if let Err(error) = functions.store.finish_version(&version, now()).await {
        tracing::error!(
            function = %function.id, error = %chain(&error),
            "cannot record the result of a deployment; the next start does"
        );
    }
    functions.built.notify_waiters();
    if version.state == DeployStatus::Ready
        && let Err(error) = versions::prune(functions, &function.id).await
    {
        tracing::warn!(
            function = %function.id, error = %chain(&error),
            "cannot delete old versions; retrying with the next deployment"
        );
    }
}

fn tail(log: &str) -> String {
    let cut = log.len().saturating_sub(LOG_BYTES_MAX);
    let start = (cut..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(log.len());
    log.get(start..).unwrap_or_default().to_owned()
}

async fn build(
    functions: &Arc<Functions>,
    version: &mut VersionRecord,
    checked: &CheckedBundle,
    log: &mut String,
) -> Result<()> {
    let layer = match &version.layer_key {
        Some(key) => reusable_layer(functions, version, key).await?,
        None => None,
    };
    let (machine, reused) = make_machine(functions, version, layer).await?;
    let id = machine.id().clone();
    let mut build = Build { functions, version: version.clone(), machine, log: String::new() };
    let steps = tokio::select! {
        steps = build.steps(checked, reused) => steps,
        () = functions.core.background.shutdown.cancelled() => Err(Error::new(ErrorCode::Unavailable, "the server stopped during the deployment; deploy again")),
    };
    log.push_str(&build.log);
    version.spec = build.version.spec;
    pool::delete(&functions.core, id);
    steps
}

/// A snapshot with the same dependencies, from an earlier deploy of this workspace.
async fn reusable_layer(
    functions: &Functions,
    version: &VersionRecord,
    key: &str,
) -> Result<Option<SnapshotId>> {
    for earlier in functions.store.versions_with_layer(&version.workspace, key).await? {
        let Some(layer) = earlier.spec.layer_snapshot else { continue };
        if let Ok(snapshot) = functions.core.machines.snapshot(&version.workspace, &layer).await
            && functions.core.machines.is_reachable(&snapshot.host)
        {
            return Ok(Some(layer));
        }
    }
    Ok(None)
}

async fn make_machine(
    functions: &Arc<Functions>,
    version: &mut VersionRecord,
    layer: Option<SnapshotId>,
) -> Result<(Machine, bool)> {
    let request = CreateSandbox {
        template: layer.is_none().then(|| version.spec.template.clone()),
        from_snapshot: layer.clone(),
        // A snapshot has its machine's size, and dependencies are cached by size.
        cpu: layer.is_none().then_some(version.spec.cpu).flatten(),
        memory_mb: layer.is_none().then_some(version.spec.memory_mb).flatten(),
        ttl_seconds: Some(TTL_SECONDS),
        visibility: Some(Visibility::Private),
        metadata: Some([("function_build".to_owned(), version.version.to_string())].into()),
        ..CreateSandbox::default()
    };
    let belongs = owner(&version.function);
    let workspace = version.workspace.clone();
    let spec = MachineSpec { workspace: workspace.clone(), request: request.clone() };
    let patience = if layer.is_some() { WaitPolicy::None } else { WaitPolicy::Long };
    match functions.core.machines.create(belongs.clone(), spec, patience).await {
        Ok(machine) => {
            version.spec.layer_snapshot.clone_from(&layer);
            version.spec.layer_reused = layer.is_some();
            Ok((machine, layer.is_some()))
        }
        // A layer that cannot be used is a convenience lost, not a reason to fail.
        Err(error) if layer.is_some() => {
            tracing::info!(error = %chain(&error), "dependencies are installed again");
            let request = CreateSandbox {
                template: Some(version.spec.template.clone()),
                from_snapshot: None,
                cpu: version.spec.cpu,
                memory_mb: version.spec.memory_mb,
                ..request
            };
            let spec = MachineSpec { workspace, request };
            let machine = functions.core.machines.create(belongs, spec, WaitPolicy::Long).await?;
            Ok((machine, false))
        }
        Err(error) => Err(error),
    }
}

impl Build<'_> {
    async fn steps(&mut self, checked: &CheckedBundle, reused: bool) -> Result<()> {
        self.put_code().await?;
        if self.version.layer_key.is_some() && !reused {
            self.install(checked).await?;
            self.version.spec.layer_snapshot = Some(self.snapshot("dependencies").await?);
        }
        if self.version.spec.runtime == Runtime::Nodejs && self.version.layer_key.is_some() {
            self.sh("ln -sfn /var/dependencies/node_modules /var/task/node_modules", STEP_SECONDS).await?;
        }
        self.start().await?;
        self.version.spec.snapshot = Some(self.snapshot("function").await?);
        self.version.spec.host = Some(self.machine.record.host.clone());
        Ok(())
    }

    /// Installs the bundle and the bootstraps, and removes everything else there.
    async fn put_code(&mut self) -> Result<()> {
        // Done by the guest program itself: the first processes of a restored machine take longer
        // than all of this.
        for directory in [TASK_ROOT, DEPENDENCIES, RUNTIME_DIR] {
            self.machine.make_dir(directory, GRACE).await?;
        }
        self.machine.remove(TASK_ROOT, GRACE).await?;
        self.machine.make_dir(TASK_ROOT, GRACE).await?;
        let bundle = self.functions.store.bundle(&self.version.workspace, &self.version.spec.bundle).await?;
        self.unpack(TASK_ROOT, bundle::unpacked(bundle)).await?;
        let bootstraps = [
            ("bootstrap.py".to_owned(), PYTHON_BOOTSTRAP.into(), 0o644),
            ("bootstrap.mjs".to_owned(), NODE_BOOTSTRAP.into(), 0o644),
        ];
        let bootstraps = bundle::pack(&bootstraps).map_err(Error::internal)?;
        self.unpack(RUNTIME_DIR, bundle::unpacked(bootstraps)).await
    }

    async fn unpack(&self, directory: &str, archive: axum::body::Body) -> Result<()> {
        self.machine.unpack(directory, archive, Duration::from_secs(STEP_SECONDS) + GRACE).await
    }

    /// Runs a command of ours; its failure is the deploy's.
    async fn sh(&mut self, command: &str, seconds: u64) -> Result<ExecResult> {
        let exec = ExecRequest {
            cmd: Some(command.to_owned()),
            cwd: Some("/".to_owned()),
            timeout_seconds: Some(seconds),
            ..ExecRequest::default()
        };
        let result = self.machine.exec_within(&exec, Duration::from_secs(seconds) + GRACE).await?;
        self.log.push_str(&result.stdout);
        self.log.push_str(&result.stderr);
        if result.exit_code != 0 {
            let why = last_line(&result.stderr).or_else(|| last_line(&result.stdout)).unwrap_or_default();
            let message = format!("`{command}` exited with code {}: {why}", result.exit_code);
            return Err(Error::bad_request(message));
        }
        Ok(result)
    }

    /// The requirements file for pip; requirements of a `pyproject.toml` are written to one.
    async fn requirements(&self, checked: &CheckedBundle) -> Result<String> {
        if let Some(Requirements::Listed(lines)) = checked.requirements()? {
            let file = [(REQUIREMENTS.to_owned(), lines.into_bytes(), 0o644)];
            let archive = bundle::pack(&file).map_err(Error::internal)?;
            self.unpack(RUNTIME_DIR, bundle::unpacked(archive)).await?;
            return Ok(format!("{RUNTIME_DIR}/{REQUIREMENTS}"));
        }
        Ok(REQUIREMENTS.to_owned())
    }

    async fn install(&mut self, checked: &CheckedBundle) -> Result<()> {
        let has = |name: &str| checked.manifests.iter().any(|(known, _)| known == name);
        let command = match self.version.spec.runtime {
            Runtime::Python => {
                let list = self.requirements(checked).await?;
                format!(
                    "cd {TASK_ROOT} && python3 -m pip install --no-input --disable-pip-version-check --no-cache-dir \
                     --root-user-action=ignore --target {DEPENDENCIES} -r {list}"
                )
            }
            Runtime::Nodejs => {
                let install =
                    if has("package-lock.json") || has("npm-shrinkwrap.json") { "ci" } else { "install" };
                format!(
                    "cd {TASK_ROOT} && npm {install} --omit=dev --no-audit --no-fund --loglevel=error && \
                     mkdir -p node_modules && rm -rf {DEPENDENCIES}/node_modules && mv node_modules {DEPENDENCIES}/"
                )
            }
            Runtime::Custom => return Ok(()),
        };
        self.log.push_str(&format!("$ {command}\n"));
        let began = now();
        let installed = self.sh(&command, INSTALL_SECONDS_MAX).await;
        if installed.is_err() {
            for line in self.machine.refused_connections(began).await {
                self.log.push_str(&format!("{line}\n"));
            }
        }
        installed.map(drop).map_err(|error| Error {
            message: format!("dependencies could not be installed: {}", error.message),
            ..error
        })
    }

    /// Starts the runtime and waits until the handler requests its first event.
    async fn start(&mut self) -> Result<()> {
        let start = StartProcess {
            exec: ExecRequest {
                argv: Some(self.command()),
                cwd: Some(TASK_ROOT.to_owned()),
                env: Some(self.environment()),
                ..ExecRequest::default()
            },
            tag: Some("function".to_owned()),
            ..StartProcess::default()
        };
        self.machine.start(&start).await?;
        let wait = Duration::from_secs(INIT_SECONDS_MAX);
        let mut connection = self.connect().await?;
        let ready = tokio::time::timeout(wait + GRACE, connection.await_ready(wait)).await;
        let late = || Error::bad_request(format!("the handler was not ready within {INIT_SECONDS_MAX} s"));
        let ready = ready.map_err(|_| late())??;
        self.log.push_str(&ready.log);
        match (ready.ready, ready.failure) {
            (true, _) => Ok(()),
            (false, Some(failure)) => Err(Error::bad_request(failure)),
            (false, None) => Err(late()),
        }
    }

    /// The runtime was started a moment ago; it listens before it starts the handler.
    async fn connect(&self) -> Result<Connection> {
        let mut watch = self.machine.watch(tokio::time::Instant::now() + GRACE);
        while let Some(ports) = watch.next().await? {
            if ports.iter().any(|port| port.port == PORT) {
                return Connection::open(&self.functions.core.edge, self.machine.id()).await;
            }
        }
        Err(Error::new(
            ErrorCode::GuestUnavailable,
            "the function runtime did not start in time; deploy again",
        ))
    }

    fn command(&self) -> Vec<String> {
        let entrypoint = &self.version.spec.entrypoint;
        let program = match self.version.spec.runtime {
            Runtime::Python => vec!["python3".to_owned(), format!("{RUNTIME_DIR}/bootstrap.py")],
            Runtime::Nodejs => vec!["node".to_owned(), format!("{RUNTIME_DIR}/bootstrap.mjs")],
            Runtime::Custom => vec![format!("{TASK_ROOT}/{entrypoint}")],
        };
        // The machine's first process is the guest program, which is the function runtime too.
        let runtime = ["/proc/1/exe", "function", "--"].map(str::to_owned);
        runtime.into_iter().chain(program).collect()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let spec = &self.version.spec;
        let memory = self.machine.record.spec.memory_mb.to_string();
        let own = [
            ("_HANDLER", spec.entrypoint.clone()),
            ("LAMBDA_TASK_ROOT", TASK_ROOT.to_owned()),
            ("LAMBDA_RUNTIME_DIR", RUNTIME_DIR.to_owned()),
            ("AWS_LAMBDA_FUNCTION_NAME", self.version.function.to_string()),
            ("AWS_LAMBDA_FUNCTION_VERSION", self.version.version.to_string()),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory),
            ("PANDASTACK_CONCURRENCY", spec.concurrency.max(1).to_string()),
            ("PYTHONPATH", format!("{TASK_ROOT}:{DEPENDENCIES}")),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        own.chain(spec.env.clone()).collect()
    }

    async fn snapshot(&self, what: &str) -> Result<SnapshotId> {
        let name = format!("{what} {} version {}", self.version.function, self.version.version);
        let request = CreateSnapshot { name: Some(name), ..CreateSnapshot::default() };
        Ok(self.machine.snapshot(request).await?.id)
    }
}

fn last_line(text: &str) -> Option<String> {
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.chars().take(500).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tail_is_cut_on_a_character_boundary() {
        let long = format!("{}é{}", "a".repeat(10), "b".repeat(LOG_BYTES_MAX - 1));
        assert_eq!(tail(&long), "b".repeat(LOG_BYTES_MAX - 1));
        assert_eq!(tail("short"), "short");
    }

    #[test]
    fn the_last_non_empty_line_is_the_failure_reason() {
        assert_eq!(last_line("a\nERROR: no such package\n\n").as_deref(), Some("ERROR: no such package"));
        assert_eq!(last_line("\n"), None);
    }
}
