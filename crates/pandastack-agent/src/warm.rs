//! Commands that warm a template's machine before sandboxes are created from it.

use std::time::Duration;

use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::ProcessSpec;
use pandastack_types::limits;

use crate::error::Result;

/// Tags processes that ran in a template's machine before it became a sandbox; callers do not see
/// them.
pub(crate) const WARM_TAG: &str = "pandastack.warm";
/// Longest time for one warm-up command.
const WARM_COMMAND_MAX: Duration = Duration::from_secs(120);

/// Runs typical first commands, so that their pages and translated code are warm. A failed command
/// is reported, not fatal: the template is as usable as before.
pub(crate) async fn warm(guest: &GuestClient, commands: &[String]) -> Result<()> {
    for command in commands {
        let mut spec = ProcessSpec::shell(command.clone());
        spec.tag = Some(WARM_TAG.to_owned());
        spec.timeout_ms = Some(WARM_COMMAND_MAX.as_millis() as u64);
        let outcome = guest.exec(spec).await?.collect(limits::EXEC_OUTPUT_BYTES_MAX).await?;
        if outcome.exit.shell_code() != 0 {
            let stderr = String::from_utf8_lossy(&outcome.stderr).into_owned();
            tracing::warn!(command, code = outcome.exit.shell_code(), stderr, "a warm-up command failed");
        }
    }
    Ok(())
}
