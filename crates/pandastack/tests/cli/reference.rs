//! `docs/reference/cli.md` is what the commands say of themselves. `PANDASTACK_WRITE_DOCS=1` writes it.

use std::path::Path;

use crate::{Program, text};

const HEADER: &str = "# Command line\n\nGenerated from the program's own help. What the commands are for: [the `pandastack` \
                      program](cli-conventions.md).\n";

/// Names in the list of commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let list =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn describe(program: &Program, path: &[String], document: &mut String) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("-h");
    let output = program.run(&args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    let help = text(&output.stdout);
    let below = commands(&help);
    if below.is_empty() {
        document.push_str(&format!(
            "\n## `pandastack {}`\n\n```text\n{}\n```\n",
            path.join(" "),
            help.trim_end()
        ));
    }
    for name in below {
        describe(program, &[path, &[name]].concat(), document);
    }
}

#[test]
fn the_reference_is_fresh() {
    let mut document = HEADER.to_owned();
    describe(&Program::new(), &[], &mut document);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    if std::env::var_os("PANDASTACK_WRITE_DOCS").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let is_fresh = std::fs::read_to_string(&path).is_ok_and(|text| text == document);
    assert!(is_fresh, "docs/reference/cli.md is stale: run this test with PANDASTACK_WRITE_DOCS=1");
}
