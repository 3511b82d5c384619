//! Starts a built version and waits until it listens and is healthy.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pandastack_fault as fault;
use pandastack_sandboxes::machine::LineSink;
use pandastack_sandboxes::output::Exit;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord, DeploymentSpec, StartSpec};
use pandastack_types::api::{EnvStage, ExecRequest, Port, Process, ProcessState, StartProcess};
use pandastack_types::limits::HEALTH_SECONDS_MAX;
use pandastack_types::{Error, SandboxId, SnapshotId, chain};
use tokio::time::Instant;

use crate::build_error::BuildError;
use crate::command::shell;
use crate::databases;
use crate::health;
use crate::log::Log;
use crate::machine::{self, Machine, Purpose};
use crate::state::Apps;

/// Tag of the process that serves.
pub(crate) const SERVE_TAG: &str = "pandastack-app";
/// Answers in a row that make a version healthy.
const HEALTHY_ANSWERS: u32 = 2;
/// Between two answers of a healthy version.
const HEALTHY_EVERY: Duration = Duration::from_secs(1);
/// Time for which the app may listen only on a wrong address before the log reports it.
const WRONG_PORT_AFTER: Duration = Duration::from_secs(5);
/// Time after which a wrong address fails the deployment: a server that listens somewhere has
/// started.
const WRONG_PORT_MAX: Duration = Duration::from_secs(30);
/// Lines of the program shown when it ended.
const LAST_LINES: usize = 40;
/// There once its version serves: from then on a program that ends is started again.
const LIVE_MARK: &str = "/run/pandastack-live";

/// Runs the start command. Before its version serves, its end is the end; afterwards it is started again, after a pause
/// that grows up to half a minute.
const SUPERVISE: &str = r#"pause=1
while :; do
  began=$(date +%s)
  sh -c "$START_COMMAND"
  code=$?
  [ -e "$LIVE_MARK" ] || exit "$code"
  [ $(( $(date +%s) - began )) -lt 60 ] || pause=1
  echo "==> the start command ended with exit code $code; starting it again in $pause s" >&2
  sleep "$pause"
  pause=$(( pause * 2 )); [ "$pause" -le 30 ] || pause=30
done"#;

/// Why a version does not serve.
type Result<T> = std::result::Result<T, BuildError>;

/// One version being started.
pub(crate) struct Serving<'a> {
    pub(crate) apps: &'a Arc<Apps>,
    pub(crate) app: &'a AppRecord,
    pub(crate) log: &'a Log,
}

