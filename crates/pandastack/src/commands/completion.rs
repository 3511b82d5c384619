//! `pandastack completion`: shell completions.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to generate completions for
    shell: Shell,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    // Buffered, because the generator panics if the reader closes the pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible_cli(), "pandastack", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The command line without its hidden subcommands.
pub fn visible_cli() -> Command {
    visible(Cli::command())
}

/// The command without its hidden subcommands, which only other programs use.
fn visible(command: Command) -> Command {
    let shown: Vec<Command> =
        command.get_subcommands().filter(|one| !one.is_hide_set()).cloned().map(visible).collect();
    let mut copy = Command::new(forever(command.get_name()))
        .disable_help_subcommand(true)
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .subcommands(shown)
        .visible_aliases(command.get_visible_aliases().map(forever));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    copy
}

/// A name as `clap` takes it. Not freed: this program ends after it has printed the completions.
fn forever(name: &str) -> &'static str {
    name.to_owned().leak()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(shell: Shell, mut command: Command) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "pandastack", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }

    /// Whether a script completes a command of that name, not just text that contains it.
    fn completes(shell: Shell, script: &str, name: &str) -> bool {
        let quoted = [format!("'{name}:"), format!("-a \"{name}\""), format!("-a '{name}'")];
        match shell {
            Shell::Bash => script.split_whitespace().any(|word| word == format!("pandastack,{name})")),
            _ => quoted.iter().any(|mark| script.contains(mark)),
        }
    }

    #[test]
    fn completions_hide_internal_commands() {
        let all = Cli::command();
        let hidden: Vec<&str> =
            all.get_subcommands().filter(|one| one.is_hide_set()).map(Command::get_name).collect();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let (full, shown) = (script(shell, Cli::command()), script(shell, visible(Cli::command())));
            assert!(completes(shell, &shown, "sandbox") && shown.contains("--json"), "{shell}");
            for name in &hidden {
                assert!(completes(shell, &full, name), "{shell}: the mark of {name} is another one");
                assert!(!completes(shell, &shown, name), "{shell}: {name}");
            }
        }
    }

    #[test]
    fn completions_contain_every_visible_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pandastack", &mut script);
            let script = String::from_utf8_lossy(&script);
            for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
