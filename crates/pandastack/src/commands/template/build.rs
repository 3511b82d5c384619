//! `pandastack template build`: builds a Dockerfile, or a template of the platform before its first use.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::BuildId;
use pandastack_types::api::{
    Build, BuildStatus, CreateBuild, ReadyCheck, StartBuild, Template, TemplateStatus,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::io::ReaderStream;

use super::secret::SecretArg;
use super::source::{SourceArgs, Upload};
use super::{context, debug, secret};
use crate::commands::create::follow_build;
use crate::commands::pairs::pairs;
use crate::commands::wait::WaitArgs;
use crate::failure::{Failure, INTERRUPTED};
use crate::output::Output;
use crate::progress::Progress;

/// Chunk size of the upload.
const CHUNK_BYTES: usize = 256 * 1024;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory with the Dockerfile; without --name, a built-in template to build ahead of time
    #[arg(value_name = "DIR", default_value = ".")]
    target: String,
    /// Template name
    #[arg(long)]
    name: Option<String>,
    /// Dockerfile [default: DIR/Dockerfile]
    #[arg(long, short, value_name = "FILE", requires = "name")]
    file: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// Tag of this version, besides `latest`; can be repeated
    #[arg(long, requires = "name")]
    tag: Vec<String>,
    /// Value of an ARG; can be repeated
    #[arg(long, value_name = "KEY=VALUE", requires = "name")]
    build_arg: Vec<String>,
    /// Secret for RUN --mount=type=secret, from a file or a variable of this shell; can be repeated
    #[arg(
        long,
        value_name = "id=NAME[,src=FILE|,env=VARIABLE]",
        requires = "name",
        value_parser = secret::parse
    )]
    secret: Vec<SecretArg>,
    /// Stage to build [default: the last]
    #[arg(long, value_name = "STAGE", requires = "name")]
    target_stage: Option<String>,
    /// Command that is already running when a sandbox is created
    #[arg(long, value_name = "COMMAND", requires = "name")]
    start: Option<String>,
    /// Check that the start command is ready: port:N, url:URL, file:PATH, process:NAME or command:COMMAND
    #[arg(long, value_name = "CHECK", requires = "start", value_parser = ready_check)]
    ready: Option<ReadyCheck>,
    /// vCPUs of its sandboxes
    #[arg(long, value_name = "COUNT", requires = "name")]
    cpu: Option<u32>,
    /// Memory of its sandboxes in MiB, a multiple of 128
    #[arg(long, value_name = "MIB", requires = "name")]
    memory: Option<u32>,
    /// Build without the cache
    #[arg(long, requires = "name")]
    no_cache: bool,
    /// Keep the build files, secrets and credentials, so that the template can be rebuilt
    #[arg(long, requires = "name")]
    keep_inputs: bool,
    /// If a step fails, keep its machine for an hour and open a shell in it
    #[arg(long, requires = "name")]
    debug: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

fn ready_check(text: &str) -> Result<ReadyCheck, String> {
    let expected = "expected port:N, url:URL, file:PATH, process:NAME or command:COMMAND";
    let (kind, value) = text.split_once(':').ok_or(expected)?;
    match kind {
        "port" => value.parse().map(ReadyCheck::Port).map_err(|_| "expected a port number".to_owned()),
        "url" => Ok(ReadyCheck::Url(value.to_owned())),
        "file" => Ok(ReadyCheck::File(value.to_owned())),
        "process" => Ok(ReadyCheck::Process(value.to_owned())),
        "command" => Ok(ReadyCheck::Command(value.to_owned())),
        _ => Err(expected.to_owned()),
    }
}

/// Runs the command.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    match args.name.clone() {
        Some(name) => build(client, args, name, output).await,
        None => bake(client, &args.target, args.wait, output).await,
    }
}

