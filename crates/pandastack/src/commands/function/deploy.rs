//! `pandastack fn deploy`: code in, a version out.

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
use crate::commands::pairs;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

/// Between two looks at a deploy that takes long.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The function's name
    pub name: String,
    /// Directory or file with the code, or a bundle: .zip, .tar.gz or .tgz
    #[arg(default_value = ".")]
    pub source: PathBuf,
    /// What is called: `module.function` or a file
    #[arg(long)]
    pub entrypoint: Option<String>,
    /// python, nodejs or custom; told from the code unless said
    #[arg(long)]
    pub runtime: Option<String>,
    /// Template of its machines
    #[arg(long)]
    pub template: Option<String>,
    /// Environment, KEY=VALUE
    #[arg(long = "env", short = 'e')]
    pub env: Vec<String>,
    /// Environment that is never shown again, KEY=VALUE
    #[arg(long = "secret")]
    pub secrets: Vec<String>,
    /// Let its URL be called without a key
    #[arg(long)]
    pub public: bool,
    /// Seconds until a call is killed
    #[arg(long)]
    pub timeout: Option<u64>,
    /// Calls that one machine serves at once
    #[arg(long)]
    pub concurrency: Option<u32>,
    /// Machines that it may have at once
    #[arg(long)]
    pub max_instances: Option<u32>,
    /// A machine of its own for every call
    #[arg(long)]
    pub fresh: bool,
    /// Processors of its machines; those of the template unless said
    #[arg(long)]
    pub cpu: Option<u32>,
    /// Memory of its machines in MiB; that of the template unless said
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u32>,
    /// How often a failed queued call is tried again
    #[arg(long)]
    pub retries: Option<u32>,
    /// Told of queued calls that were given up
    #[arg(long, value_name = "URL")]
    pub dead_letter_url: Option<String>,
    /// Deploy again whenever a file changes, and show what is printed
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

/// Deploys and waits until it can be called.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    if args.watch {
        return deploy_on_change(client, &args).await;
    }
    let began = Instant::now();
    let function = deploy(client, &args).await?;
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

/// Deploys, shows what is printed, and deploys again after each change, until it is interrupted.
async fn deploy_on_change(client: &Client, args: &Args) -> Result<ExitCode> {
    let mut changes = watch(&args.source).with_context(|| format!("watch {}", args.source.display()))?;
    loop {
        match deploy(client, args).await {
            Ok(function) => {
                eprintln!("version {} at {}", function.version, function.url.unwrap_or_default());
            }
            Err(error) => eprintln!("error: {error:#}"),
        }
        // Whatever changed during the deploy is in the next one.
        if !show_until_changed(client, &args.name, &mut changes).await? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// `false` when nothing is watched any more.
async fn show_until_changed(client: &Client, name: &str, changes: &mut mpsc::Receiver<()>) -> Result<bool> {
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

/// Makes the function if there is none, uploads, and waits.
async fn deploy(client: &Client, args: &Args) -> Result<Function> {
    let bundle = pack(&args.source)?;
    match client.get_function(&args.name).await {
        Ok(known) => update(client, args, &known).await?,
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
        tokio::time::sleep(LOOK_EVERY).await;
        function = client.get_function(&args.name).await?;
    }
    drop(progress);
    if function.deploy_status == Some(DeployStatus::Failed) {
        show_log(client, &args.name).await;
        let why = function.deploy_error.unwrap_or_default();
        return Err(Failure::new(format!("{} was not deployed: {why}", args.name)).into());
    }
    Ok(function)
}

/// What the newest deploy printed, on standard error.
async fn show_log(client: &Client, name: &str) {
    let Ok(versions) = client.function_versions(name).await else { return };
    let Some(newest) = versions.first() else { return };
    if let Ok(log) = client.function_deploy_log(name, newest.version).await {
        eprint!("{log}");
    }
}

async fn update(client: &Client, args: &Args, known: &Function) -> Result<()> {
    let patch = PatchFunction {
        env: pairs(&args.env)?.filter(|env| *env != known.env),
        secrets: pairs(&args.secrets)?,
        public: args.public.then_some(true).filter(|_| !known.public),
        entrypoint: args.entrypoint.clone().filter(|entrypoint| *entrypoint != known.entrypoint),
        template: args.template.clone().filter(|template| *template != known.template),
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

/// The runtime that is named, or that the files tell.
pub(super) fn runtime_of(source: &Path, named: Option<&str>, entrypoint: Option<&str>) -> Result<Runtime> {
    match named {
        Some(name) => serde_json::from_value(serde_json::Value::String(name.to_owned())).map_err(|_| {
            Failure::new(format!("`{name}` is not a runtime")).hint("use python, nodejs or custom").into()
        }),
        None => Ok(guess(source, entrypoint)),
    }
}

/// The runtime, from what is there.
fn guess(source: &Path, entrypoint: Option<&str>) -> Runtime {
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
    fn the_runtime_is_told_from_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let with = |file: &str| {
            std::fs::write(dir.path().join(file), "").unwrap();
            let told = (guess(dir.path(), None), entrypoint_of(dir.path(), guess(dir.path(), None)));
            std::fs::remove_file(dir.path().join(file)).unwrap();
            told
        };
        assert_eq!(with("main.py"), (Runtime::Python, "main.py".to_owned()));
        assert_eq!(with("index.mjs"), (Runtime::Nodejs, "index.mjs".to_owned()));
        assert_eq!(with("bootstrap"), (Runtime::Custom, "bootstrap".to_owned()));
        assert_eq!(guess(dir.path(), Some("a.mjs")), Runtime::Nodejs);
    }
}
