//! Creates from several callers at once: how many a second, and how long the unlucky ones wait.

use std::time::Instant;

use anyhow::Result;
use futures::StreamExt;
use pandastack_client::Client;
use pandastack_types::SandboxId;

use super::sandbox::create;
use crate::api::{delete, ms_since};
use crate::report::Report;

/// Callers.
const CALLERS: [usize; 3] = [1, 10, 50];
/// The number of callers whose slowest creates have a bar, and how many times the median they may take.
const HELD: usize = 10;
const P99_OVER_P50: f64 = 6.0;
/// Deletes at once, which are not measured.
const DELETES_AT_ONCE: usize = 8;

/// `count` creates with each number of callers. Sandboxes stay until the last one is made.
pub async fn measure(client: &Client, count: u32, report: &mut Report) -> Result<()> {
    for callers in CALLERS {
        let name = format!("create, {callers} at once");
        let began = Instant::now();
        let creates = futures::stream::iter(0..count).map(|_| async {
            let began = Instant::now();
            create(client).await.map(|sandbox| (sandbox.id, ms_since(began)))
        });
        let made: Vec<Result<(SandboxId, f64)>> = creates.buffer_unordered(callers).collect().await;
        let seconds = began.elapsed().as_secs_f64();
        let (mut ids, mut failures) = (Vec::new(), 0);
        for outcome in made {
            match outcome {
                Ok((id, took)) => {
                    report.sample(&name, "ms", took);
                    ids.push(id);
                }
                Err(error) => {
                    failures += 1;
                    eprintln!("{name}: {error:#}");
                }
            }
        }
        report.sample(&format!("creates a second, {callers} at once"), "1/s", ids.len() as f64 / seconds);
        report.bar(
            &format!("failures of {count} creates, {callers} at once"),
            Some(f64::from(failures)),
            0.0,
        );
        let deletes = futures::stream::iter(&ids).map(|id| delete(client, id));
        let deleted: Vec<Result<()>> = deletes.buffer_unordered(DELETES_AT_ONCE).collect().await;
        deleted.into_iter().collect::<Result<()>>()?;
    }
    let held = format!("create, {HELD} at once");
    let tail = report.percentile(&held, 99.0).zip(report.median(&held)).map(|(p99, p50)| p99 / p50);
    report.bar(&format!("{held}: p99 / p50"), tail, P99_OVER_P50);
    Ok(())
}
