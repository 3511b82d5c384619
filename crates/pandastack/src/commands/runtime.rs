//! Runs async commands.

use std::pin::Pin;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;

/// Runs a client command on one thread: its calls are sequential, and one thread starts fastest.
pub fn with_client<F>(command: impl FnOnce(Client) -> F) -> Result<ExitCode>
where
    F: Future<Output = Result<ExitCode>>,
{
    let client = Client::from_environment()?;
    block_on(command(client))
}

/// Runs a future on one thread.
///
/// The runtime gets a box: it would otherwise be compiled once for every command, with three copies of the
/// command.
pub fn block_on<'a, T>(future: impl Future<Output = Result<T>> + 'a) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let future: Pin<Box<dyn Future<Output = Result<T>> + 'a>> = Box::pin(future);
    runtime.context("cannot start the async runtime")?.block_on(future)
}
