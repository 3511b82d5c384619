//! Output of commands that read, compared with `golden/reads.txt`. `PANDASTACK_WRITE_GOLDEN=1` writes the file: review the
//! difference before you commit it.

use serde_json::Value;

use crate::server::ID;
use crate::services::{DATABASE, SCHEDULE};
use crate::{Program, text};

/// Commands that print a table or details, and JSON with `--json`.
const READS: [&[&str]; 19] = [
    &["sandbox", "list"],
    &["sandbox", "get", ID],
    &["snapshot", "list"],
    &["template", "list"],
    &["app", "list"],
    &["app", "get", "shop"],
    &["app", "metrics", "shop"],
    &["db", "list"],
    &["db", "get", DATABASE],
    &["fn", "list"],
    &["fn", "get", "hello"],
    &["schedule", "list"],
    &["schedule", "get", SCHEDULE],
    &["token", "list"],
    &["member", "list"],
    &["member", "sessions"],
    &["host", "list"],
    &["usage"],
    &["audit"],
];

/// Replaces times of today, which differ from run to run, with `<time>`.
fn without_now(text: &str) -> String {
    let is_now = |word: &str| {
        let at: Option<jiff::Timestamp> = word.parse().ok();
        at.is_some_and(|at| at.duration_since(jiff::Timestamp::now()).as_hours().abs() < 24)
    };
    let words = text.split_inclusive(char::is_whitespace);
    words
        .map(|word| match is_now(word.trim_end()) {
            true => word.replace(word.trim_end(), "<time>"),
            false => word.to_owned(),
        })
        .collect()
}

#[test]
fn human_readable_output_matches_the_snapshot() {
    let program = Program::new();
    let mut seen = String::new();
    for args in READS {
        let output = program.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert_eq!(text(&output.stderr), "", "{args:?}");
        seen.push_str(&format!("$ pandastack {}\n{}\n", args.join(" "), without_now(&text(&output.stdout))));
    }
    crate::check_snapshot("crates/pandastack/tests/cli/golden/reads.txt", &seen);
}

#[test]
fn json_output_has_every_field_of_the_response() {
    let program = Program::new();
    for args in READS {
        let output = program.run(&[args, &["--json"]].concat());
        let value: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        let is_list = matches!(args[1..].first(), Some(&"list" | &"sessions")) || args[0] == "audit";
        assert_eq!(value.is_array(), is_list, "{args:?}: {value}");
        let one = if is_list { &value[0] } else { &value };
        let name = ["id", "name", "prefix", "total"].into_iter().find(|name| !one[*name].is_null());
        assert!(name.is_some(), "{args:?}: {value}");
    }
}
