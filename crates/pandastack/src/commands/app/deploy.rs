//! `pandastack app deploy`.

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

use super::{follow, init, source};
use crate::commands::pairs;
use crate::commands::sandbox::resolve;
use crate::failure::Failure;
use crate::output::Output;

/// Bytes read from the archive at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The app's name; that of pandastack.toml or of the directory when absent
    app: Option<String>,
    /// The same
    #[arg(long, conflicts_with = "app")]
    name: Option<String>,
    /// Deploy from this repository, now and with every push: https://..., ssh://git@host/path or git@host:path
    #[arg(long, value_name = "URL")]
    git: Option<String>,
    /// Its branch
    #[arg(long)]
    branch: Option<String>,
    /// Password or token for a repository by https, or @FILE that has it; never shown again
    #[arg(long, value_name = "TOKEN")]
    git_token: Option<String>,
    /// Kind of the repository's host: github, gitlab, gitea; by its deliveries or name when absent
    #[arg(long, value_name = "KIND", value_parser = git_host)]
    git_host: Option<GitHost>,
    /// Address of that host's API, if it is not where such hosts have it
    #[arg(long, value_name = "URL")]
    git_api_url: Option<String>,
    /// Secret of the app's webhook, or @FILE that has it; `app get` shows the webhook's address
    #[arg(long, value_name = "SECRET")]
    webhook_secret: Option<String>,
    /// Private key for a repository by ssh; without one the app has its own, to be added there
    #[arg(long, value_name = "FILE")]
    deploy_key: Option<PathBuf>,
    /// Keys of the repository's host, in the form of ssh's known_hosts; without them, those that it shows first
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    /// Branch, tag or commit, this time
    #[arg(long = "ref", value_name = "REF", conflicts_with_all = ["dir", "from_sandbox"])]
    git_ref: Option<String>,
    /// Deploy this directory; the current one for an app without a repository
    #[arg(long, conflicts_with_all = ["git", "from_sandbox"])]
    dir: Option<PathBuf>,
    /// Deploy a directory of a running sandbox, as ID or ID:/path
    #[arg(long, value_name = "ID[:/PATH]", conflicts_with = "git")]
    from_sandbox: Option<String>,
    /// Kind of app: next, vite, cra, node, python, static, custom
    #[arg(long)]
    framework: Option<String>,
    /// Command that installs dependencies
    #[arg(long, value_name = "COMMAND")]
    install: Option<String>,
    /// Command that builds
    #[arg(long, value_name = "COMMAND")]
    build: Option<String>,
    /// Command that starts the server
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// Directory of the app within its source
    #[arg(long)]
    root: Option<String>,
    /// The app's $PORT
    #[arg(long)]
    port: Option<u16>,
    /// Path that must answer before a version goes live
    #[arg(long, value_name = "PATH")]
    health: Option<String>,
    /// Which pull requests get a preview: off, branches, all
    #[arg(long, value_name = "WHICH", value_parser = previews)]
    previews: Option<AppPreviews>,
    /// Look at the repository every so many seconds, for hosts that tell of no pushes; 0 for none
    #[arg(long, value_name = "SECONDS")]
    poll: Option<u64>,
    /// Attach this database, as `app attach` does: $DATABASE_URL leads to it
    #[arg(long, value_name = "DATABASE")]
    database: Option<String>,
    /// Machines that never sleep, at most --max-instances
    #[arg(long, value_name = "COUNT")]
    min_instances: Option<u32>,
    /// Machines that serve, 1 to 10; those beyond --min-instances sleep until there is enough to do
    #[arg(long, value_name = "COUNT")]
    max_instances: Option<u32>,
    /// Seconds without a request before it sleeps [default: 300]
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
    /// A variable, for build and run; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// The same, never shown again; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    secret: Vec<String>,
    /// Template of its machines
    #[arg(long)]
    template: Option<String>,
    /// Virtual processors of each machine; 0 for the template's
    #[arg(long, value_name = "COUNT")]
    cpu: Option<u32>,
    /// Memory of each machine in MiB, in steps of 128; 0 for the template's
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Install everything anew
    #[arg(long)]
    no_cache: bool,
    /// Return at once instead of following the deployment
    #[arg(long, short)]
    detach: bool,
}

fn previews(word: &str) -> Result<AppPreviews, String> {
    let all = [AppPreviews::Off, AppPreviews::Branches, AppPreviews::All];
    let found = all.into_iter().find(|one| one.as_str() == word);
    found.ok_or_else(|| "must be `off`, `branches` (those of the repository) or `all` (forks too)".to_owned())
}