impl Serving<'_> {
    /// The machines that serve a deployment: kept ones, and new ones from the build.
    pub(crate) async fn machines(&self, deployment: &mut DeploymentRecord) -> Result<Vec<Machine>> {
        let count = self.app.spec.max_instances as usize;
        let mut ready = self.wake_kept(&deployment.spec, count).await;
        if ready.len() == count {
            return Ok(ready);
        }
        let (Some(artifact), Some(start)) = (&deployment.spec.artifact, &mut deployment.spec.start) else {
            return Err(BuildError::Step(
                "the build of this deployment is no longer kept; deploy again".to_owned(),
            ));
        };
        let env = match ready.first() {
            // Machines of one version are alike, even if the app's settings have changed since it
            // started.
            Some(kept) => kept.record.spec.env.clone(),
            None => {
                start.port = self.app.spec.port;
                self.env(start).await?
            }
        };
        let start = &*start;
        // One goes first: what is wrong with a version is found and said once.
        if ready.is_empty() {
            ready.push(self.make(artifact, start, &env, 0).await?);
        }
        if ready.len() < count {
            self.log.write(format!("instances: {} of {count}; the others are started", ready.len())).await;
        }
        let more = (ready.len()..count).map(|place| self.make(artifact, start, &env, place));
        for made in join_all(more).await {
            ready.push(made?);
        }
        Ok(ready)
    }

    /// Machines of a version that still answer, in their order; logs the problems of the others.
    async fn wake_kept(&self, spec: &DeploymentSpec, count: usize) -> Vec<Machine> {
        let Some(start) = &spec.start else { return Vec::new() };
        let kept = spec.machines().take(count).map(|id| self.wake(id, start.port));
        let mut awake = Vec::<Machine>::new();
        for woken in join_all(kept).await {
            let settled = match woken {
                Ok(machine) => {
                    let idle_seconds = self.app.spec.idle_seconds(awake.len());
                    machine.set_idle(idle_seconds).await.map(|()| machine).map_err(BuildError::from)
                }
                failed => failed,
            };
            match settled {
                Ok(machine) => awake.push(machine),
                Err(error) => {
                    self.log
                        .write(format!("a kept machine cannot be used ({error}); starting a new one"))
                        .await;
                }
            }
        }
        awake
    }

    /// Variables of a new machine.
    async fn env(&self, start: &StartSpec) -> Result<BTreeMap<String, String>> {
        let mut env = start.env.clone();
        env.extend(start.source.env_values(EnvStage::Run));
        env.extend(self.app.spec.env_values(EnvStage::Run));
        for (variable, url) in databases::urls(self.apps, self.app, EnvStage::Run).await? {
            self.log.write(format!("{variable} points to an attached database")).await;
            env.insert(variable, url);
        }
        env.insert("PORT".to_owned(), start.port.to_string());
        Ok(env)
    }

    /// A new machine, started and healthy.
    async fn make(
        &self,
        artifact: &SnapshotId,
        start: &StartSpec,
        env: &BTreeMap<String, String>,
        place: usize,
    ) -> Result<Machine> {
        let purpose = Purpose::Serve { env: env.clone(), idle_seconds: self.app.spec.idle_seconds(place) };
        let machine = machine::create(self.apps.machines.as_ref(), self.app, Some(artifact), purpose).await?;
        fault::point("control.deploy.booted").await;
        self.start(&machine, start).await?;
        Ok(machine)
    }

    /// Uses a machine that served before.
    async fn wake(&self, id: &SandboxId, port: u16) -> Result<Machine> {
        let machine = machine::open(self.apps.machines.as_ref(), self.app, id).await?;
        let began = Instant::now();
        let status = self.check_health(id, port).await.map_err(BuildError::Step)?;
        if status >= 500 {
            return Err(BuildError::Step(format!("the health check responded with status {status}")));
        }
        self.log
            .write(format!("the kept version responds again after {} ms", began.elapsed().as_millis()))
            .await;
        Ok(machine)
    }

    async fn start(&self, machine: &Machine, start: &StartSpec) -> Result<()> {
        self.log.write(format!("starting: {}", start.command)).await;
        let env = [("START_COMMAND", start.command.as_str()), ("LIVE_MARK", LIVE_MARK)];
        let exec = ExecRequest { cwd: Some(start.directory.clone()), ..shell(SUPERVISE, &env) };
        let request = StartProcess { exec, tag: Some(SERVE_TAG.to_owned()), ..StartProcess::default() };
        let process = machine.start(&request).await?;
        let deadline = Instant::now() + Duration::from_secs(HEALTH_SECONDS_MAX);
        self.wait_healthy(machine, &process, start.port, deadline).await?;
        machine.exec(&shell(r#": > "$LIVE_MARK""#, &[("LIVE_MARK", LIVE_MARK)])).await?;
        Ok(())
    }

    /// The status that the health path answers with.
    async fn check_health(&self, id: &SandboxId, port: u16) -> std::result::Result<u16, String> {
        let (spec, name) = (&self.app.spec, format!("{}.localhost", self.app.name));
        health::check(self.apps, id, port, &spec.health_path, &name).await.map(|status| status.as_u16())
    }

    async fn wait_healthy(
        &self,
        machine: &Machine,
        process: &Process,
        port: u16,
        deadline: Instant,
    ) -> Result<()> {
        let began = Instant::now();
        let (mut told, mut wrong_since) = (None, None);
        let (mut good, mut last) = (0, "nothing listens on the port yet".to_owned());
        let mut watch = machine.watch(deadline);
        while let Some(ports) = watch.next().await? {
            self.check_runs(machine, process).await?;
            match listening(&ports, port) {
                Listening::Right => match self.check_health(machine.id(), port).await {
                    Ok(status) if status < 500 => {
                        good += 1;
                        if good >= HEALTHY_ANSWERS {
                            let after = began.elapsed().as_secs_f64();
                            self.log
                                .write(format!(
                                    "healthy: {} responded with {status} after {after:.1} s",
                                    self.app.spec.health_path
                                ))
                                .await;
                            return Ok(());
                        }
                        tokio::time::sleep(HEALTHY_EVERY).await;
                        continue;
                    }
                    Ok(status) => last = format!("{} responded with {status}", self.app.spec.health_path),
                    Err(error) => last = error,
                },
                Listening::Wrong(hint) => {
                    let since = wrong_since.get_or_insert_with(Instant::now).elapsed();
                    if since >= WRONG_PORT_AFTER && told.as_ref() != Some(&hint) {
                        self.log.write(&hint).await;
                        told = Some(hint.clone());
                    }
                    if since >= WRONG_PORT_MAX {
                        return Err(BuildError::Step(hint));
                    }
                    last = hint;
                }
                Listening::No => {}
            }
            good = 0;
        }
        self.show_end(machine, process).await;
        Err(BuildError::Step(format!("the app was not healthy within {HEALTH_SECONDS_MAX} s: {last}")))
    }

    async fn check_runs(&self, machine: &Machine, process: &Process) -> Result<()> {
        let gone = || BuildError::Platform(Error::not_found("process", "of the start command"));
        let now = machine.processes().await?.into_iter().find(|one| one.id == process.id).ok_or_else(gone)?;
        if now.state == ProcessState::Running {
            return Ok(());
        }
        self.show_end(machine, process).await;
        let lost = || BuildError::Platform(Error::not_found("exit code", "of the start command"));
        let exit = Exit {
            exit_code: now.exit_code.ok_or_else(lost)?,
            signal: now.signal,
            timed_out: now.timed_out,
            ..Exit::default()
        };
        if exit.exit_code == 0 {
            let why = "the start command exited; it must keep running in the foreground";
            return Err(BuildError::Step(why.to_owned()));
        }
        Err(BuildError::step("starting", &exit))
    }

    /// Copies the program's last lines to the log.
    async fn show_end(&self, machine: &Machine, process: &Process) {
        if let Ok(lines) = machine.last_lines(process.id, LAST_LINES, |_| true).await {
            for line in lines {
                self.log.line(&line).await;
            }
        }
    }
}

/// Sets the idle timeout of the serving machines, and wakes those that never sleep. A machine that cannot
/// be reached gets the setting with the next deployment.
pub(crate) async fn follow_idle(apps: &Arc<Apps>, app: &AppRecord) {
    let Some(active) = &app.active else { return };
    let Ok(live) = apps.store.deployment(&app.id, active).await else { return };
    let told = live.spec.machines().enumerate().map(|(place, id)| async move {
        let machine = machine::open(apps.machines.as_ref(), app, id).await?;
        machine.set_idle(app.spec.idle_seconds(place)).await?;
        if app.spec.never_sleeps(place) { machine.wake().await } else { Ok(()) }
    });
    for told in join_all(told).await {
        let told: pandastack_types::Result<()> = told;
        if let Err(error) = told {
            tracing::info!(
                app = %app.id, error = %chain(&error),
                "cannot change the idle timeout now; it applies from the next deployment on"
            );
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Listening {
    Right,
    Wrong(String),
    No,
}

/// Checks that the app listens on the right address and port, and otherwise returns a hint.
fn listening(ports: &[Port], wanted: u16) -> Listening {
    let inside = |port: &Port| port.address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if ports.iter().any(|port| port.port == wanted && !inside(port)) {
        return Listening::Right;
    }
    if let Some(port) = ports.iter().find(|port| port.port == wanted) {
        return Listening::Wrong(format!(
            "the app listens on {}:{wanted}, which is only reachable inside its machine; listen on \
             0.0.0.0:{wanted}",
            port.address
        ));
    }
    match ports.first() {
        Some(port) => Listening::Wrong(format!(
            "the app listens on {}:{}, but requests go to port {wanted}; listen on 0.0.0.0 and $PORT, or set \
             the app's port to {}",
            port.address, port.port, port.port
        )),
        None => Listening::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: &str, port: u16) -> Port {
        Port { port, address: address.to_owned(), listening: true, proxy_url: None }
    }

    #[test]
    fn a_wrong_listen_address_is_reported_with_a_fix() {
        assert_eq!(listening(&[], 8080), Listening::No);
        assert_eq!(listening(&[port("127.0.0.1", 9), port("0.0.0.0", 8080)], 8080), Listening::Right);
        assert_eq!(listening(&[port("::", 8080)], 8080), Listening::Right);
        let Listening::Wrong(hint) = listening(&[port("127.0.0.1", 8080)], 8080) else { panic!() };
        assert!(hint.contains("listen on 0.0.0.0:8080"), "{hint}");
        let Listening::Wrong(hint) = listening(&[port("0.0.0.0", 3000)], 8080) else { panic!() };
        assert!(hint.contains("set the app's port to 3000"), "{hint}");
    }
}