async fn bake(client: &Client, name: &str, wait: WaitArgs, output: Output) -> Result<ExitCode> {
    if name == "." || name.contains('/') {
        return Err(Failure::new("the template to build has no name").hint("set one with --name").into());
    }
    let began = Instant::now();
    let mut template = client.get_template(name).await?;
    if template.status != TemplateStatus::Ready {
        let progress = Progress::start(format!("Building template {name}"));
        let build = client.bake_template(name).await?;
        if !wait.waits() {
            output.value(&build, |build| build.id.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        wait.until(&background(&build.id), follow_build(client, &build.id, &progress)).await?;
        template = client.get_template(name).await?;
    }
    show(&template, began, output)
}

async fn build(client: &Client, args: Args, name: String, output: Output) -> Result<ExitCode> {
    let directory = Path::new(&args.target);
    let (dockerfile, files) = args.source.find(directory, args.file.as_deref())?;
    // Checked before anything is created and uploaded.
    let parsed =
        pandastack_dockerfile::parse(&dockerfile).map_err(|error| Failure::new(error.to_string()))?;
    let start = StartBuild {
        dockerfile,
        registries: args.source.credentials(&parsed)?,
        plain_http: args.source.plain_http,
        args: pairs(&args.build_arg)?.unwrap_or_default(),
        secrets: secret::read(&args.secret)?,
        target: args.target_stage,
        no_cache: args.no_cache,
        start_command: args.start,
        ready: args.ready,
        debug: args.debug,
        ..StartBuild::default()
    };
    let request = CreateBuild {
        name,
        tags: args.tag,
        cpu: args.cpu,
        memory_mb: args.memory,
        keep_inputs: args.keep_inputs,
        ..CreateBuild::default()
    };
    submit(client, Order { request, start, files, wait: args.wait }, output).await
}

/// A build to start.
pub(super) struct Order {
    pub(super) request: CreateBuild,
    pub(super) start: StartBuild,
    /// Files to upload before the start.
    pub(super) files: Upload,
    pub(super) wait: WaitArgs,
}

/// Starts a build, and shows it until its end.
pub(super) async fn submit(client: &Client, order: Order, output: Output) -> Result<ExitCode> {
    let began = Instant::now();
    let Order { request, start, files, wait } = order;
    let name = request.name.clone();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let id = client.create_build(&request).await?.id;
    let begin = async {
        upload(client, &id, files).await?;
        anyhow::Ok(client.start_build(&id, &start).await?)
    };
    let started = tokio::select! {
        started = begin => started.map(Some),
        _ = interrupt.recv() => Ok(None),
    };
    if !matches!(started, Ok(Some(_))) {
        // Otherwise it would wait for its files or its start until it expires.
        let _ = client.cancel_build(&id).await;
    }
    let Some(started) = started? else { return Ok(cancelled()) };
    if !wait.waits() {
        output.value(&started, |build| build.id.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Watched::Ended(ended) = watch(client, &id, &name, wait).await? else {
        return Ok(cancelled());
    };
    if ended.status != BuildStatus::Done {
        let why = ended.error.unwrap_or_else(|| "no reason was reported".to_owned());
        let mut failure = Failure::new(format!("cannot build template `{name}`: {why}"));
        let place = ended.failure.unwrap_or_default();
        for line in &place.output {
            failure = failure.hint(format!("output: {line}"));
        }
        return Err(debug::offer(client, place, failure, output).await.into());
    }
    show(&client.get_template(&name).await?, began, output)
}

/// The end of a watched build.
pub(super) enum Watched {
    /// The build ended by itself.
    Ended(Box<Build>),
    /// The user pressed Ctrl-C.
    Cancelled,
}

/// Prints the log of a build until its end. Ctrl-C cancels the build.
pub(super) async fn watch(client: &Client, id: &BuildId, name: &str, wait: WaitArgs) -> Result<Watched> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let followed = async {
        if follow(client, id, name, &mut interrupt).await? {
            return Ok(true);
        }
        client.cancel_build(id).await?;
        Ok(false)
    };
    match wait.at_most(&background(id), followed).await? {
        true => Ok(Watched::Ended(Box::new(client.get_build(id).await?))),
        false => Ok(Watched::Cancelled),
    }
}

/// Message for a wait for a build that ends early.
fn background(id: &BuildId) -> String {
    format!("the build continues; to follow it, run `pandastack template logs {id}`")
}

pub(super) fn cancelled() -> ExitCode {
    eprintln!("the build was cancelled");
    ExitCode::from(INTERRUPTED)
}

async fn upload(client: &Client, id: &BuildId, files: Upload) -> Result<()> {
    let archive = tempfile::NamedTempFile::new().context("cannot create a temporary archive")?;
    let path = match files {
        Upload::Nothing => return Ok(()),
        Upload::Archive(path) => path,
        Upload::Directory(from) => {
            let file = archive.reopen()?;
            tokio::task::spawn_blocking(move || context::pack(file, &from)).await??;
            archive.path().to_owned()
        }
    };
    let file = tokio::fs::File::open(&path).await;
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    eprintln!("uploading {}", crate::output::size(file.metadata().await?.len()));
    let body = reqwest::Body::wrap_stream(ReaderStream::with_capacity(file, CHUNK_BYTES));
    Ok(client.add_build_files(id, body).await?)
}

/// Prints the log to standard error until the build ends (true) or the user presses Ctrl-C (false).
async fn follow(client: &Client, id: &BuildId, name: &str, interrupt: &mut Signal) -> Result<bool> {
    let progress = Progress::start(format!("Building template {name}"));
    let mut logs = client.follow_build(id).await?;
    loop {
        tokio::select! {
            line = logs.next() => match line? {
                Some(line) => progress.log(&line),
                None => return Ok(true),
            },
            _ = interrupt.recv() => return Ok(false),
        }
    }
}

fn show(template: &Template, began: Instant, output: Output) -> Result<ExitCode> {
    output.value(template, |template: &Template| {
        format!("template {} is ready ({:.1} s)", template.name, began.elapsed().as_secs_f64())
    })?;
    Ok(ExitCode::SUCCESS)
}
