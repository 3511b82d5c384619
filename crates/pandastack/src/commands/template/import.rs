//! `pandastack template import`: builds a template from an exported one.
//!
//! The file is an image, so this is a build from an image, with the start command, ready check and size that
//! its labels name. The build checks the digests of its layers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::api::{CreateBuild, StartBuild};
use pandastack_types::limits::BUILD_CONTEXT_BYTES_MAX;

use super::build::{self, Order};
use super::labels;
use super::source::{FROM_FILES, Upload};
use crate::commands::wait::WaitArgs;
use crate::failure::Failure;
use crate::output::{Output, size};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File that `pandastack template export` wrote
    file: PathBuf,
    /// Template name
    #[arg(long)]
    name: String,
    /// Tag of this version, besides `latest`; can be repeated
    #[arg(long)]
    tag: Vec<String>,
    /// vCPUs of its sandboxes [default: as exported]
    #[arg(long, value_name = "COUNT")]
    cpu: Option<u32>,
    /// Memory of its sandboxes in MiB, a multiple of 128 [default: as exported]
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Refuses a file that no build takes, before anything is sent.
fn check_size(file: &Path) -> Result<()> {
    let found = std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    if found.len() > BUILD_CONTEXT_BYTES_MAX {
        let (file, max) = (file.display(), size(BUILD_CONTEXT_BYTES_MAX));
        let failure =
            Failure::new(format!("{file} has {}, and an import takes at most {max}", size(found.len())));
        return Err(failure
            .hint("push the image to a registry, and run `pandastack template build --from-image`")
            .into());
    }
    Ok(())
}

/// Runs the command.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    check_size(&args.file)?;
    let labelled = labels::read(&labels::of_file(&args.file)?)?;
    let request = CreateBuild {
        name: args.name,
        tags: args.tag,
        description: labelled.description,
        cpu: args.cpu.or(labelled.cpu),
        memory_mb: args.memory.or(labelled.memory_mb),
        ..CreateBuild::default()
    };
    let start = StartBuild {
        dockerfile: FROM_FILES.to_owned(),
        start_command: labelled.start_command,
        ready: labelled.ready,
        ..StartBuild::default()
    };
    let order = Order { request, start, files: Upload::Archive(args.file), wait: args.wait };
    build::submit(client, order, output).await
}
