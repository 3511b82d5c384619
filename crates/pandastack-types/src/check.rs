//! Checks of commands, in control and in agents: control runs them before it looks up the host, an
//! agent also for commands that arrive on a socket.
//!
//! Each refusal is a sentence that names the field.

use std::collections::BTreeMap;

use crate::api::ExecRequest;
use crate::limits::{ENV_PAIRS_MAX, EXEC_COMMAND_BYTES_MAX, EXEC_TIMEOUT_SECONDS_MAX, PATH_BYTES_MAX};
use crate::{Error, Result};

fn refuse<T>(message: String) -> Result<T> {
    Err(Error::bad_request(message))
}

/// Checks a command.
pub fn exec(request: &ExecRequest) -> Result<()> {
    let command = match (&request.cmd, &request.argv) {
        (Some(_), Some(_)) => return refuse("give `cmd` or `argv`, not both".to_owned()),
        (Some(cmd), None) if !cmd.trim().is_empty() => std::slice::from_ref(cmd),
        (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => argv.as_slice(),
        _ => return refuse("`cmd` is empty; give a command to run".to_owned()),
    };
    if command.iter().map(String::len).sum::<usize>() > EXEC_COMMAND_BYTES_MAX {
        return refuse(format!(
            "the command is longer than {EXEC_COMMAND_BYTES_MAX} bytes; upload a script with PUT /fs and run \
             it"
        ));
    }
    if command.iter().any(|part| part.contains('\0')) {
        return refuse("the command contains a NUL byte; remove it".to_owned());
    }
    if let Some(cwd) = &request.cwd {
        path("cwd", cwd)?;
    }
    if let Some(env) = &request.env {
        self::env(env)?;
    }
    match request.timeout_seconds {
        Some(0) => refuse("`timeout_seconds` must be at least 1".to_owned()),
        Some(seconds) if seconds > EXEC_TIMEOUT_SECONDS_MAX => {
            refuse(format!("`timeout_seconds` must be at most {EXEC_TIMEOUT_SECONDS_MAX}"))
        }
        _ => Ok(()),
    }
}

/// Checks environment variables.
pub fn env(env: &BTreeMap<String, String>) -> Result<()> {
    if env.len() > ENV_PAIRS_MAX {
        return refuse(format!("`env` has {} variables; the limit is {ENV_PAIRS_MAX}", env.len()));
    }
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let shown: String = name.chars().take(40).collect();
            return refuse(format!(
                "invalid variable `{shown}` in `env`; names must not be empty or contain `=`, and nothing may contain NUL"
            ));
        }
    }
    Ok(())
}

/// Checks a path inside a sandbox.
pub fn path(field: &str, path: &str) -> Result<()> {
    if !path.starts_with('/') || path.contains('\0') || path.len() > PATH_BYTES_MAX {
        return refuse(format!("`{field}` must be an absolute path of at most {PATH_BYTES_MAX} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(request: ExecRequest, refusal: Option<&str>) {
        let got = exec(&request).err().map(|error| error.message);
        match refusal {
            Some(part) => assert!(got.clone().unwrap_or_default().contains(part), "{request:?}: {got:?}"),
            None => assert_eq!(got, None, "{request:?}"),
        }
    }

    fn cmd(cmd: &str) -> ExecRequest {
        ExecRequest { cmd: Some(cmd.into()), ..ExecRequest::default() }
    }

    fn argv(words: &[&str]) -> ExecRequest {
        let argv = words.iter().map(|word| (*word).to_owned()).collect();
        ExecRequest { argv: Some(argv), ..ExecRequest::default() }
    }

    #[test]
    fn commands() {
        check(cmd("true"), None);
        check(cmd("  "), Some("empty"));
        check(ExecRequest::default(), Some("empty"));
        check(cmd("a\0b"), Some("NUL"));
        check(cmd(&"x".repeat(EXEC_COMMAND_BYTES_MAX)), None);
        check(cmd(&"x".repeat(EXEC_COMMAND_BYTES_MAX + 1)), Some("longer"));
        check(ExecRequest { argv: Some(vec!["ls".into()]), ..cmd("ls") }, Some("not both"));
        check(argv(&[]), Some("empty"));
        check(argv(&["ls", ""]), None);
        check(argv(&["", "ls"]), Some("empty"));
        check(ExecRequest { cwd: Some("tmp".into()), ..cmd("ls") }, Some("absolute"));
        check(ExecRequest { timeout_seconds: Some(0), ..cmd("ls") }, Some("at least 1"));
        check(ExecRequest { timeout_seconds: Some(u64::MAX), ..cmd("ls") }, Some("at most"));
        check(ExecRequest { env: Some([("A=B".into(), "".into())].into()), ..cmd("ls") }, Some("A=B"));
    }
}
