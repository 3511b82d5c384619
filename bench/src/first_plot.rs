//! The first plot of a fresh code context beside the second one in the same context.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::{CONTEXT_DEFAULT, RunCode};

use crate::api::{create, delete, ms_since};
use crate::report::Report;

/// A typical first cell. Its import counts as part of the first plot.
const PLOT: &str = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9, 16])\nplt.show()";
/// Largest ratio of the first plot's time to the second's.
const AT_MOST: f64 = 3.0;
const FIRST: &str = "first plot of a code context";
const SECOND: &str = "second plot";
/// Longest wait for a plot.
const PLOT_MS_MAX: u64 = 120_000;

/// Plots twice in each of several fresh sandboxes.
pub async fn measure(client: &Client, rounds: u32, report: &mut Report) -> Result<()> {
    for _ in 0..rounds {
        let sandbox = create(client, "code-interpreter").await?;
        let drawn = both(client, &sandbox.id, report).await;
        delete(client, &sandbox.id).await?;
        drawn?;
    }
    report.ratio_bar(FIRST, SECOND, AT_MOST);
    Ok(())
}

async fn both(client: &Client, sandbox: &SandboxId, report: &mut Report) -> Result<()> {
    // The first run starts the interpreter; that start is not measured.
    run(client, sandbox, "1").await?;
    for name in [FIRST, SECOND] {
        let began = Instant::now();
        run(client, sandbox, PLOT).await?;
        report.sample(name, "ms", ms_since(began));
    }
    Ok(())
}

async fn run(client: &Client, sandbox: &SandboxId, code: &str) -> Result<()> {
    let wanted = RunCode { code: code.to_owned(), timeout_ms: Some(PLOT_MS_MAX), env: None };
    let done = client.run_code(sandbox, CONTEXT_DEFAULT, &wanted).await.context("run code")?;
    ensure!(done.exit == 0, "the code failed: {}", done.error.unwrap_or_default());
    Ok(())
}
