//! `pandastack app deploy`: deploys an app and creates it on first use.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, ClientError};
use pandastack_detect::{MANIFEST, Manifest};
use pandastack_types::SandboxId;
use pandastack_types::api::{
    App, AppPreviews, AppSettings, AttachDatabase, CreateApp, DeployApp, Deployment, GitHost, SetAppEnv,
    UpdateApp,
};
use tokio_util::io::ReaderStream;

use super::follow::follow;
use super::{init, source};
use crate::commands::db;
use crate::commands::pairs::pairs;
use crate::commands::sandbox::resolve::resolve;
use crate::commands::wait::{WaitArgs, or_interrupt};
use crate::failure::Failure;
use crate::output::Output;

/// Chunk size of the upload.
const CHUNK_BYTES: usize = 256 * 1024;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// App name [default: the name in pandastack.toml, or the directory name]
    app: Option<String>,
    /// App name, same as the argument
    #[arg(long, conflicts_with = "app")]
    name: Option<String>,
    /// Git repository to deploy from, now and on every push: https://..., ssh://git@host/path or
    /// git@host:path
    #[arg(long, value_name = "URL")]
    git: Option<String>,
    /// Branch to deploy
    #[arg(long)]
    branch: Option<String>,
    /// Password or token for an HTTPS repository, or @FILE to read it from a file; never shown again
    #[arg(long, value_name = "TOKEN")]
    git_token: Option<String>,
    /// Git host: github, gitlab or gitea [default: detected from its webhooks or name]
    #[arg(long, value_name = "KIND", value_parser = git_host)]
    git_host: Option<GitHost>,
    /// API URL of the Git host, if it is not the standard one
    #[arg(long, value_name = "URL")]
    git_api_url: Option<String>,
    /// Webhook secret, or @FILE to read it from a file; `pandastack app get` shows the webhook URL
    #[arg(long, value_name = "SECRET")]
    webhook_secret: Option<String>,
    /// Private key for an SSH repository [default: a new key, whose public key you add to the repository]
    #[arg(long, value_name = "FILE")]
    deploy_key: Option<PathBuf>,
    /// SSH known_hosts file for the Git host [default: trust the first key that the host presents]
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    /// Branch, tag or commit for this deployment only
    #[arg(long = "ref", value_name = "REF", conflicts_with_all = ["dir", "from_sandbox"])]
    git_ref: Option<String>,
    /// Directory to deploy [default: the current directory, for an app without a repository]
    #[arg(long, conflicts_with_all = ["git", "from_sandbox"])]
    dir: Option<PathBuf>,
    /// Sandbox directory to deploy
    #[arg(long, value_name = "ID[:/PATH]", conflicts_with = "git")]
    from_sandbox: Option<String>,
    /// Framework: next, vite, cra, node, python, static or custom [default: detected]
    #[arg(long)]
    framework: Option<String>,
    /// Command to install dependencies [default: detected]
    #[arg(long, value_name = "COMMAND")]
    install: Option<String>,
    /// Command to build the app [default: detected]
    #[arg(long, value_name = "COMMAND")]
    build: Option<String>,
    /// Command to start the server [default: detected]
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// Subdirectory of the source that contains the app
    #[arg(long)]
    root: Option<String>,
    /// Port that the app listens on, passed as $PORT
    #[arg(long)]
    port: Option<u16>,
    /// Health check path; must succeed before a deployment goes live
    #[arg(long, value_name = "PATH")]
    health: Option<String>,
    /// Pull requests that get a preview: off, branches or all (including forks)
    #[arg(long, value_name = "WHICH", value_parser = previews)]
    previews: Option<AppPreviews>,
    /// Interval for polling the repository, in seconds, for Git hosts without webhooks; 0 to disable
    #[arg(long, value_name = "SECONDS")]
    poll: Option<u64>,
    /// Database to attach as $DATABASE_URL: ID, unique ID prefix, name or label
    #[arg(long, value_name = "DATABASE")]
    database: Option<String>,
    /// Minimum number of instances, which never sleep; at most --max-instances
    #[arg(long, value_name = "COUNT")]
    min_instances: Option<u32>,
    /// Maximum number of instances, 1 to 10; those beyond --min-instances sleep until they are needed
    #[arg(long, value_name = "COUNT")]
    max_instances: Option<u32>,
    /// Sleep after this many seconds without a request [default: 300]
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
    /// Environment variable for build and runtime; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Secret environment variable, never shown again; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    secret: Vec<String>,
    /// Template of the instances
    #[arg(long)]
    template: Option<String>,
    /// vCPUs per instance; 0 for the template's default
    #[arg(long, value_name = "COUNT")]
    cpu: Option<u32>,
    /// Memory per instance in MiB, a multiple of 128; 0 for the template's default
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Build without the cache
    #[arg(long)]
    no_cache: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

