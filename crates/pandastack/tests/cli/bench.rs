//! `bench`: measures latencies and leaves no sandboxes behind.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::server::{ID, SNAPSHOT};
use crate::{Program, text};

/// Creates and deletes in the calls so far.
fn made_and_deleted(program: &Program) -> (usize, usize) {
    let calls = program.server.calls();
    let made =
        |call: &&String| *call == "POST /v1/sandboxes" || *call == &format!("POST /v1/sandboxes/{ID}/fork");
    let deleted = |call: &&String| call.starts_with("DELETE /v1/sandboxes/");
    (calls.iter().filter(made).count(), calls.iter().filter(deleted).count())
}

#[test]
fn rounds_are_measured_and_cleaned_up() {
    let program = Program::new();
    let output =
        program.run(&["bench", "--count", "5", "--concurrency", "2", "--template", "base", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["rounds"], &report["interrupted"]), (&5.into(), &false.into()));
    let counts: Vec<_> = report["figures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["name"].as_str().unwrap(), &f["count"]))
        .collect();
    let (five, ten) = (&5.into(), &10.into());
    let expected =
        [("create", five), ("create_and_exec", five), ("exec", five), ("fork", five), ("delete", ten)];
    assert_eq!(counts, expected);
    assert_eq!(report["figures"][0]["samples_ms"].as_array().unwrap().len(), 5);
    // Five rounds and a first one, which is not counted.
    assert_eq!(made_and_deleted(&program), (12, 12));
    assert_eq!(program.server.body_of("POST /v1/sandboxes")["ttl_seconds"], 600);
    let table = text(&program.run(&["bench", "--count", "1"]).stdout);
    assert!(
        table.starts_with("base on http://127.0.0.1:") && table.contains("\nOPERATION        N  P50"),
        "{table}"
    );
}

#[test]
fn a_failed_command_ends_the_benchmark_and_cleans_up() {
    let program = Program::new();
    program.check(
        &["bench", "--", "false"],
        1,
        "",
        "error: the command failed with exit code 1: no\nhint: use a command that exits with 0\n",
    );
    assert_eq!(made_and_deleted(&program), (1, 1));
}

#[test]
fn ctrl_c_deletes_benchmark_sandboxes() {
    let program = Program::new();
    let mut command: Command = program.command(&["bench", "--json", "--", "wait"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    program.server.wait_for_command();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["rounds"], &report["interrupted"]), (&0.into(), &true.into()));
    assert_eq!(made_and_deleted(&program), (1, 1));
    assert!(!program.server.calls().iter().any(|call| call.contains(SNAPSHOT)));
}
