//! Commands as machines take them.

use pandastack_types::api::ExecRequest;

/// A shell script with variables.
pub fn shell(script: &str, env: &[(&str, &str)]) -> ExecRequest {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ExecRequest { cmd: Some(script.to_owned()), env: Some(env), ..ExecRequest::default() }
}
