//! `docs/reference/cli.md`: the `--help` page of every visible command.

use crate::{Program, check_snapshot, text};

const HEADER: &str = "# Command line\n\n\
    This page is generated from `pandastack --help` and the help of every command. \
    For an overview, see [the `pandastack` program](cli-conventions.md).\n";

/// Names in the list of commands of a help page.
fn commands(help: &str) -> Vec<String> {
    let list =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Appends the help page of a command and of all its subcommands.
fn describe(program: &Program, path: &[String], document: &mut String) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let output = program.run(&args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    let help = text(&output.stdout);
    let name =
        ["pandastack"].into_iter().chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    document.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", help.trim_end()));
    for name in commands(&help) {
        describe(program, &[path, &[name]].concat(), document);
    }
}

#[test]
fn the_cli_reference_is_up_to_date() {
    let mut document = HEADER.to_owned();
    describe(&Program::new(), &[], &mut document);
    check_snapshot("docs/reference/cli.md", &document);
}
