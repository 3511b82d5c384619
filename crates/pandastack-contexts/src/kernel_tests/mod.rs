//! Tests of the kernels with this machine's interpreters.

mod bash;
mod java;
mod javascript;
mod r;

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use pandastack_types::Language;
use serde_json::{Value, json};

use crate::kernel;

/// A kernel of a language. Its runs are numbered.
struct Kernel {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    runs: u64,
}

/// What a run told.
#[derive(Debug, Default)]
struct Ran {
    stdout: String,
    stderr: String,
    results: Vec<Value>,
    error: Option<Value>,
}

impl Ran {
    /// Text of the value of the last expression.
    fn text(&self) -> &str {
        let main = self.results.iter().find(|result| result["is_main_result"] == true);
        main.and_then(|result| result["text"].as_str()).unwrap_or_default()
    }

    /// A field of the error.
    fn error(&self, field: &str) -> &str {
        self.error.as_ref().and_then(|error| error[field].as_str()).unwrap_or_default()
    }
}

impl Kernel {
    fn start(language: Language) -> Self {
        let command = kernel::command(language);
        // Interrupts go to the process group.
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { requests: child.stdin.take(), child, answers, runs: 0 }
    }

    fn send(&mut self, request: &Value) {
        writeln!(self.requests.as_mut().unwrap(), "{request}").unwrap();
    }

    /// Sends code; its number.
    fn begin(&mut self, code: &str, env: &Value) -> String {
        self.runs += 1;
        let run = self.runs.to_string();
        self.send(&json!({ "run": run, "code": code, "env": env }));
        run
    }

    /// The next event of a run; none if the kernel ended.
    fn event(&mut self, run: &str) -> Option<Value> {
        loop {
            let event: Value = serde_json::from_str(&self.answers.next()?.unwrap()).unwrap();
            if event["id"] == run {
                return Some(event);
            }
        }
    }

    /// Reads a run to its end.
    fn finish(&mut self, run: &str) -> Ran {
        let mut ran = Ran::default();
        while let Some(event) = self.event(run) {
            let text = event["text"].as_str().unwrap_or_default();
            match event["type"].as_str().unwrap() {
                "stdout" => ran.stdout += text,
                "stderr" => ran.stderr += text,
                "result" => ran.results.push(event),
                "error" => ran.error = Some(event),
                "ended" => break,
                _ => {}
            }
        }
        ran
    }

    fn run(&mut self, code: &str) -> Ran {
        let run = self.begin(code, &Value::Null);
        self.finish(&run)
    }

    /// Runs code and cancels it when it has written a line.
    fn interrupt(&mut self, code: &str) -> Ran {
        let run = self.begin(code, &Value::Null);
        while self.event(&run).unwrap()["type"] != "stdout" {}
        self.send(&json!({ "cancel": run }));
        self.finish(&run)
    }

    /// Sends nothing more and waits for its end.
    fn close(mut self) -> ExitStatus {
        self.requests = None;
        while self.answers.next().is_some() {}
        self.child.wait().unwrap()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Gone already, unless a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this machine has what a language needs. Says why a test is skipped.
fn can_run(language: Language) -> bool {
    let missing = language.programs().iter().find(|program| {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().unwrap();
        !found.status.success()
    });
    if let Some(program) = missing {
        eprintln!("skipped: this machine does not have `{program}`");
    }
    missing.is_none()
}

/// Runs cells in one kernel; what each shows, or the error's name and message.
fn check(language: Language, cells: &[(&str, &str)]) {
    let mut kernel = Kernel::start(language);
    for (code, expected) in cells {
        let ran = kernel.run(code);
        let found = match &ran.error {
            Some(_) => format!("{}: {}", ran.error("name"), ran.error("value")),
            None => format!("{}{}{}", ran.stdout, ran.stderr, ran.text()),
        };
        assert_eq!(&found, expected, "{code}: {ran:?}");
    }
    assert!(kernel.close().success());
}