fn git_host(word: &str) -> Result<GitHost, String> {
    match word {
        "github" => Ok(GitHost::Github),
        "gitlab" => Ok(GitHost::Gitlab),
        "gitea" | "forgejo" => Ok(GitHost::Gitea),
        _ => Err("must be `github`, `gitlab` or `gitea`".to_owned()),
    }
}

/// Carries it out.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    // Looked for before anything is made: a mistake leaves no empty app, and a new one with a key shows that once.
    let given = given(client, &args).await?;
    let here = Path::new(".");
    let name = name(args.app.as_ref().or(args.name.as_ref()), args.dir.as_deref().unwrap_or(here))?;
    let database = match &args.database {
        Some(database) => Some(crate::commands::db::resolve(client, database).await?),
        None => None,
    };
    let (app, is_new) = ensure(client, &name, &args).await?;
    set_secrets(client, &app, &args.secret).await?;
    if let Some(database) = &database {
        client.attach_database(app.id.as_str(), database, &AttachDatabase::default()).await?;
    }
    if let (true, None, Some(key)) = (is_new, &args.deploy_key, &app.git_public_key) {
        eprintln!(
            "app `{name}` has a key of its own; add it to the deploy keys of the repository (reading is enough), and then \
             run: pandastack app deploy {name}"
        );
        output.value(&app, |_| key.clone())?;
        return Ok(ExitCode::SUCCESS);
    }
    let begun = begin(client, &app, &args, given).await?;
    if args.detach {
        output.value(&begun, |begun| begun.id.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    follow(client, app.id.as_str(), begun, output).await
}

/// A source that was named, and is there.
enum Given {
    /// A directory of this machine.
    Directory(PathBuf),
    /// One of a sandbox.
    Sandbox(SandboxId, Option<String>),
}

async fn given(client: &Client, args: &Args) -> Result<Option<Given>> {
    if let Some(directory) = &args.dir {
        readable(directory)?;
        return Ok(Some(Given::Directory(directory.clone())));
    }
    let Some(from) = &args.from_sandbox else { return Ok(None) };
    let (sandbox, path) = from.split_once(':').map_or((from.as_str(), None), |(id, path)| (id, Some(path)));
    let sandbox = resolve(client, sandbox).await?;
    // A whole id was not looked for.
    client.get_sandbox(&sandbox).await?;
    Ok(Some(Given::Sandbox(sandbox, path.map(str::to_owned))))
}

fn readable(directory: &Path) -> Result<()> {
    let found = std::fs::read_dir(directory).map(drop);
    found.map_err(|error| {
        let failure = Failure::new(format!("cannot deploy {}: {error}", directory.display()));
        failure.hint("--dir is a directory with the app's source").into()
    })
}

/// The app's name: as given, else that of the directory. What else the directory's file says is for the deployment that has it as its
/// source; the app that is named may be another.
fn name(given: Option<&String>, directory: &Path) -> Result<String> {
    match given {
        Some(name) => Ok(name.clone()),
        None => Ok(manifest(directory)?.name.unwrap_or_else(|| init::name_of(directory))),
    }
}

fn manifest(directory: &Path) -> Result<Manifest> {
    let file = directory.join(MANIFEST);
    match std::fs::read_to_string(&file) {
        Ok(text) => Manifest::parse(&text).with_context(|| format!("read {}", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Manifest::default()),
        Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
    }
}

/// Settings of the app that were given.
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

/// Everything of the app that was given.
fn wanted(args: &Args) -> Result<UpdateApp> {
    Ok(UpdateApp {
        settings: settings(args)?,
        env: pairs(&args.env)?,
        template: args.template.clone(),
        cpu: args.cpu,
        memory_mb: args.memory,
    })
}

/// The app, made if it is not there, with what was given; and whether it was made.
async fn ensure(client: &Client, name: &str, args: &Args) -> Result<(App, bool)> {
    let wanted = wanted(args)?;
    // Looked at before anything is changed: they are set one by one, afterwards.
    pairs(&args.secret)?;
    let found = match client.get_app(name).await {
        Ok(app) => Some(app),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let has_repository = args.git.is_some() || found.as_ref().is_some_and(|app| !app.git_url.is_empty());
    if args.git_ref.is_some() && !has_repository {
        return Err(Failure::new(format!("app `{name}` has no repository"))
            .hint("give it one with --git")
            .into());
    }
    match found {
        Some(app) if wanted == UpdateApp::default() => Ok((app, false)),
        Some(app) => Ok((client.update_app(app.id.as_str(), &wanted).await?, false)),
        None => {
            let UpdateApp { settings, env, template, cpu, memory_mb } = wanted;
            let request = CreateApp { name: name.to_owned(), settings, env, template, cpu, memory_mb };
            Ok((client.create_app(&request).await?, true))
        }
    }
}

/// Sets secret variables. One that is there keeps who sees it and when.
async fn set_secrets(client: &Client, app: &App, words: &[String]) -> Result<()> {
    let Some(secrets) = pairs(words)? else { return Ok(()) };
    for (key, value) in secrets {
        let set = SetAppEnv { value, secret: Some(true), ..SetAppEnv::default() };
        client.set_app_env(app.id.as_str(), &key, &set).await?;
    }
    Ok(())
}

/// A secret as it was given, or what is in the file that is named: arguments are seen by whoever lists processes.
fn secret_text(word: &str) -> Result<String> {
    match word.strip_prefix('@') {
        Some(file) => Ok(read(Path::new(file))?.trim().to_owned()),
        None => Ok(word.to_owned()),
    }
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

/// Begins with the source that was named, else with the app's repository, else with the directory that one is in.
async fn begin(client: &Client, app: &App, args: &Args, given: Option<Given>) -> Result<Deployment> {
    let id = app.id.as_str();
    let mut request = DeployApp { clear_cache: args.no_cache, ..DeployApp::default() };
    match given {
        Some(Given::Directory(directory)) => return upload(client, id, &directory, args.no_cache).await,
        Some(Given::Sandbox(sandbox, path)) => (request.from_sandbox, request.path) = (Some(sandbox), path),
        None if app.git_url.is_empty() => return upload(client, id, Path::new("."), args.no_cache).await,
        None => request.git_ref = args.git_ref.clone(),
    }
    Ok(client.deploy_app(id, &request).await?)
}

async fn upload(client: &Client, app: &str, directory: &Path, no_cache: bool) -> Result<Deployment> {
    let archive = tempfile::NamedTempFile::new().context("make a temporary archive")?;
    let (file, from) = (archive.reopen()?, directory.to_owned());
    tokio::task::spawn_blocking(move || source::pack(file, &from)).await??;
    let file = tokio::fs::File::open(archive.path()).await.context("open the archive")?;
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
    fn the_file_of_a_directory_names_an_app_and_changes_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[app]\nname = \"here\"\nport = 3000\nhealth_path = \"/up\"\nroot_directory = \"web\"\n";
        std::fs::write(directory.path().join(MANIFEST), text).unwrap();
        assert_eq!(name(None, directory.path()).unwrap(), "here");
        assert_eq!(name(Some(&"other".to_owned()), directory.path()).unwrap(), "other");
        assert_eq!(wanted(&line(&["other"])).unwrap(), UpdateApp::default());
        let said = settings(&line(&["other", "--port", "4000", "--root", "site"])).unwrap();
        assert_eq!((said.port, said.root_directory.as_deref()), (Some(4000), Some("site")));
        std::fs::write(directory.path().join(MANIFEST), "nonsense").unwrap();
        assert!(name(Some(&"other".to_owned()), directory.path()).is_ok(), "it is not about this app");
        assert!(name(None, directory.path()).is_err());
    }

    #[test]
    fn what_is_said_of_an_app_holds_for_one_that_is_there_too() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "t0ken\n").unwrap();
        let token = format!("@{}", file.display());
        let machine = ["--template", "python", "--cpu", "2", "--memory", "1024", "--idle-timeout", "60"];
        let host = ["--git-token", token.as_str(), "--git-host", "gitea", "--webhook-secret", "hush"];
        let words = [&["shop", "--env", "A=1"][..], &machine[..], &host[..]].concat();
        let said = wanted(&line(&words)).unwrap();
        assert_eq!(
            (said.template.as_deref(), said.cpu, said.memory_mb),
            (Some("python"), Some(2), Some(1024))
        );
        assert_eq!(said.env.unwrap()["A"], "1");
        let settings = said.settings;
        assert_eq!(settings.idle_timeout_seconds, Some(60));
        assert_eq!(settings.git_token.as_deref(), Some("t0ken"), "from the file, without its line end");
        assert_eq!(settings.webhook_secret.as_deref(), Some("hush"));
        assert_eq!(settings.git_host, Some(GitHost::Gitea));
        assert!(wanted(&line(&["shop", "--git-token", "@/none"])).is_err());
    }
}
