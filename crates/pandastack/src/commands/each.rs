//! Commands that take several names.

use std::process::ExitCode;

use anyhow::Result;

use crate::failure::report;
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
