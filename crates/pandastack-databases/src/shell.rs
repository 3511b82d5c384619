//! Shell commands in the machine of a database.

use std::time::Duration;

use pandastack_sandboxes::machine::Machine;
use pandastack_types::Result;
use pandastack_types::api::{ExecRequest, ExecResult};

/// How much longer than the command its host may take to answer.
const GRACE: Duration = Duration::from_secs(30);

/// Runs a command to its end, which comes within `seconds`. How it ended is for the caller to judge.
pub(crate) async fn run(
    machine: &Machine,
    command: &str,
    env: &[(&str, &str)],
    seconds: u64,
) -> Result<ExecResult> {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let request = ExecRequest {
        cmd: Some(command.to_owned()),
        cwd: Some("/".to_owned()),
        env: Some(env),
        timeout_seconds: Some(seconds),
        ..ExecRequest::default()
    };
    machine.exec_within(&request, Duration::from_secs(seconds) + GRACE).await
}
