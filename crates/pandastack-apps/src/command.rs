//! Commands in the form that machines accept.

use std::collections::BTreeMap;

pub(crate) use pandastack_sandboxes::command::shell;
use pandastack_types::api::{ExecRequest, StartProcess};

use crate::machine::BUILD_TAG;

/// A command of a build, followed to its end.
pub(crate) fn step(script: String, env: BTreeMap<String, String>, cwd: &str, seconds: u64) -> StartProcess {
    StartProcess {
        exec: ExecRequest {
            cmd: Some(script),
            cwd: Some(cwd.to_owned()),
            env: Some(env),
            timeout_seconds: Some(seconds),
            ..ExecRequest::default()
        },
        tag: Some(BUILD_TAG.to_owned()),
        ..StartProcess::default()
    }
}
