//! `pandastack fn deploy`: deploys a directory or file as a new version.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pandastack_client::{Client, ClientError};
use pandastack_types::api::{
    CreateFunction, DeployStatus, Function, FunctionSettings, Isolation, PatchFunction, Runtime,
};

use tokio::sync::mpsc;

use super::bundle::{is_bundle, pack};
use super::watch::watch;
use crate::commands::pairs::pairs;
use crate::commands::wait::or_interrupt;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

/// Interval between checks of a slow deployment.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Function name
    pub name: String,
    /// Directory, file, or bundle (.zip, .tar.gz or .tgz) with the code
    #[arg(default_value = ".")]
    pub source: PathBuf,
    /// Entry point: `module.function` or a file [default: detected]
    #[arg(long)]
    pub entrypoint: Option<String>,
    /// Runtime: python, nodejs or custom [default: detected]
    #[arg(long)]
    pub runtime: Option<String>,
    /// Template of the instances
    #[arg(long)]
    pub template: Option<String>,
    /// Environment variable; can be repeated
    #[arg(long = "env", short = 'e', value_name = "KEY=VALUE")]
    pub env: Vec<String>,
    /// Secret environment variable, never shown again; can be repeated
    #[arg(long = "secret", value_name = "KEY=VALUE")]
    pub secrets: Vec<String>,
    /// Allow calls to the URL without an API key
    #[arg(long)]
    pub public: bool,
    /// Timeout of a call in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Maximum concurrent calls per instance [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub concurrency: Option<u32>,
    /// Maximum number of instances [default: 10]
    #[arg(long, value_name = "COUNT")]
    pub max_instances: Option<u32>,
    /// Use a new instance for every call
    #[arg(long)]
    pub fresh: bool,
    /// vCPUs per instance [default: from the template]
    #[arg(long, value_name = "COUNT")]
    pub cpu: Option<u32>,
    /// Memory per instance in MiB [default: from the template]
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u32>,
    /// Maximum retries of a failed asynchronous call [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub retries: Option<u32>,
    /// URL to notify when an asynchronous call has failed all its retries
    #[arg(long, value_name = "URL")]
    pub dead_letter_url: Option<String>,
    /// Redeploy when a file changes, and print logs
    #[arg(long)]
    pub watch: bool,
}

impl Args {
    fn settings(&self) -> FunctionSettings {
        FunctionSettings {
            timeout_seconds: self.timeout,
            concurrency: self.concurrency,
            max_instances: self.max_instances,
            isolation: self.fresh.then_some(Isolation::Fresh),
            cpu: self.cpu,
            memory_mb: self.memory,
            retries: self.retries,
            dead_letter_url: self.dead_letter_url.clone(),
            ..FunctionSettings::default()
        }
    }
}

