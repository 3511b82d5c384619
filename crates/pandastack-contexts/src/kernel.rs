//! The program that runs in the sandbox, and how it is started.

use pandastack_types::api::{ExecRequest, StartProcess};

/// Our kernel. It goes as an argument, so that nothing has to be installed in a template and
/// nothing is left behind.
const PROGRAM: &str = include_str!("kernel.py");
/// Who runs code.
const USER: &str = "user";

/// A process that runs the kernel.
pub(super) fn start(tag: String, cwd: &str) -> StartProcess {
    let argv = ["python3", "-u", "-c", PROGRAM].map(str::to_owned).to_vec();
    // Picked up by matplotlib, which would look for a display.
    let env = [("MPLBACKEND".to_owned(), "Agg".to_owned())].into();
    let exec = ExecRequest {
        argv: Some(argv),
        cwd: Some(cwd.to_owned()),
        env: Some(env),
        user: Some(USER.to_owned()),
        ..ExecRequest::default()
    };
    StartProcess { exec, stdin_open: true, tag: Some(tag), pty: None }
}
