//! Commands on several things at once, and failures as programs read them.

use serde_json::{Value, json};

use crate::services::DATABASE;
use crate::{Program, text};

#[test]
fn one_that_is_not_deleted_does_not_keep_the_others() {
    let program = Program::new();
    let kept = "error: kept: it is protected\n";
    program.check(&["volume", "rm", "a", "kept", "b"], 1, "a\nb\n", kept);
    program.check(&["token", "rm", "kept", "a"], 1, "a\n", kept);
    program.check(&["app", "env", "rm", "shop", "kept", "A"], 1, "A\n", kept);
    program.check(&["volume", "rm", "a", "b"], 0, "a\nb\n", "");
    let none = "error: there is no database `none`\nhint: `pandastack db list` shows them\n";
    program.check(&["db", "rm", "none", "orders"], 1, &format!("{DATABASE}\n"), none);
}

#[test]
fn programs_read_what_was_deleted_and_what_was_not() {
    let program = Program::new();
    let output = program.run(&["volume", "rm", "--json", "a", "kept", "b"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), json!(["a", "b"]));
    let told: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(told, json!({"error": "kept: it is protected", "code": "conflict"}));
}

#[test]
fn failures_are_json_for_programs() {
    let program = Program::new();
    for (args, exit, code, hint) in [
        (&["db", "get", "none", "--json"][..], 1, "failed", Some("`pandastack db list` shows them")),
        (&["run", "--json", "--template", "x"], 2, "usage", Some("`--help` shows what there is")),
        (&["sandbox", "get", "00000000-0000-4000-8000-000000000000", "--json"], 1, "not_found", None),
    ] {
        let output = program.run(args);
        let told: Value = serde_json::from_slice(&output.stderr).unwrap();
        let seen = (output.status.code(), told["code"].as_str(), told["hint"].as_str());
        assert_eq!(seen, (Some(exit), Some(code), hint), "{args:?}: {told}");
        assert!(output.stdout.is_empty() && told["error"].is_string(), "{args:?}: {output:?}");
    }
    let output = program.run(&["sandbox", "list", "--json", "--help"]);
    assert!(output.status.success() && text(&output.stdout).contains("Usage:"), "help is no failure");
}
