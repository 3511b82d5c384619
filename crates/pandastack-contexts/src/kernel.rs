//! The programs that run in the sandbox, and how they are started.

use pandastack_types::Language;
use pandastack_types::api::{ExecRequest, StartProcess};

/// Our kernels. They are passed as arguments, so that templates need no installation and no file is
/// left behind.
const PYTHON: &str = concat!(
    include_str!("kernels/wire.py"),
    include_str!("kernels/charts.py"),
    include_str!("kernels/python.py")
);
const JAVASCRIPT: &str = concat!(
    include_str!("kernels/javascript/worker.js"),
    include_str!("kernels/javascript/translator.js"),
    include_str!("kernels/javascript/main.js")
);
/// Drives Bash; in Python.
const BASH: &str = concat!(
    include_str!("kernels/wire.py"),
    include_str!("kernels/driver.py"),
    include_str!("kernels/bash.py")
);
/// Drives R; in Python, with the part that R runs as a raw string.
const R: &str = concat!(
    include_str!("kernels/wire.py"),
    include_str!("kernels/driver.py"),
    "KERNEL = r'''",
    include_str!("kernels/r.R"),
    "'''\n",
    include_str!("kernels/r.py")
);
/// The same for Java.
const JAVA: &str = concat!(
    include_str!("kernels/wire.py"),
    include_str!("kernels/driver.py"),
    "KERNEL = r'''",
    include_str!("kernels/Kernel.java"),
    "'''\n",
    include_str!("kernels/java.py")
);
/// Runs the Python kernel in a fork of the template's interpreter, or in its own.
const FORK: &str = include_str!("kernels/fork.py");
/// Gives the JavaScript kernel its pipes.
const LAUNCH: &str = include_str!("kernels/javascript/launch.sh");
/// Prints the first of its arguments that is no program.
const FIND_MISSING: &str =
    "for program; do command -v \"$program\" > /dev/null || { echo \"$program\"; exit; }; done";
/// Socket of the interpreter that the template `code-interpreter` starts, in the abstract namespace.
const PRELOADED: &str = "pandastack-python";
/// User that runs code.
const USER: &str = "user";
/// Directory that only root may enter, and the user that runs kernels below it.
const ROOT: (&str, &str) = ("/root", "root");

fn user_in(cwd: &str) -> &'static str {
    let below = cwd.strip_prefix(ROOT.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if below { ROOT.1 } else { USER }
}

/// The command that runs the kernel of a language.
pub(super) fn command(language: Language) -> Vec<&'static str> {
    match language {
        Language::Python => vec!["python3", "-u", "-c", FORK, PRELOADED, PYTHON],
        Language::JavaScript | Language::TypeScript => {
            vec!["sh", "-c", LAUNCH, "sh", JAVASCRIPT, language.name()]
        }
        Language::Bash => vec!["python3", "-u", "-c", BASH],
        Language::R => vec!["python3", "-u", "-c", R],
        Language::Java => vec!["python3", "-u", "-c", JAVA],
    }
}

/// Prints the first program of a language that the sandbox does not have.
pub(super) fn find_missing(language: Language) -> ExecRequest {
    let begin = ["sh", "-c", FIND_MISSING, "sh"];
    let argv = begin.iter().chain(language.programs()).map(|&word| word.to_owned()).collect();
    ExecRequest { argv: Some(argv), user: Some(USER.to_owned()), ..ExecRequest::default() }
}

/// A process that runs the kernel.
pub(super) fn start(tag: String, language: Language, cwd: &str) -> StartProcess {
    let argv = command(language).into_iter().map(str::to_owned).collect();
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
    use std::process::{Command, ExitStatus, Stdio};

    use serde_json::{Value, json};

    use super::*;

    /// The template's interpreter, started on this machine without its libraries.
    struct Preloaded {
        socket: String,
    }

    impl Preloaded {
        fn start() -> Self {
            let template = include_str!("../../../templates/code-interpreter/template.toml");
            let begin = format!(
                "python3 -u - {PRELOADED} {USER} asyncio numpy pandas matplotlib.pyplot << 'PROGRAM'\n"
            );
            let (_, rest) = template.split_once(&begin).expect("the template's warm-up starts it");
            let (program, _) = rest.split_once("\nPROGRAM\n").unwrap();
            let socket = format!("{PRELOADED}-test-{}", std::process::id());
            let me = Command::new("id").arg("-un").output().unwrap().stdout;
            let me = String::from_utf8(me).unwrap();
            let mut started = Command::new("python3")
                .args(["-u", "-", &socket, me.trim(), "asyncio"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            started.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
            assert!(started.wait().unwrap().success());
            Self { socket }
        }

        /// Process id of the interpreter that is the parent of forks.
        fn pid(&self) -> Value {
            texts(&run_in(&self.socket, &[], &["import os; os.getppid()"]).0)[0].clone()
        }
    }

    impl Drop for Preloaded {
        fn drop(&mut self) {
            run_in(&self.socket, &[], &["import os; os.kill(os.getppid(), 15)"]);
        }
    }

    /// Runs cells one after the other with this machine's Python; returns their events and the kernel's end.
    fn run_in(preloaded: &str, env: &[(&str, &str)], cells: &[&str]) -> (Vec<Value>, ExitStatus) {
        let mut kernel = Command::new("python3")
            .args(["-u", "-c", FORK, preloaded, PYTHON])
            .envs(env.iter().copied())
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
        (told, kernel.wait().unwrap())
    }

    /// The same in an interpreter of its own.
    fn run(cells: &[&str]) -> Vec<Value> {
        let (told, ended) = run_in("nobody-listens-here", &[], cells);
        assert!(ended.success());
        told
    }

    fn texts(told: &[Value]) -> Vec<Value> {
        told.iter().filter(|event| event["type"] == "result").map(|event| event["text"].clone()).collect()
    }

    #[test]
    fn a_context_is_a_fork_of_the_template_s_interpreter() {
        let preloaded = Preloaded::start();
        let parent = preloaded.pid();
        let who = "import os, random\n(os.getppid(), os.environ['MINE'], os.getcwd() != '/')";
        let draw = "random.random()";
        let (first, ended) = run_in(&preloaded.socket, &[("MINE", "a")], &[who, draw]);
        assert!(ended.success());
        let (second, _) = run_in(&preloaded.socket, &[("MINE", "b")], &[who, draw]);
        let (first, second) = (texts(&first), texts(&second));
        let expected = |mine: &str| json!(format!("({}, '{mine}', True)", parent.as_str().unwrap()));
        assert_eq!((&first[0], &second[0]), (&expected("a"), &expected("b")));
        assert_ne!(first[1], second[1], "each draws its own random numbers");
        // Variables that Python reads when it starts.
        let (cold, _) = run_in(&preloaded.socket, &[("PYTHONPATH", "/srv"), ("MINE", "c")], &[who]);
        assert_ne!(texts(&cold)[0], expected("c"));
        // Its end is told as its own.
        let (_, ended) = run_in(&preloaded.socket, &[], &["import os; os._exit(3)"]);
        assert_eq!(ended.code(), Some(3));
        let (_, ended) = run_in(&preloaded.socket, &[], &["import os; os.kill(os.getpid(), 9)"]);
        assert!(ended.code().is_none(), "{ended}");
    }

    #[test]
    fn a_context_in_roots_home_runs_as_root() {
        for (cwd, user) in
            [("/root", "root"), ("/root/a", "root"), ("/rooted", "user"), ("/home/user", "user")]
        {
            assert_eq!(
                start("tag".to_owned(), Language::Python, cwd).exec.user.as_deref(),
                Some(user),
                "{cwd}"
            );
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