fn previews(word: &str) -> Result<AppPreviews, String> {
    let all = [AppPreviews::Off, AppPreviews::Branches, AppPreviews::All];
    let found = all.into_iter().find(|one| one.as_str() == word);
    found
        .ok_or_else(|| "expected `off`, `branches` (of the repository) or `all` (including forks)".to_owned())
}

fn git_host(word: &str) -> Result<GitHost, String> {
    match word {
        "github" => Ok(GitHost::Github),
        "gitlab" => Ok(GitHost::Gitlab),
        "gitea" | "forgejo" => Ok(GitHost::Gitea),
        _ => Err("expected `github`, `gitlab` or `gitea`".to_owned()),
    }
}

/// Runs the command.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    // Checked before anything is created: a mistake must not leave an empty app or hide a new deploy key.
    let source = named_source(client, &args).await?;
    let here = Path::new(".");
    let name = name(args.app.as_ref().or(args.name.as_ref()), args.dir.as_deref().unwrap_or(here))?;
    let database = match &args.database {
        Some(database) => Some(db::resolve::resolve(client, database).await?),
        None => None,
    };
    let (app, is_new) = ensure(client, &name, &args).await?;
    set_secrets(client, &app, &args.secret).await?;
    if let Some(database) = &database {
        client.attach_database(app.id.as_str(), database, &AttachDatabase::default()).await?;
    }
    if let (true, None, Some(key)) = (is_new, &args.deploy_key, &app.git_public_key) {
        eprintln!(
            "created app `{name}` with a deploy key; add it to the repository with read access, then run \
             `pandastack app deploy {name}`"
        );
        output.value(&app, |_| key.clone())?;
        return Ok(ExitCode::SUCCESS);
    }
    let background =
        format!("if the deployment has started, it continues; `pandastack app deploys {name}` shows it");
    let deployment = or_interrupt(&background, start(client, &app, &args, source)).await?;
    follow(client, app.id.as_str(), deployment, args.wait, output).await
}

/// An existing source that was named on the command line.
enum Source {
    /// A local directory.
    Directory(PathBuf),
    /// A directory in a sandbox.
    Sandbox(SandboxId, Option<String>),
}

async fn named_source(client: &Client, args: &Args) -> Result<Option<Source>> {
    if let Some(directory) = &args.dir {
        check_readable(directory)?;
        return Ok(Some(Source::Directory(directory.clone())));
    }
    let Some(from) = &args.from_sandbox else { return Ok(None) };
    let (sandbox, path) = from.split_once(':').map_or((from.as_str(), None), |(id, path)| (id, Some(path)));
    let sandbox = resolve(client, sandbox).await?;
    // A full id was not looked up by `resolve`.
    client.get_sandbox(&sandbox).await?;
    Ok(Some(Source::Sandbox(sandbox, path.map(str::to_owned))))
}

