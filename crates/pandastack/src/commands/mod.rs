//! One command per module. A command parses its arguments, calls the API and prints the result; it
//! holds no state.

#[cfg(feature = "server")]
pub mod agent;
pub mod app;
pub mod audit;
pub mod bench;
#[cfg(feature = "server")]
pub mod ca;
pub mod completion;
#[cfg(feature = "server")]
pub mod control;
mod create;
pub mod db;
#[cfg(feature = "server")]
pub mod doctor;
#[cfg(feature = "server")]
pub mod down;
#[cfg(feature = "server")]
pub mod edge;
#[cfg(feature = "server")]
pub mod engine;
pub mod forward;
pub mod function;
pub mod host;
#[cfg(feature = "server")]
pub mod host_packages;
#[cfg(feature = "server")]
pub mod image;
#[cfg(feature = "server")]
pub mod join_secret;
#[cfg(feature = "server")]
pub mod kvm_probe;
pub mod mcp;
#[cfg(feature = "server")]
pub mod openapi;
pub mod quota;
pub mod run;
pub mod sandbox;
pub mod schedule;
pub mod snapshot;
pub mod template;
pub mod token;
#[cfg(feature = "server")]
pub mod up;
pub mod usage;
pub mod volume;
pub mod whoami;
pub mod workspace;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;

use crate::failure::{Failure, report};
use crate::output::Output;

/// Runs a client command on one thread: its calls are sequential, and one thread starts fastest.
fn with_client<F>(command: impl FnOnce(Client) -> F) -> Result<ExitCode>
where
    F: Future<Output = Result<ExitCode>>,
{
    let client = Client::from_environment()?;
    block_on(command(client))
}

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the async runtime")?.block_on(future)
}

/// Applies an action to several resources in sequence and prints the name of each, or one list at
/// the end with `--json`. A failure is reported by name and does not stop the rest.
async fn each(
    names: &[String],
    output: Output,
    act: impl AsyncFn(&str) -> Result<String>,
) -> Result<ExitCode> {
    let (mut done, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for name in names {
        match act(name).await {
            Ok(shown) if output.is_json() => done.push(shown),
            Ok(shown) => output.line(&shown)?,
            Err(error) => {
                let is_named = error.chain().any(|cause| cause.to_string().contains(name.as_str()));
                let error = if is_named { error } else { error.context(name.clone()) };
                report(&error, output);
                code = ExitCode::FAILURE;
            }
        }
    }
    if output.is_json() {
        output.value(&done, |_| String::new())?;
    }
    Ok(code)
}

/// `KEY=VALUE` arguments as a map.
fn pairs(arguments: &[String]) -> Result<Option<BTreeMap<String, String>>> {
    if arguments.is_empty() {
        return Ok(None);
    }
    let split = |(at, text): (usize, &String)| {
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let pair = pair.map(|(key, value)| (key.to_owned(), value.to_owned()));
        // The text is not shown: it may be a secret whose name was forgotten.
        pair.ok_or_else(|| {
            Failure::new(format!("invalid KEY=VALUE argument (number {}): expected KEY=VALUE", at + 1)).into()
        })
    };
    arguments.iter().enumerate().map(split).collect::<Result<_>>().map(Some)
}

/// Converts a command line for the API: one word is run by the shell, several are a program and its
/// arguments.
fn command_line(words: Vec<String>) -> (Option<String>, Option<Vec<String>>) {
    if words.len() == 1 { (words.into_iter().next(), None) } else { (None, Some(words)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_at_the_first_equals_sign() {
        let map = pairs(&["a=b=c".to_owned(), "d=".to_owned()]).unwrap().unwrap();
        assert_eq!(map["a"], "b=c");
        assert_eq!(map["d"], "");
        assert!(pairs(&["=x".to_owned()]).is_err());
        assert!(pairs(&["x".to_owned()]).is_err());
    }

    #[test]
    fn one_word_goes_to_the_shell() {
        assert_eq!(command_line(vec!["echo a | wc".into()]), (Some("echo a | wc".into()), None));
        assert_eq!(
            command_line(vec!["ls".into(), "-l".into()]),
            (None, Some(vec!["ls".into(), "-l".into()]))
        );
    }
}
