//! Commands that take several names: all are processed, and each failure is reported by name. Ctrl-C ends the
//! command.

use std::process::ExitCode;

use anyhow::{Error, Result};
use serde::Serialize;

use crate::failure::{Failure, report};
use crate::output::Output;

/// Applies an action to several resources in sequence and prints the name of each, or one list at
/// the end with `--json`. A failure is reported by name and does not stop the rest.
pub async fn each(
    names: &[String],
    output: Output,
    act: impl AsyncFn(&str) -> Result<String>,
) -> Result<ExitCode> {
    let (mut done, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for name in names {
        match act(name).await {
            Ok(shown) if output.is_json() => done.push(shown),
            Ok(shown) => output.line(&shown)?,
            Err(error) if Failure::is_interrupt(&error) => return Err(error),
            Err(error) => {
                report(&with_name(error, name), output);
                code = ExitCode::FAILURE;
            }
        }
    }
    if output.is_json() {
        output.value(&done, |_| String::new())?;
    }
    Ok(code)
}

/// Shows several resources, with a blank line between two; with `--json` one as it is, several as a list.
pub async fn show_each<T: Serialize>(
    names: &[String],
    output: Output,
    fetch: impl AsyncFn(&str) -> Result<T>,
    human: impl Fn(&T) -> String,
) -> Result<ExitCode> {
    if let [name] = names {
        output.value(&fetch(name).await?, human)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut found, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for name in names {
        match fetch(name).await {
            Ok(one) => found.push(one),
            Err(error) if Failure::is_interrupt(&error) => return Err(error),
            Err(error) => {
                report(&with_name(error, name), output);
                code = ExitCode::FAILURE;
            }
        }
    }
    output.value(&found, |found| found.iter().map(human).collect::<Vec<_>>().join("\n\n"))?;
    Ok(code)
}

/// The error, with the name in front unless it contains it.
fn with_name(error: Error, name: &str) -> Error {
    let is_named = error.chain().any(|cause| cause.to_string().contains(name));
    if is_named { error } else { error.context(name.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::runtime::block_on;
    use crate::output::Format;

    #[test]
    fn only_ctrl_c_stops_the_remaining_items() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let output = Output::new(Format::Table, true);
        let tried = std::cell::RefCell::new(Vec::new());
        let act = async |name: &str| {
            tried.borrow_mut().push(name.to_owned());
            match name {
                "b" => Err(Failure::interrupted().into()),
                _ => Err(Failure::new("refused").into()),
            }
        };
        let error = block_on(each(&names, output, act)).unwrap_err();
        assert!(Failure::is_interrupt(&error));
        assert_eq!(*tried.borrow(), ["a", "b"]);
    }
}