/// Deploys and waits until the function is ready.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    if args.watch {
        return deploy_on_change(client, &args).await;
    }
    let began = Instant::now();
    let background =
        format!("the deployment continues; to see its state, run `pandastack fn get {}`", args.name);
    let function = or_interrupt(&background, deploy(client, &args)).await?;
    output.value(&function, |function| {
        let url = function.url.clone().unwrap_or_default();
        format!(
            "{} version {} is ready ({:.1} s)\n{url}",
            function.name,
            function.version,
            began.elapsed().as_secs_f64()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Deploys, prints logs and redeploys after each change, until interrupted.
async fn deploy_on_change(client: &Client, args: &Args) -> Result<ExitCode> {
    let mut changes =
        watch(&args.source).with_context(|| format!("cannot watch {}", args.source.display()))?;
    loop {
        match deploy(client, args).await {
            Ok(function) => {
                eprintln!("version {} at {}", function.version, function.url.unwrap_or_default());
            }
            Err(error) => eprintln!("error: {error:#}"),
        }
        // Changes made during a deployment are part of the next one.
        if !print_logs_until_change(client, &args.name, &mut changes).await? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Prints logs until a file changes; `false` if the watch has ended.
async fn print_logs_until_change(
    client: &Client,
    name: &str,
    changes: &mut mpsc::Receiver<()>,
) -> Result<bool> {
    let Ok(mut lines) = client.follow_function(name).await else {
        return Ok(changes.recv().await.is_some());
    };
    loop {
        tokio::select! {
            change = changes.recv() => return Ok(change.is_some()),
            line = lines.next() => match line? {
                Some((_, text)) => eprint!("{text}"),
                None => return Ok(changes.recv().await.is_some()),
            },
        }
    }
}

/// Creates or updates the function, uploads the bundle and waits for the deployment.
async fn deploy(client: &Client, args: &Args) -> Result<Function> {
    let bundle = pack(&args.source)?;
    match client.get_function(&args.name).await {
        Ok(existing) => update(client, args, &existing).await?,
        Err(ClientError::Refused { status: 404, .. }) => create(client, args).await?,
        Err(error) => return Err(error.into()),
    }
    let progress = Progress::start(format!("Deploying {}", args.name));
    let deployed = client.deploy_function(&args.name, bundle).await;
    let mut function = match deployed {
        Ok(function) => function,
        Err(error) => {
            drop(progress);
            show_log(client, &args.name).await;
            return Err(error.into());
        }
    };
    while function.deploy_status == Some(DeployStatus::Building) {
        tokio::time::sleep(POLL_INTERVAL).await;
        function = client.get_function(&args.name).await?;
    }
    drop(progress);
    if function.deploy_status == Some(DeployStatus::Failed) {
        show_log(client, &args.name).await;
        let why = function.deploy_error.unwrap_or_default();
        return Err(Failure::new(format!("cannot deploy function `{}`: {why}", args.name)).into());
    }
    Ok(function)
}

/// Prints the log of the newest deployment to standard error.
async fn show_log(client: &Client, name: &str) {
    let Ok(versions) = client.function_versions(name).await else { return };
    let Some(newest) = versions.first() else { return };
    if let Ok(log) = client.function_deploy_log(name, newest.version).await {
        eprint!("{log}");
    }
}

async fn update(client: &Client, args: &Args, existing: &Function) -> Result<()> {
    let patch = PatchFunction {
        env: pairs(&args.env)?.filter(|env| *env != existing.env),
        secrets: pairs(&args.secrets)?,
        public: args.public.then_some(true).filter(|_| !existing.public),
        entrypoint: args.entrypoint.clone().filter(|entrypoint| *entrypoint != existing.entrypoint),
        template: args.template.clone().filter(|template| *template != existing.template),
        settings: args.settings(),
        ..PatchFunction::default()
    };
    if patch != PatchFunction::default() {
        client.patch_function(&args.name, &patch).await?;
    }
    Ok(())
}

async fn create(client: &Client, args: &Args) -> Result<()> {
    let runtime = runtime_of(&args.source, args.runtime.as_deref(), args.entrypoint.as_deref())?;
    let entrypoint = args.entrypoint.clone().unwrap_or_else(|| entrypoint_of(&args.source, runtime));
    let request = CreateFunction {
        name: args.name.clone(),
        runtime,
        entrypoint: Some(entrypoint),
        template: args.template.clone(),
        public: args.public,
        env: pairs(&args.env)?,
        secrets: pairs(&args.secrets)?,
        code: None,
        settings: args.settings(),
    };
    client.create_function(&request).await?;
    Ok(())
}

/// The named runtime, or one detected from the files.
pub(super) fn runtime_of(source: &Path, named: Option<&str>, entrypoint: Option<&str>) -> Result<Runtime> {
    match named {
        Some(name) => serde_json::from_value(serde_json::Value::String(name.to_owned())).map_err(|_| {
            Failure::new(format!("unknown runtime `{name}`")).hint("use python, nodejs or custom").into()
        }),
        None => Ok(detect_runtime(source, entrypoint)),
    }
}

/// Detects the runtime from the files.
fn detect_runtime(source: &Path, entrypoint: Option<&str>) -> Runtime {
    let name = entrypoint.map(str::to_owned).unwrap_or_else(|| source.display().to_string());
    let has = |file: &str| source.join(file).is_file();
    if [".js", ".mjs", ".cjs"].iter().any(|end| name.ends_with(end)) {
        Runtime::Nodejs
    } else if name.ends_with(".py") || has("main.py") || has("requirements.txt") {
        Runtime::Python
    } else if has("index.js") || has("index.mjs") || has("package.json") {
        Runtime::Nodejs
    } else if has("bootstrap") {
        Runtime::Custom
    } else {
        Runtime::Python
    }
}

pub(super) fn entrypoint_of(source: &Path, runtime: Runtime) -> String {
    if source.is_file() && !is_bundle(source) {
        return source.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    }
    if runtime == Runtime::Nodejs && source.join("index.mjs").is_file() {
        return "index.mjs".to_owned();
    }
    runtime.entrypoint_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_detected_from_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let with = |file: &str| {
            std::fs::write(dir.path().join(file), "").unwrap();
            let detected = (
                detect_runtime(dir.path(), None),
                entrypoint_of(dir.path(), detect_runtime(dir.path(), None)),
            );
            std::fs::remove_file(dir.path().join(file)).unwrap();
            detected
        };
        assert_eq!(with("main.py"), (Runtime::Python, "main.py".to_owned()));
        assert_eq!(with("index.mjs"), (Runtime::Nodejs, "index.mjs".to_owned()));
        assert_eq!(with("bootstrap"), (Runtime::Custom, "bootstrap".to_owned()));
        assert_eq!(detect_runtime(dir.path(), Some("a.mjs")), Runtime::Nodejs);
    }
}
