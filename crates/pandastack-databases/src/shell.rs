//! Shell commands in the machine of a database.

use std::time::Duration;

use pandastack_sandboxes::command::shell;
use pandastack_sandboxes::machine::Machine;
use pandastack_types::Result;
use pandastack_types::api::{ExecRequest, ExecResult};

/// Time for the host to answer, beyond the command's own.
const GRACE: Duration = Duration::from_secs(30);

/// Runs a command to its end, for at most `seconds`. The caller checks the exit status.
pub(crate) async fn run(
    machine: &Machine,
    command: &str,
    env: &[(&str, &str)],
    seconds: u64,
) -> Result<ExecResult> {
    let request =
        ExecRequest { cwd: Some("/".to_owned()), timeout_seconds: Some(seconds), ..shell(command, env) };
    machine.exec_within(&request, Duration::from_secs(seconds) + GRACE).await
}
