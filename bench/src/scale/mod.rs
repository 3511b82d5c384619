//! Limits of one host: many sandboxes one after another, many machines at once, many streams, large
//! files.
//!
//! Each part can be run alone. Resources are counted before and after each part, so a leak shows
//! where it was made. The targets are in `bench/README.md`.

mod bursts;
mod churn;
mod footprint;
mod idle;
mod sandbox;
mod streams;
mod transfer;

use std::path::Path;

use anyhow::{Context, Result};
use pandastack_client::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::api::{delete, exec};
use crate::report::Report;

pub use footprint::PlatformPaths;
use sandbox::create;

/// Open files of this program: a stream has a connection.
const DESCRIPTORS: u64 = 16_384;

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Lives one after another
    Churn,
    /// Machines that are there and do nothing
    Idle,
    /// Creates at once
    Bursts,
    /// Streams at once
    Streams,
    /// A large file up and down
    Transfer,
}

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Sandboxes made, used and deleted one after another.
    pub lives: u32,
    /// Idle sandboxes at once.
    pub idle: u32,
    /// Creates with each number of callers.
    pub creates: u32,
    /// Streams at once, and the sandboxes they are spread over.
    pub streams: (u32, u32),
    /// Size of the file.
    pub file_mib: u32,
}

impl Plan {
    /// Minutes on an emulated machine.
    pub const QUICK: Plan = Plan { lives: 500, idle: 100, creates: 100, streams: (200, 10), file_mib: 256 };
    /// For publication.
    pub const FULL: Plan =
        Plan { lives: 10_000, idle: 500, creates: 400, streams: (1000, 50), file_mib: 1024 };
}

/// Measures those parts.
pub async fn measure(
    client: &Client,
    platform: &PlatformPaths,
    plan: Plan,
    parts: &[Part],
    report: &mut Report,
    plots: &Path,
) -> Result<()> {
    raise_descriptors()?;
    warm_up(client).await?;
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    if wanted(Part::Idle) {
        idle::measure(client, platform, plan.idle, report, plots).await.context("idle sandboxes")?;
    }
    if wanted(Part::Churn) {
        churn::measure(client, platform, plan.lives, report, plots)
            .await
            .context("lives one after another")?;
    }
    if wanted(Part::Bursts) {
        bursts::measure(client, plan.creates, report).await.context("creates at once")?;
    }
    if wanted(Part::Streams) {
        streams::measure(client, plan.streams, report).await.context("streams at once")?;
    }
    if wanted(Part::Transfer) {
        transfer::measure(client, platform, plan.file_mib, report, plots).await.context("a large file")?;
    }
    Ok(())
}

/// The first creates make the zygote and connections.
async fn warm_up(client: &Client) -> Result<()> {
    for _ in 0..3 {
        let sandbox = create(client).await?;
        exec(client, &sandbox.id, "true").await?;
        delete(client, &sandbox.id).await?;
    }
    Ok(())
}

/// Allows this program as many open files as it may have, up to those of many streams.
pub fn raise_descriptors() -> Result<()> {
    // No limit is `None`.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|now| now >= DESCRIPTORS) {
        return Ok(());
    }
    let wanted = maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    let raised = Rlimit { current: Some(wanted), maximum };
    setrlimit(Resource::Nofile, raised).context("raise the limit of open files")
}
