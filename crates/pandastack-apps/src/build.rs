//! Building a deployment: source, dependencies, build, artifact.
//!
//! A build begins in a machine made from what the last one installed, if there is such a snapshot.
//! A key decides whether installing again would change anything: a hash over the app's directory,
//! the files that installing reads and the install command, kept in the machine beside the
//! dependencies. The same key means that everything is installed, except files derived from the
//! source itself, which every build creates.

use std::collections::BTreeMap;
use std::sync::Arc;

use pandastack_detect::{
    MANIFEST, Manifest, Plan, PythonRequirement, Serve, Undetected, UserSettings, VENV, View, detect,
    manifest,
};
use pandastack_fault as fault;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord, Shape, Source, SourceConfig, StartSpec};
use pandastack_store::clock::now;
use pandastack_types::api::EnvStage;
use pandastack_types::{Error, chain};
use tokio::time::Instant;

use crate::build_error::BuildError;
use crate::change::change;
use crate::command::{shell, step};
use crate::databases;
use crate::log::Log;
use crate::machine::SOURCE_DIR;
use crate::machine::{self, Machine, Purpose};
use crate::shortage::Headroom;
use crate::source;
use crate::source_config::{self, AppLocation, LocationError};
use crate::state::Apps;

/// File with the key of the installed dependencies.
const INSTALLED: &str = "/srv/installed";
/// Serves the files of static apps.
const STATIC_SERVER: &str = include_str!("static_server.py");
const STATIC_SERVER_PATH: &str = "/srv/static_server.py";
/// Programs of the app come before those of the template.
const PATH: &str =
    "/root/.local/share/mise/shims:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prints a key over a directory, a command and files there. Packages lie in the directory, so elsewhere they are not there.
const KEY: &str = r#"cd "$DIR" && { printf '%s\n' "$DIR" "$INSTALL"; for file in "$@"; do sha256sum -- "$file" 2>/dev/null; done; } | sha256sum | cut -d' ' -f1; cat "$INSTALLED" 2>/dev/null"#;

/// Prints the version of the Python that an app runs with.
const PYTHON_VERSION: &str = r#"python=/usr/bin/python3; [ ! -x "$VENV/bin/python" ] || python="$VENV/bin/python"
"$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'"#;

/// Prints the version of the Node that an app runs with.
const NODE_VERSION: &str = "node -p process.versions.node";

/// One build in progress.
pub(crate) struct Build<'a> {
    pub(crate) apps: &'a Arc<Apps>,
    pub(crate) app: &'a AppRecord,
    pub(crate) log: &'a Log,
    pub(crate) deadline: Instant,
}

/// The result of a build.
pub(crate) struct Built {
    pub(crate) machine: Machine,
    pub(crate) plan: Plan,
    pub(crate) commit: Option<String>,
    pub(crate) start: StartSpec,
}

/// The detected properties of a source.
struct DetectedSource {
    /// Directory of the app in the machine.
    directory: String,
    plan: Plan,
    config: SourceConfig,
}

