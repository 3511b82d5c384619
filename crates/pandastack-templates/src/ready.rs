//! Start commands and their ready checks.

use std::time::Duration;

use pandastack_dockerfile::Command;
use pandastack_sandboxes::machine::Machine;
use pandastack_types::api::{ExecRequest, ReadyCheck};
use pandastack_types::limits::TEMPLATE_READY_SECONDS_MAX;
use tokio::time::Instant;

use crate::build_error::BuildError;
use crate::scope::Scope;
use crate::step;

/// Tag of a start command's process. It differs from the steps' tag, so the process keeps running
/// in the snapshot.
const START_TAG: &str = "pandastack-start";
/// Interval between checks: no event reports that a program is ready.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// Timeout of one check.
const CHECK_SECONDS: u64 = 30;
/// Lines shown of a command that ended.
const LINES_SHOWN: usize = 10;
/// Fetches a URL with any tool that the machine has.
const FETCH: &str = r#"if command -v curl >/dev/null; then curl -fsS -o /dev/null "$URL"
elif command -v wget >/dev/null; then wget -q -O /dev/null "$URL"
else python3 -c 'import os, urllib.request; urllib.request.urlopen(os.environ["URL"])'; fi"#;

/// Succeeds if there is a process of that name other than this one.
const FIND_PROCESS: &str = r#"for file in /proc/[0-9]*/comm; do
  read -r name 2>/dev/null < "$file" && [ "$name" = "$NAME" ] && [ "$file" != "/proc/$$/comm" ] && exit 0
done; exit 1"#;
/// Bytes that Linux keeps of a process's name.
const PROCESS_NAME_BYTES: usize = 15;

/// Starts a command, if there is one, and waits until it is ready.
pub(crate) async fn start(
    machine: &Machine,
    scope: &Scope,
    command: Option<&str>,
    ready: Option<&ReadyCheck>,
    deadline: Instant,
) -> Result<(), BuildError> {
    let mut process = None;
    if let Some(command) = command {
        let argv = scope.argv(&Command::Shell(command.to_owned()));
        let mut request = step::command(scope, argv, 1);
        (request.exec.timeout_seconds, request.tag) = (None, Some(START_TAG.to_owned()));
        process = Some(machine.start(&request).await?.id);
    }
    let deadline = deadline.min(Instant::now() + Duration::from_secs(TEMPLATE_READY_SECONDS_MAX));
    let Some(ready) = ready else { return Ok(()) };
    loop {
        if is_ready(machine, scope, ready, deadline).await? {
            return Ok(());
        }
        let now = match process {
            Some(id) => machine.processes().await?.into_iter().find(|one| one.id == id),
            None => None,
        };
        let ended = now.and_then(|one| one.exit_code);
        if ended.is_some() || Instant::now() >= deadline {
            let lines = match process {
                Some(id) => machine.last_lines(id, LINES_SHOWN, |_| true).await.unwrap_or_default(),
                None => Vec::new(),
            };
            let mut error = BuildError::new(match ended {
                Some(code) => format!("the start command exited with {code} before it was ready"),
                None if process.is_none() => "the machine was not ready in time; check `ready`".to_owned(),
                None => "the start command was not ready in time; check `ready`".to_owned(),
            });
            (error.failure.exit_code, error.failure.output) = (ended, lines);
            return Err(error);
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

async fn is_ready(
    machine: &Machine,
    scope: &Scope,
    ready: &ReadyCheck,
    deadline: Instant,
) -> Result<bool, BuildError> {
    match ready {
        ReadyCheck::Port(port) => Ok(machine.ports().await?.iter().any(|one| one.port == *port)),
        ReadyCheck::File(path) => Ok(machine.stat(&scope.absolute(path)).await?.is_some()),
        ReadyCheck::Process(name) => succeeds(machine, &find_process(name)).await,
        ReadyCheck::Command(command) => {
            let argv = scope.argv(&Command::Shell(command.clone()));
            // The check command may wait by itself.
            let seconds = deadline.saturating_duration_since(Instant::now()).as_secs().max(CHECK_SECONDS);
            succeeds(machine, &step::command(scope, argv, seconds).exec).await
        }
        ReadyCheck::Url(url) => {
            let env = Some([("URL".to_owned(), url.clone())].into());
            let (cmd, timeout_seconds) = (Some(FETCH.to_owned()), Some(CHECK_SECONDS));
            succeeds(machine, &ExecRequest { cmd, env, timeout_seconds, ..ExecRequest::default() }).await
        }
    }
}

/// Finds a process by its name.
fn find_process(name: &str) -> ExecRequest {
    let end = (0..=PROCESS_NAME_BYTES).rev().find(|end| name.is_char_boundary(*end)).unwrap_or_default();
    let name = name.get(..end).unwrap_or(name);
    ExecRequest {
        argv: Some(["/bin/sh", "-c", FIND_PROCESS].map(str::to_owned).to_vec()),
        env: Some([("NAME".to_owned(), name.to_owned())].into()),
        timeout_seconds: Some(CHECK_SECONDS),
        ..ExecRequest::default()
    }
}

async fn succeeds(machine: &Machine, request: &ExecRequest) -> Result<bool, BuildError> {
    let wait = Duration::from_secs(request.timeout_seconds.unwrap_or_default() + CHECK_SECONDS);
    match machine.exec_within(request, wait).await {
        Ok(done) => Ok(done.exit_code == 0),
        // A check that hangs counts as failed.
        Err(error) if error.code == pandastack_types::ErrorCode::ExecTimeout => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_are_found_by_their_names() {
        let directory = std::env::temp_dir().join(format!("ready-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join("a-rather-long-name");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let finds = |name: &str| {
            let request = find_process(name);
            let argv = request.argv.unwrap();
            Command::new(&argv[0]).args(&argv[1..]).envs(request.env.unwrap()).status().unwrap().success()
        };
        assert!(!finds("a-rather-long-name"), "it was not started");
        let mut sleeper = Command::new(&program).arg("30").spawn().unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while !finds("a-rather-long-name") && std::time::Instant::now() < deadline {}
        let found = (finds("a-rather-long-name"), finds("a-rather"));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, (true, false), "the name, and not a part of it");
        assert_eq!(find_process("ää").env.unwrap()["NAME"], "ää");
    }
}
