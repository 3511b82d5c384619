//! The program that runs in the sandbox, and how it is started.

use pandastack_types::api::{ExecRequest, StartProcess};

/// Our kernel. It is passed as an argument, so that templates need no installation and no file is
/// left behind.
const PROGRAM: &str = include_str!("kernel.py");
/// User that runs code.
const USER: &str = "user";
/// Directory that only root may enter, and the user that runs kernels below it.
const ROOT: (&str, &str) = ("/root", "root");

fn user_in(cwd: &str) -> &'static str {
    let below = cwd.strip_prefix(ROOT.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if below { ROOT.1 } else { USER }
}

/// A process that runs the kernel.
pub(super) fn start(tag: String, cwd: &str) -> StartProcess {
    let argv = ["python3", "-u", "-c", PROGRAM].map(str::to_owned).to_vec();
    // Picked up by matplotlib, which would look for a display.
    let env = [("MPLBACKEND".to_owned(), "Agg".to_owned())].into();
    let exec = ExecRequest {
        argv: Some(argv),
        cwd: Some(cwd.to_owned()),
        env: Some(env),
        user: Some(user_in(cwd).to_owned()),
        ..ExecRequest::default()
    };
    StartProcess { exec, stdin_open: true, tag: Some(tag), pty: None }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use serde_json::{Value, json};

    use super::*;

    /// Runs cells one after the other with this machine's Python; returns their events.
    fn run(cells: &[&str]) -> Vec<Value> {
        let mut kernel = Command::new("python3")
            .args(["-u", "-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = kernel.stdin.take().unwrap();
        for (number, code) in cells.iter().enumerate() {
            writeln!(input, "{}", json!({ "run": number.to_string(), "code": code })).unwrap();
        }
        drop(input);
        let output = BufReader::new(kernel.stdout.take().unwrap());
        let told = output.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert!(kernel.wait().unwrap().success());
        told
    }

    #[test]
    fn a_context_in_roots_home_runs_as_root() {
        for (cwd, user) in
            [("/root", "root"), ("/root/a", "root"), ("/rooted", "user"), ("/home/user", "user")]
        {
            assert_eq!(start("tag".to_owned(), cwd).exec.user.as_deref(), Some(user), "{cwd}");
        }
    }

    /// Matplotlib chooses its backend with the first plot, and sets the signature of `show` then.
    #[test]
    fn a_plot_can_be_in_a_later_cell_than_the_import() {
        let import = "import sys, types\nplots = types.ModuleType('matplotlib.pyplot')\n\
                      plots.show = lambda: None\nplots.get_fignums = list\n\
                      sys.modules['matplotlib.pyplot'] = plots";
        let told = run(&[
            import,
            "before = plots.show\nplots.show.__signature__ = None\nplots.show(block=True)",
            "plots.show is before",
        ]);
        let errors: Vec<&Value> = told.iter().filter(|event| event["type"] == "error").collect();
        assert_eq!(errors, Vec::<&Value>::new());
        assert!(told.iter().any(|event| event["text"] == "True"), "patched once: {told:?}");
    }

    #[test]
    fn an_indented_cell_runs_as_in_a_notebook() {
        let indented = "\n    if True:\n        x = 3\n\n    x + 1";
        let text = "    text = '''\n    a\n  b'''\n    text";
        let told = run(&[indented, text, "if True:\n    y = 1\ny", "  x\n y"]);
        let results: Vec<&Value> =
            told.iter().filter(|event| event["type"] == "result").map(|event| &event["text"]).collect();
        assert_eq!(results, [&json!("4"), &json!("\na\n  b"), &json!("1")]);
        let errors: Vec<&Value> =
            told.iter().filter(|event| event["type"] == "error").map(|event| &event["name"]).collect();
        assert_eq!(errors, ["IndentationError"], "only the first line's indent is taken away");
    }
}
