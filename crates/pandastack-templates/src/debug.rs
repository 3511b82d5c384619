//! The machine of a failed step, kept for the user to look into.

use pandastack_types::api::{CreateSnapshot, Metadata};
use pandastack_types::chain;
use pandastack_types::limits::TEMPLATE_DEBUG_SECONDS;

use crate::build::Build;
use crate::build_error::BuildError;
use crate::stage::Head;

/// Keeps the machine as it is, with the processes of the step, if the build asks for it.
pub(crate) async fn keep(build: &Build<'_>, head: &Head, mut error: BuildError) -> BuildError {
    let Some(machine) = head.machine.as_ref().filter(|_| build.start.debug) else { return error };
    let request = CreateSnapshot {
        metadata: Some(Metadata::from([("build".to_owned(), build.record.id.to_string())])),
        ttl_seconds: Some(TEMPLATE_DEBUG_SECONDS),
        ..CreateSnapshot::default()
    };
    let line = match machine.snapshot_for_user(request).await {
        Ok(snapshot) => {
            let line = format!("the machine of the failed step is kept as snapshot {}", snapshot.id);
            error.failure.snapshot_id = Some(snapshot.id);
            error.failure.config = Some(head.scope.config.clone());
            line
        }
        Err(cause) => format!("cannot keep the machine of the failed step: {}", chain(&cause)),
    };
    build.log.write(&line).await;
    error
}