impl Build<'_> {
    /// The machine of a build: the one that has the archive, or a fresh one.
    pub(crate) async fn machine(&self, deployment: &DeploymentRecord) -> Result<Machine, BuildError> {
        if let (Source::Archive, Some(id)) = (&deployment.spec.source, &deployment.spec.build_machine) {
            let gone = |_| BuildError::Step("the machine with the upload was lost; deploy again".to_owned());
            let machine = machine::open(self.apps.machines.as_ref(), self.app, id).await.map_err(gone)?;
            // A build that was begun before a restart of the server may still run; two at once would disturb each other.
            machine::end_builds(&machine).await?;
            return Ok(machine);
        }
        let cache = self.app.spec.usable_cache().filter(|_| !deployment.spec.clear_cache);
        build_machine(self.apps, self.app, cache, Some(self.log)).await.map_err(BuildError::from)
    }

    /// All steps up to a machine that could start.
    pub(crate) async fn run(
        &self,
        machine: Machine,
        deployment: &DeploymentRecord,
    ) -> Result<Built, BuildError> {
        let from_git = deployment.spec.source == Source::Git;
        let commit = source::fetch(self.apps, &machine, self.app, deployment, from_git, self.log).await?;
        fault::point("control.deploy.fetched").await;
        let found = self.find(&machine).await?;
        let shape = deployment.spec.build_shape.clone().unwrap_or_else(|| self.app.spec.shape());
        let installed = self.install(&machine, &found, &shape).await;
        // Said also where installing failed: it may be why.
        let compared = self.compare_versions(&machine, &found.plan).await;
        installed.and(compared)?;
        if let Some(command) = &found.plan.build {
            self.log.write(format!("building: {command}")).await;
            self.command("building", &machine, command, &found).await?;
        }
        let start = self.start(&machine, &found).await?;
        Ok(Built { machine, plan: found.plan, commit, start })
    }

    /// Inspects the source.
    async fn find(&self, machine: &Machine) -> Result<DetectedSource, BuildError> {
        let (directory, view) = self.locate(machine).await?;
        let spec = &self.app.spec;
        let config = source_config::read_config(manifest(&view)?, spec)
            .map_err(|error| BuildError::Step(format!("{MANIFEST} is invalid: {}", error.message)))?;
        let user_settings = UserSettings {
            framework: spec.framework.clone(),
            install: spec.install_command.clone(),
            build: spec.build_command.clone(),
            start: spec.start_command.clone(),
        };
        let plan = detect(&view, &user_settings)?;
        for reason in &plan.reasons {
            self.log.write(reason).await;
        }
        Ok(DetectedSource { directory, plan, config })
    }

    /// The directory of the app in the machine, and its contents.
    async fn locate(&self, machine: &Machine) -> Result<(String, View), BuildError> {
        let text = source::root_text(machine, MANIFEST).await?;
        let unreadable = |why: pandastack_detect::ManifestError| Undetected::Unreadable {
            file: MANIFEST,
            why: why.to_string(),
        };
        let root = text.as_deref().map(|text| Manifest::parse(text).map_err(unreadable));
        let location = AppLocation::of(&self.app.spec, root).map_err(|error| match error {
            LocationError::Unreadable(why) => BuildError::Undetected(why),
            LocationError::Outside(why) => {
                BuildError::Step(format!("{MANIFEST} is invalid: {}", why.message))
            }
        })?;
        let directory = match location.directory.as_str() {
            "" => SOURCE_DIR.to_owned(),
            within => format!("{SOURCE_DIR}/{within}"),
        };
        let there = machine.exec(&shell(r#"test -d "$DIR""#, &[("DIR", &directory)])).await?;
        if there.exit_code != 0 {
            let within = &location.directory;
            return Err(BuildError::Step(format!(
                "the source has no directory `{within}`; change root_directory"
            )));
        }
        let mut view = source::view(machine, &directory).await?;
        if let Some(text) = text.filter(|_| location.is_named_by_root) {
            view.texts.entry(MANIFEST.to_owned()).or_insert(text);
        }
        Ok((directory, view))
    }

    /// Installs dependencies, and the Node that is wanted, unless they are there.
    async fn install(
        &self,
        machine: &Machine,
        found: &DetectedSource,
        shape: &Shape,
    ) -> Result<(), BuildError> {
        let plan = &found.plan;
        let Some(command) = with_node(plan.install.as_deref(), plan.node_major) else { return Ok(()) };
        if plan.install.is_none() && self.has_node(machine, plan).await? {
            return Ok(());
        }
        let mut ask =
            shell("", &[("DIR", &found.directory), ("INSTALL", &command), ("INSTALLED", INSTALLED)]);
        ask.cmd = None;
        let words = ["sh", "-c", KEY, "sh"].into_iter().map(str::to_owned);
        ask.argv = Some(words.chain(plan.locks.iter().cloned()).collect());
        let keys = machine.exec(&ask).await?.stdout;
        let mut keys = keys.lines();
        let (wanted, has) = (keys.next().unwrap_or_default(), keys.next());
        if has == Some(wanted) {
            let unchanged = match plan.locks.as_slice() {
                [] => "install command".to_owned(),
                locks => locks.join(", "),
            };
            self.log.write(format!("unchanged {unchanged}: dependencies restored, not reinstalled")).await;
            return self.refresh(machine, found).await;
        }
        self.log.write(format!("installing: {command}")).await;
        self.command("installing dependencies", machine, &command, found).await?;
        let note =
            shell(r#"printf '%s\n' "$KEY" > "$INSTALLED""#, &[("KEY", wanted), ("INSTALLED", INSTALLED)]);
        machine.exec(&note).await?;
        let installed = machine::snapshot_built(machine, "installed dependencies").await?.id;
        // Noted before the build, which may fail: the next attempt begins from here all the same.
        let note = |app: &mut AppRecord| app.spec.set_cache(installed.clone(), shape.clone());
        change(self.apps, &self.app.id, note).await?;
        Ok(())
    }

    /// Installs again what of the restored packages the source itself decides.
    async fn refresh(&self, machine: &Machine, found: &DetectedSource) -> Result<(), BuildError> {
        let Some(command) = &found.plan.refresh else { return Ok(()) };
        self.log.write(format!("reinstalling the source itself: {command}")).await;
        self.command("installing the source itself", machine, command, found).await
    }

    /// Returns whether programs of the app find the Node version that the plan wants.
    async fn has_node(&self, machine: &Machine, plan: &Plan) -> Result<bool, BuildError> {
        let Some(major) = plan.node_major else { return Ok(true) };
        let mut ask = shell(&is_node(major), &[]);
        ask.env = Some(build_env(plan));
        Ok(machine.exec(&ask).await?.exit_code == 0)
    }

    /// Logs a warning if an app runs with a Node or Python version other than it requires.
    async fn compare_versions(&self, machine: &Machine, plan: &Plan) -> Result<(), BuildError> {
        if let Some(wish) = &plan.node {
            let mut ask = shell(NODE_VERSION, &[]);
            ask.env = Some(build_env(plan));
            let has = machine.exec(&ask).await?.stdout;
            if !wish.suits(&has) {
                let (wanted, file, has) = (wish.shown(), wish.file, has.trim());
                let hint = "name one major version";
                self.log.write(format!("{file} asks for Node {wanted}, but {has} is used; {hint}")).await;
            }
        }
        let Some(wish) = &plan.python else { return Ok(()) };
        let has = machine.exec(&shell(PYTHON_VERSION, &[("VENV", VENV)])).await?.stdout;
        let has = has.trim();
        if !wish.suits(has) {
            let PythonRequirement { wanted, file } = wish;
            self.log
                .write(format!(
                    "{file} asks for Python {wanted}, but this machine has {has}, which is used; to change \
                     it, use another template"
                ))
                .await;
        }
        Ok(())
    }

    async fn command(
        &self,
        what: &str,
        machine: &Machine,
        command: &str,
        found: &DetectedSource,
    ) -> Result<(), BuildError> {
        let left = self.deadline.saturating_duration_since(Instant::now()).as_secs().max(1);
        let mut env = found.config.env_values(EnvStage::Build);
        env.extend(self.app.spec.env_values(EnvStage::Build));
        env.extend(databases::urls(self.apps, self.app, EnvStage::Build).await?);
        env.extend(build_env(&found.plan));
        env.insert("PORT".to_owned(), found.config.applied(self.app).spec.port.to_string());
        let (before, began) = (Headroom::of(machine).await, now());
        let exit = machine.run(&step(command.to_owned(), env, &found.directory, left), self.log).await?;
        if exit.exit_code == 0 && !exit.timed_out {
            return Ok(());
        }
        for line in machine.refused_connections(began).await {
            self.log.write(line).await;
        }
        let after = Headroom::of(machine).await.filter(|_| !exit.timed_out);
        let shortage = before.zip(after).and_then(|(before, after)| after.shortage_since(&before));
        Err(shortage
            .map_or_else(|| BuildError::step(what, &exit), |why| BuildError::step_because(what, &why)))
    }

    /// Start command of the version; a static site gets a server.
    async fn start(&self, machine: &Machine, found: &DetectedSource) -> Result<StartSpec, BuildError> {
        let (plan, directory) = (&found.plan, &found.directory);
        let mut env = build_env(plan);
        let command = match &plan.serve {
            Serve::Command(command) => command.clone(),
            Serve::Files { directory: files, single_page } => {
                let root =
                    if files.is_empty() { directory.to_owned() } else { format!("{directory}/{files}") };
                let there = machine.exec(&shell(r#"test -d "$DIR""#, &[("DIR", &root)])).await?;
                if there.exit_code != 0 {
                    return Err(BuildError::Step(format!(
                        "the build created no directory `{files}`; configure the build to write its output \
                         there, or set start_command"
                    )));
                }
                machine.write(STATIC_SERVER_PATH, STATIC_SERVER.into()).await?;
                env.insert("STATIC_ROOT".to_owned(), root);
                env.insert("STATIC_SINGLE_PAGE".to_owned(), u8::from(*single_page).to_string());
                self.log
                    .write(format!("serving the files in `{}`", if files.is_empty() { "." } else { files }))
                    .await;
                format!("exec python3 -I -S {STATIC_SERVER_PATH}")
            }
        };
        let port = found.config.applied(self.app).spec.port;
        let source = found.config.clone();
        Ok(StartSpec { command, directory: directory.to_owned(), port, env, source })
    }
}

/// A machine to build in: from the cache if that is still there.
pub(crate) async fn build_machine(
    apps: &Arc<Apps>,
    app: &AppRecord,
    cache: Option<&pandastack_types::SnapshotId>,
    log: Option<&Log>,
) -> Result<Machine, Error> {
    if let Some(cache) = cache {
        match machine::create(apps.machines.as_ref(), app, Some(cache), Purpose::Build).await {
            Ok(machine) => return Ok(machine),
            Err(error) => {
                tracing::warn!(
                    app = %app.id, error = %chain(&error),
                    "building without the dependency cache"
                );
                if let Some(log) = log {
                    log.write(
                        "the dependencies of earlier builds are no longer cached; installing from scratch",
                    )
                    .await;
                }
            }
        }
    }
    machine::create(apps.machines.as_ref(), app, None, Purpose::Build).await
}

fn build_env(plan: &Plan) -> BTreeMap<String, String> {
    let mut env = plan.env.clone();
    env.insert("CI".to_owned(), "1".to_owned());
    env.insert("PATH".to_owned(), format!("{VENV}/bin:{PATH}"));
    env
}

/// A command that tells whether Node has this major number.
fn is_node(major: u32) -> String {
    format!("[ \"$(node -p 'process.versions.node.split(`.`)[0]')\" = {major} ]")
}

/// Command that installs the requested Node, unless the template has it, and then the dependencies.
fn with_node(install: Option<&str>, major: Option<u32>) -> Option<String> {
    let node = major.map(|major| format!("{{ {} || mise use --global node@{major}; }}", is_node(major)));
    match (node, install) {
        (Some(node), Some(install)) => Some(format!("{node} && {install}")),
        (node, install) => node.or_else(|| install.map(str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn key(directory: &Path, install: &str) -> String {
        let ran = Command::new("sh")
            .args(["-c", KEY, "sh", "package-lock.json"])
            .env("DIR", directory)
            .env("INSTALL", install)
            .env("INSTALLED", directory.join("none"))
            .output()
            .unwrap();
        let printed = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(printed.lines().count(), 1, "{printed}");
        printed
    }

    #[test]
    fn packages_are_restored_only_where_they_were_installed() {
        let source = tempfile::tempdir().unwrap();
        let [web, site] = ["web", "site"].map(|name| source.path().join(name));
        for directory in [&web, &site] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("package-lock.json"), "{}").unwrap();
        }
        assert_eq!(key(&web, "npm ci"), key(&web, "npm ci"));
        assert_ne!(key(&web, "npm ci"), key(&site, "npm ci"), "the same lock file elsewhere");
        assert_ne!(key(&web, "npm ci"), key(&web, "npm install"));
        let before = key(&web, "npm ci");
        std::fs::write(web.join("package-lock.json"), "{ }").unwrap();
        assert_ne!(key(&web, "npm ci"), before);
    }

    #[test]
    fn the_requested_node_is_installed_without_dependencies_too() {
        assert_eq!(with_node(None, None), None);
        assert_eq!(with_node(Some("npm ci"), None).as_deref(), Some("npm ci"));
        let alone = with_node(None, Some(20)).unwrap();
        assert!(alone.ends_with("|| mise use --global node@20; }"), "{alone}");
        assert_eq!(with_node(Some("npm ci"), Some(20)).unwrap(), format!("{alone} && npm ci"));
    }
}
