//! Why a build failed, for the user.

use pandastack_detect::Undetected;
use pandastack_sandboxes::output::Exit;
use pandastack_types::Error;
use pandastack_types::limits::BUILD_SECONDS_MAX;

/// Reason why a build produced no artifact.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// A step ended badly.
    #[error("{0}")]
    Step(String),
    /// No known kind of app was detected in the source.
    #[error(transparent)]
    Undetected(#[from] Undetected),
    /// The platform failed.
    #[error(transparent)]
    Platform(#[from] Error),
}

impl BuildError {
    /// A step that ended badly, and why as far as its end tells.
    pub(crate) fn step(what: &str, exit: &Exit) -> Self {
        let why = match (exit.timed_out, exit.signal, exit.exit_code) {
            (true, ..) => {
                format!("it exceeded {BUILD_SECONDS_MAX} s, the limit for install and build")
            }
            (_, Some(9), _) | (_, _, 137) => {
                "it was killed, most likely because the machine ran out of memory; raise `memory_mb` (`pandastack app deploy --memory MIB`)"
                    .to_owned()
            }
            (_, Some(signal), _) => format!("it was killed by signal {signal}"),
            (_, _, 127) => "a program it needs is not installed (exit code 127)".to_owned(),
            (.., code) => format!("it failed with exit code {code}"),
        };
        Self::step_because(what, &why)
    }

    /// A failed step, with the known reason.
    pub(crate) fn step_because(what: &str, why: &str) -> Self {
        BuildError::Step(format!("{what} failed: {why}; see the log for its output"))
    }
}
