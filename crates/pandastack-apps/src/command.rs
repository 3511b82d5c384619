//! Commands in the form that machines accept.

use std::collections::BTreeMap;

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

/// A short command, with variables.
pub(crate) fn shell(script: &str, env: &[(&str, &str)]) -> ExecRequest {
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ExecRequest { cmd: Some(script.to_owned()), env: Some(env), ..ExecRequest::default() }
}
