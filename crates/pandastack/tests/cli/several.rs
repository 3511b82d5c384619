//! Commands with several arguments, and errors as JSON.

use serde_json::{Value, json};

use crate::services::DATABASE;
use crate::{Program, text};

#[test]
fn a_failed_delete_does_not_stop_the_others() {
    let program = Program::new();
    let kept = "error: kept: protected from deletion\n";
    program.check(&["volume", "rm", "a", "kept", "b"], 1, "a\nb\n", kept);
    program.check(&["token", "rm", "kept", "a"], 1, "a\n", kept);
    program.check(&["app", "env", "rm", "shop", "kept", "A"], 1, "A\n", kept);
    program.check(&["volume", "rm", "a", "b"], 0, "a\nb\n", "");
    let none = "error: database `none` not found\nhint: run `pandastack db list` to see all databases\n";
    program.check(&["db", "rm", "none", "orders"], 1, &format!("{DATABASE}\n"), none);
}

#[test]
fn json_output_lists_deletions_and_reports_failures() {
    let program = Program::new();
    let output = program.run(&["volume", "rm", "--json", "a", "kept", "b"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), json!(["a", "b"]));
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report, json!({"error": "kept: protected from deletion", "code": "conflict"}));
}

#[test]
fn errors_are_json_with_the_json_option() {
    let program = Program::new();
    for (args, exit, code, hint) in [
        (
            &["db", "get", "none", "--json"][..],
            1,
            "not_found",
            Some("run `pandastack db list` to see all databases"),
        ),
        (
            &["run", "--json", "--template", "x"],
            2,
            "usage",
            Some("run the command with `--help` to see its options"),
        ),
        (&["sandbox", "get", "00000000-0000-4000-8000-000000000000", "--json"], 1, "not_found", None),
    ] {
        let output = program.run(args);
        let report: Value = serde_json::from_slice(&output.stderr).unwrap();
        let seen = (output.status.code(), report["code"].as_str(), report["hint"].as_str());
        assert_eq!(seen, (Some(exit), Some(code), hint), "{args:?}: {report}");
        assert!(output.stdout.is_empty() && report["error"].is_string(), "{args:?}: {output:?}");
    }
    let output = program.run(&["sandbox", "list", "--json", "--help"]);
    assert!(output.status.success() && text(&output.stdout).contains("Usage:"), "help is not an error");
}
