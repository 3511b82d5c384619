//! Creates, uses and deletes sandboxes one after another for a long time; measures failures, leaks
//! and slowdown.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use pandastack_client::Client;

use super::footprint::PlatformPaths;
use super::sandbox::create;
use crate::api::{delete, exec, ms_since};
use crate::plot::Plot;
use crate::report::Report;

const LIFE: &str = "create, exec, delete";
const FIRST: &str = "create, exec, delete: first tenth";
const LAST: &str = "create, exec, delete: last tenth";
/// Points of the plot.
const BINS: u32 = 50;
/// Failures that are shown; the rest is only counted.
const SHOWN: u32 = 5;

/// Lives `count` lives.
pub async fn measure(
    client: &Client,
    platform: &PlatformPaths,
    count: u32,
    report: &mut Report,
    plots: &Path,
) -> Result<()> {
    let before = platform.footprint(client).await?;
    platform.sample_servers("before these lives", report)?;
    let mut plot = Plot::new("One life after another", "lives before it", "create, exec and delete, ms");
    let (tenth, bin) = ((count / 10).max(1), (count / BINS).max(1));
    let mut failures = 0;
    for nth in 0..count {
        let took = match live(client).await {
            Ok(took) => took,
            Err(error) => {
                failures += 1;
                if failures <= SHOWN {
                    eprintln!("life {nth}: {error:#}");
                }
                continue;
            }
        };
        report.sample(LIFE, "ms", took);
        plot.point("life", f64::from(nth / bin * bin), took);
        if nth < tenth {
            report.sample(FIRST, "ms", took);
        } else if nth >= count - tenth {
            report.sample(LAST, "ms", took);
        }
    }
    report.sample(&format!("failures of {count} lives"), "count", f64::from(failures));
    platform.sample_servers("after these lives", report)?;
    let mut leaked = 0;
    for (kind, more) in platform.leaks(client, &before).await? {
        leaked += more;
        report.sample(&format!("left by {count} lives: {kind}"), "count", more as f64);
    }
    report.bar(&format!("failures of {count} lives"), Some(f64::from(failures)), 0.0);
    report.bar(&format!("things left by {count} lives"), Some(leaked as f64), 0.0);
    report.ratio_bar(LAST, FIRST, 1.1);
    plot.write(&plots.join("lives.svg"))
}

async fn live(client: &Client) -> Result<f64> {
    let began = Instant::now();
    let sandbox = create(client).await?;
    let ran = exec(client, &sandbox.id, "true").await;
    delete(client, &sandbox.id).await?;
    ran?;
    Ok(ms_since(began))
}
