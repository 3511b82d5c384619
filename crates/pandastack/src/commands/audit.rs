//! `pandastack audit`: who changed what.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;

use super::sandbox::resolve;
use crate::output::{Output, age};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only calls about this sandbox, which may be gone: then its whole id is needed
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// How many of the newest
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: u32,
}

/// Carries it out.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    super::with_client(|client| async move {
        let of = match &args.sandbox {
            Some(text) => Some(resolve(&client, text).await?),
            None => None,
        };
        let entries = client.audit(of.as_ref(), args.limit).await?;
        let now = Timestamp::now();
        output.table(&entries, ["AGE", "KEY", "STATUS", "TOOK", "CALL"], |entry| {
            [
                age(entry.at, now),
                format!("{} ({})", entry.token_prefix, entry.token_label),
                entry.status.to_string(),
                format!("{} ms", entry.took_ms),
                format!("{} {}", entry.method, entry.path),
            ]
        })?;
        Ok(ExitCode::SUCCESS)
    })
}
