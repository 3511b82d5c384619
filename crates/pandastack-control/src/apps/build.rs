//! Building a deployment: source, dependencies, build, artifact.
//!
//! A build begins in a machine made from what the last one installed, if there is such a snapshot. Whether installing again
//! would change anything is told by a key over the lock files and the install command, kept in the machine beside what
//! was installed: the same key means that everything is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use pandastack_detect::{Plan, Serve, Undetected, VENV, Wishes, detect};
use pandastack_types::limits::BUILD_SECONDS_MAX;
use tokio::time::Instant;

use super::SOURCE_DIR;
use super::databases::{self, Stage};
use super::deploy::change;
use super::log::Log;
use super::machine::{BUILD_TAG, Machine, Purpose};
use super::output::Exit;
use super::record::{AppRecord, DeploymentRecord, Source, StartSpec};
use super::source::{self, shell, step};
use crate::app::App;
use crate::error::ApiError;

/// Where the key of what is installed lies.
const INSTALLED: &str = "/srv/installed";
/// Serves the files of static apps.
const STATIC_SERVER: &str = include_str!("static_server.py");
const STATIC_SERVER_PATH: &str = "/srv/static_server.py";
/// Programs of the app come before those of the template.
const PATH: &str =
    "/root/.local/share/mise/shims:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prints a key over files and a command.
const KEY: &str = r#"cd "$DIR" && { printf '%s\n' "$INSTALL"; for file in "$@"; do sha256sum -- "$file" 2>/dev/null; done; } | sha256sum | cut -d' ' -f1; cat "$INSTALLED" 2>/dev/null"#;

/// Why there is no artifact.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// A step ended badly.
    #[error("{0}")]
    Step(String),
    /// The source is no app that is known.
    #[error(transparent)]
    Undetected(#[from] Undetected),
    /// The platform failed.
    #[error(transparent)]
    Platform(#[from] ApiError),
}

impl BuildError {
    /// A step that ended badly, and why as far as its end tells.
    pub(super) fn step(what: &str, exit: &Exit) -> Self {
        let why = match (exit.timed_out, exit.signal, exit.exit_code) {
            (true, ..) => {
                format!("it took longer than it may (installing and building: {BUILD_SECONDS_MAX} s)")
            }
            (_, Some(9), _) | (_, _, 137) => {
                "it was killed, most likely because the machine ran out of memory; use a template with more"
                    .to_owned()
            }
            (_, Some(signal), _) => format!("signal {signal} ended it"),
            (_, _, 127) => "a program that it needs is not installed (exit code 127)".to_owned(),
            (.., code) => format!("it ended with exit code {code}"),
        };
        BuildError::Step(format!("{what} failed: {why}; the lines above have its output"))
    }
}

/// One build under way.
pub(super) struct Build<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) of: &'a AppRecord,
    pub(super) log: &'a Log,
    pub(super) deadline: Instant,
}

/// What a build came to.
pub(super) struct Built {
    pub(super) machine: Machine,
    pub(super) plan: Plan,
    pub(super) commit: Option<String>,
    pub(super) start: StartSpec,
}