fn check_readable(directory: &Path) -> Result<()> {
    let found = std::fs::read_dir(directory).map(drop);
    found.map_err(|error| {
        let failure = Failure::new(format!("cannot deploy {}: {error}", directory.display()));
        failure.hint("set --dir to the directory that contains the app").into()
    })
}

/// The app's name: as given, or from the directory. Other settings in the directory's manifest
/// belong to the deployment of that directory, not to the named app.
fn name(given: Option<&String>, directory: &Path) -> Result<String> {
    match given {
        Some(name) => Ok(name.clone()),
        None => Ok(manifest(directory)?.name.unwrap_or_else(|| init::name_of(directory))),
    }
}

fn manifest(directory: &Path) -> Result<Manifest> {
    let file = directory.join(MANIFEST);
    match std::fs::read_to_string(&file) {
        Ok(text) => Manifest::parse(&text).with_context(|| format!("cannot read {}", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Manifest::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// App settings given on the command line.
fn settings(args: &Args) -> Result<AppSettings> {
    Ok(AppSettings {
        git_url: args.git.clone(),
        git_branch: args.branch.clone(),
        git_token: args.git_token.as_deref().map(secret_text).transpose()?,
        git_host: args.git_host,
        git_api_url: args.git_api_url.clone(),
        webhook_secret: args.webhook_secret.as_deref().map(secret_text).transpose()?,
        git_deploy_key: args.deploy_key.as_deref().map(read).transpose()?,
        git_known_hosts: args.known_hosts.as_deref().map(read).transpose()?,
        framework: args.framework.clone(),
        install_command: args.install.clone(),
        build_command: args.build.clone(),
        start_command: args.start.clone(),
        root_directory: args.root.clone(),
        port: args.port,
        health_path: args.health.clone(),
        previews: args.previews,
        poll_seconds: args.poll,
        idle_timeout_seconds: args.idle_timeout,
        min_instances: args.min_instances,
        max_instances: args.max_instances,
    })
}

/// All changes to the app given on the command line.
fn update(args: &Args) -> Result<UpdateApp> {
    Ok(UpdateApp {
        settings: settings(args)?,
        env: pairs(&args.env)?,
        template: args.template.clone(),
        cpu: args.cpu,
        memory_mb: args.memory,
    })
}

/// Creates or updates the app with the given settings; returns whether it was created.
async fn ensure(client: &Client, name: &str, args: &Args) -> Result<(App, bool)> {
    let update = update(args)?;
    // Validated before anything is changed: secrets are set one by one afterwards.
    pairs(&args.secret)?;
    let found = match client.get_app(name).await {
        Ok(app) => Some(app),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let has_repository = args.git.is_some() || found.as_ref().is_some_and(|app| !app.git_url.is_empty());
    if args.git_ref.is_some() && !has_repository {
        return Err(Failure::new(format!("app `{name}` has no repository"))
            .hint("set one with --git")
            .into());
    }
    match found {
        Some(app) if update == UpdateApp::default() => Ok((app, false)),
        Some(app) => Ok((client.update_app(app.id.as_str(), &update).await?, false)),
        None => {
            let UpdateApp { settings, env, template, cpu, memory_mb } = update;
            let request = CreateApp { name: name.to_owned(), settings, env, template, cpu, memory_mb };
            Ok((client.create_app(&request).await?, true))
        }
    }
}

/// Sets secret variables. Existing ones keep their scope and stage.
async fn set_secrets(client: &Client, app: &App, words: &[String]) -> Result<()> {
    let Some(secrets) = pairs(words)? else { return Ok(()) };
    for (key, value) in secrets {
        let set = SetAppEnv { value, secret: Some(true), ..SetAppEnv::default() };
        client.set_app_env(app.id.as_str(), &key, &set).await?;
    }
    Ok(())
}

/// A secret given directly, or read from `@FILE`: arguments are visible in the process list.
fn secret_text(word: &str) -> Result<String> {
    match word.strip_prefix('@') {
        Some(file) => Ok(read(Path::new(file))?.trim().to_owned()),
        None => Ok(word.to_owned()),
    }
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Starts a deployment from the named source, the app's repository or the current directory.
async fn start(client: &Client, app: &App, args: &Args, source: Option<Source>) -> Result<Deployment> {
    let id = app.id.as_str();
    let mut request = DeployApp { clear_cache: args.no_cache, ..DeployApp::default() };
    match source {
        Some(Source::Directory(directory)) => return upload(client, id, &directory, args.no_cache).await,
        Some(Source::Sandbox(sandbox, path)) => (request.from_sandbox, request.path) = (Some(sandbox), path),
        None if app.git_url.is_empty() => return upload(client, id, Path::new("."), args.no_cache).await,
        None => request.git_ref = args.git_ref.clone(),
    }
    Ok(client.deploy_app(id, &request).await?)
}

async fn upload(client: &Client, app: &str, directory: &Path, no_cache: bool) -> Result<Deployment> {
    let archive = tempfile::NamedTempFile::new().context("cannot create a temporary archive")?;
    let (file, from) = (archive.reopen()?, directory.to_owned());
    tokio::task::spawn_blocking(move || source::pack(file, &from)).await??;
    let file = tokio::fs::File::open(archive.path()).await.context("cannot open the archive")?;
    eprintln!("uploading {}", crate::output::size(file.metadata().await?.len()));
    let body = reqwest::Body::wrap_stream(ReaderStream::with_capacity(file, CHUNK_BYTES));
    let sent: Result<Deployment, ClientError> = client.deploy_archive(app, body, no_cache).await;
    Ok(sent?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn line(words: &[&str]) -> Args {
        Line::parse_from(["deploy"].iter().chain(words)).args
    }

    #[test]
    fn a_manifest_names_its_app_and_does_not_change_others() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[app]\nname = \"here\"\nport = 3000\nhealth_path = \"/up\"\nroot_directory = \"web\"\n";
        std::fs::write(directory.path().join(MANIFEST), text).unwrap();
        assert_eq!(name(None, directory.path()).unwrap(), "here");
        assert_eq!(name(Some(&"other".to_owned()), directory.path()).unwrap(), "other");
        assert_eq!(update(&line(&["other"])).unwrap(), UpdateApp::default());
        let given = settings(&line(&["other", "--port", "4000", "--root", "site"])).unwrap();
        assert_eq!((given.port, given.root_directory.as_deref()), (Some(4000), Some("site")));
        std::fs::write(directory.path().join(MANIFEST), "nonsense").unwrap();
        assert!(
            name(Some(&"other".to_owned()), directory.path()).is_ok(),
            "the manifest of another app is not read"
        );
        assert!(name(None, directory.path()).is_err());
    }

    #[test]
    fn options_apply_to_existing_apps() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "t0ken\n").unwrap();
        let token = format!("@{}", file.display());
        let machine = ["--template", "python", "--cpu", "2", "--memory", "1024", "--idle-timeout", "60"];
        let host = ["--git-token", token.as_str(), "--git-host", "gitea", "--webhook-secret", "hush"];
        let words = [&["shop", "--env", "A=1"][..], &machine[..], &host[..]].concat();
        let given = update(&line(&words)).unwrap();
        assert_eq!(
            (given.template.as_deref(), given.cpu, given.memory_mb),
            (Some("python"), Some(2), Some(1024))
        );
        assert_eq!(given.env.unwrap()["A"], "1");
        let settings = given.settings;
        assert_eq!(settings.idle_timeout_seconds, Some(60));
        assert_eq!(settings.git_token.as_deref(), Some("t0ken"), "from the file, without its line end");
        assert_eq!(settings.webhook_secret.as_deref(), Some("hush"));
        assert_eq!(settings.git_host, Some(GitHost::Gitea));
        assert!(update(&line(&["shop", "--git-token", "@/none"])).is_err());
    }
}
