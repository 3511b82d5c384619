//! `pandastack app`.

use serde_json::Value;

use crate::server::ID;
use crate::{Program, text};

/// The call that runs a command of the app `shop`.
fn exec_call() -> String {
    format!("POST /v1/sandboxes/{ID}/exec/stream?encoding=base64")
}

#[test]
fn exec_runs_in_the_app_directory_and_streams_bytes() {
    let program = Program::new();
    let output = program.run(&["app", "exec", "shop", "--", "bytes"]);
    assert_eq!((output.status.code(), output.stdout), (Some(0), vec![0xff, 0]));
    assert_eq!(program.server.body_of(&exec_call())["cwd"], "/srv/app");
    program.check(&["app", "exec", "shop", "fail"], 3, "", "no\n");
    program.check(&["app", "exec", "shop", "slow"], 124, "", "error: timeout: the command ran past 1 s\n");
    let output = program.run(&["app", "exec", "none", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

#[test]
fn exec_options_end_at_the_command() {
    let program = Program::new();
    program.check(&["app", "exec", "shop", "--cwd", "/tmp", "ls", "-l", "--cwd", "x"], 0, "out ä\n", "err\n");
    let request = program.server.body_of(&exec_call());
    assert_eq!((&request["cwd"], &request["argv"]), (&"/tmp".into(), &["ls", "-l", "--cwd", "x"][..].into()));
    let output = program.run(&["app", "exec", "shop", "--cwdd", "ls"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_missing_source_creates_no_app() {
    let program = Program::new();
    let file = program.home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let hint = "hint: set --dir to the directory that contains the app\n";
    for (place, why) in [
        (file.display().to_string(), "Not a directory (os error 20)"),
        (format!("{}/none", program.home.path().display()), "No such file or directory (os error 2)"),
    ] {
        let expected = format!("error: cannot deploy {place}: {why}\n{hint}");
        program.check(&["app", "deploy", "fresh", "--dir", &place], 1, "", &expected);
    }
    let expected = "error: sandbox `00000000-0000-4000-8000-000000000000` not found\n";
    let absent = "00000000-0000-4000-8000-000000000000:/srv";
    program.check(&["app", "deploy", "fresh", "--from-sandbox", absent], 1, "", expected);
    let expected = "error: app `fresh` has no repository\nhint: set one with --git\n";
    program.check(&["app", "deploy", "fresh", "--ref", "v1"], 1, "", expected);
    let calls = program.server.calls();
    assert!(calls.iter().all(|call| call.starts_with("GET ")), "{calls:?}");
}

#[test]
fn json_output_never_asks_for_confirmation() {
    let program = Program::new();
    let output = program.run(&["app", "rm", "shop", "--json"]);
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), report["hint"].as_str()),
        (Some(1), Some("use --yes to delete it without confirmation"))
    );
    assert_eq!(program.server.calls(), ["GET /v1/apps/shop"]);
}

#[test]
fn a_multi_line_variable_is_listed_on_one_row() {
    let output = Program::new().run(&["app", "env", "list", "shop"]);
    let expected =
        "KEY    VALUE     SCOPE  STAGE\nCERT   one\\ntwo  all    all\nPLAIN  x         all    all\n";
    assert_eq!(text(&output.stdout), expected, "{output:?}");
}