impl Build<'_> {
    /// The machine of a build: the one that has the archive, or a fresh one.
    pub(super) async fn machine(&self, deployment: &DeploymentRecord) -> Result<Machine, BuildError> {
        if let (Source::Archive, Some(id)) = (&deployment.spec.source, &deployment.spec.build_machine) {
            let gone =
                |_| BuildError::Step("the machine with the uploaded source is gone; deploy again".to_owned());
            let machine = Machine::open(self.app, self.of, id).await.map_err(gone)?;
            end_earlier(&machine).await?;
            return Ok(machine);
        }
        let cache = self.of.spec.cache.as_ref().filter(|_| !deployment.spec.clear_cache);
        build_machine(self.app, self.of, cache, Some(self.log)).await.map_err(BuildError::from)
    }

    /// All steps up to a machine that could start.
    pub(super) async fn run(
        &self,
        machine: Machine,
        deployment: &DeploymentRecord,
    ) -> Result<Built, BuildError> {
        let from_git = deployment.spec.source == Source::Git;
        let commit = source::bring(self.app, &machine, self.of, deployment, from_git, self.log).await?;
        let directory = self.directory();
        let plan = self.plan(&machine, &directory).await?;
        self.install(&machine, &plan, &directory).await?;
        if let Some(command) = &plan.build {
            self.log.say(format!("building: {command}")).await;
            self.command("building", &machine, command, &plan, &directory).await?;
        }
        let start = self.start(&machine, &plan, &directory).await?;
        Ok(Built { machine, plan, commit, start })
    }

    fn directory(&self) -> String {
        match self.of.spec.root_directory.as_deref().map(|root| root.trim_matches('/')) {
            None | Some("" | ".") => SOURCE_DIR.to_owned(),
            Some(root) => format!("{SOURCE_DIR}/{root}"),
        }
    }

    async fn plan(&self, machine: &Machine, directory: &str) -> Result<Plan, BuildError> {
        let there = machine.exec(&shell(r#"test -d "$DIR""#, &[("DIR", directory)])).await?;
        if there.exit_code != 0 {
            let root = self.of.spec.root_directory.clone().unwrap_or_default();
            return Err(BuildError::Step(format!(
                "the source has no directory `{root}`; change root_directory"
            )));
        }
        let spec = &self.of.spec;
        let wishes = Wishes {
            framework: spec.framework.clone(),
            install: spec.install_command.clone(),
            build: spec.build_command.clone(),
            start: spec.start_command.clone(),
        };
        let plan = detect(&source::view(machine, directory).await?, &wishes)?;
        for reason in &plan.reasons {
            self.log.say(reason).await;
        }
        Ok(plan)
    }

    /// Installs dependencies unless they are there.
    async fn install(&self, machine: &Machine, plan: &Plan, directory: &str) -> Result<(), BuildError> {
        let Some(command) = &plan.install else { return Ok(()) };
        let command = with_node(command, plan.node_major);
        let mut ask = shell("", &[("DIR", directory), ("INSTALL", &command), ("INSTALLED", INSTALLED)]);
        ask.cmd = None;
        let words = ["sh", "-c", KEY, "sh"].into_iter().map(str::to_owned);
        ask.argv = Some(words.chain(plan.locks.iter().cloned()).collect());
        let keys = machine.exec(&ask).await?.stdout;
        let mut keys = keys.lines();
        let (wanted, has) = (keys.next().unwrap_or_default(), keys.next());
        if has == Some(wanted) {
            self.log
                .say(format!("unchanged {}: dependencies restored, not reinstalled", plan.locks.join(", ")))
                .await;
            return Ok(());
        }
        self.log.say(format!("installing: {command}")).await;
        self.command("installing dependencies", machine, &command, plan, directory).await?;
        let note =
            shell(r#"printf '%s\n' "$KEY" > "$INSTALLED""#, &[("KEY", wanted), ("INSTALLED", INSTALLED)]);
        machine.exec(&note).await?;
        let installed = machine.snapshot("installed dependencies").await?.id;
        // Noted before the build, which may fail: the next attempt begins from here all the same.
        change(self.app, &self.of.id, |app| app.spec.cache = Some(installed.clone())).await?;
        Ok(())
    }

    async fn command(
        &self,
        what: &str,
        machine: &Machine,
        command: &str,
        plan: &Plan,
        directory: &str,
    ) -> Result<(), BuildError> {
        let left = self.deadline.saturating_duration_since(Instant::now()).as_secs().max(1);
        let mut env = self.of.spec.env_values();
        env.extend(databases::urls(self.app, self.of, Stage::Build).await?);
        env.extend(build_env(plan));
        env.insert("PORT".to_owned(), self.of.spec.port.to_string());
        let exit = machine.run(&step(command.to_owned(), env, directory, left), self.log).await?;
        if exit.exit_code == 0 && !exit.timed_out { Ok(()) } else { Err(BuildError::step(what, &exit)) }
    }

    /// How the version is started; static ones get a server.
    async fn start(&self, machine: &Machine, plan: &Plan, directory: &str) -> Result<StartSpec, BuildError> {
        let mut env = build_env(plan);
        let command = match &plan.serve {
            Serve::Command(command) => command.clone(),
            Serve::Files { directory: files, single_page } => {
                let root =
                    if files.is_empty() { directory.to_owned() } else { format!("{directory}/{files}") };
                let there = machine.exec(&shell(r#"test -d "$DIR""#, &[("DIR", &root)])).await?;
                if there.exit_code != 0 {
                    return Err(BuildError::Step(format!(
                        "the build made no directory `{files}`; if its output is elsewhere, say so where the build reads it, or set start_command"
                    )));
                }
                machine.write(STATIC_SERVER_PATH, STATIC_SERVER.into()).await?;
                env.insert("STATIC_ROOT".to_owned(), root);
                env.insert("STATIC_SINGLE_PAGE".to_owned(), u8::from(*single_page).to_string());
                self.log
                    .say(format!("serving the files in `{}`", if files.is_empty() { "." } else { files }))
                    .await;
                format!("exec python3 -I -S {STATIC_SERVER_PATH}")
            }
        };
        Ok(StartSpec { command, directory: directory.to_owned(), port: self.of.spec.port, env })
    }
}

/// A machine to build in: from the cache if that is still there.
pub(super) async fn build_machine(
    app: &Arc<App>,
    of: &AppRecord,
    cache: Option<&pandastack_types::SnapshotId>,
    log: Option<&Log>,
) -> Result<Machine, ApiError> {
    if let Some(cache) = cache {
        match Machine::create(app, of, Some(cache), Purpose::Build).await {
            Ok(machine) => return Ok(machine),
            Err(error) => {
                tracing::warn!(app = %of.id, %error, "a build begins without what earlier ones installed");
                if let Some(log) = log {
                    log.say(
                        "what earlier builds installed is not there any more; everything is installed anew",
                    )
                    .await;
                }
            }
        }
    }
    Machine::create(app, of, None, Purpose::Build).await
}

/// A build that was begun before a restart of the server may still run; two at once would disturb each other.
async fn end_earlier(machine: &Machine) -> Result<(), BuildError> {
    for process in machine.processes().await? {
        if process.tag.as_deref() == Some(BUILD_TAG) && process.exit_code.is_none() {
            machine.kill(process.id).await?;
        }
    }
    Ok(())
}

fn build_env(plan: &Plan) -> BTreeMap<String, String> {
    let mut env = plan.env.clone();
    env.insert("CI".to_owned(), "1".to_owned());
    env.insert("PATH".to_owned(), format!("{VENV}/bin:{PATH}"));
    env
}

/// The Node that is asked for, unless the template has it.
fn with_node(install: &str, major: Option<u32>) -> String {
    match major {
        None => install.to_owned(),
        Some(major) => format!(
            "{{ [ \"$(node -p 'process.versions.node.split(`.`)[0]')\" = {major} ] || mise use --global node@{major}; }} && {install}"
        ),
    }
}
