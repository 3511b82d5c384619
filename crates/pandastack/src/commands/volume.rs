//! `pandastack volume`: persistent disks that outlive sandboxes.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::api::{CreateVolume, PatchVolume, Volume};

use super::each::{each, show_each};
use super::runtime::with_client;
use super::wait::shown;
use crate::output::{Output, age, fields, size};

/// Message of an interrupted wait for a copy, which continues.
const COPIED: &str = "the copy is still made; `pandastack volume list` shows it";

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a volume
    Create {
        /// Volume name: lowercase letters, digits and `-`
        name: String,
        /// Size in MiB; disk space is allocated as data is written
        #[arg(long, value_name = "MIB", default_value_t = 1024)]
        size_mb: u64,
        /// Protect the volume from deletion until `pandastack volume protect NAME --off`
        #[arg(long)]
        protected: bool,
    },
    /// List volumes
    #[command(visible_alias = "ls")]
    List,
    /// Show volumes
    Get {
        /// Volume names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Grow a volume; works while it is attached
    Grow {
        /// Volume name
        name: String,
        /// New size in MiB
        size_mb: u64,
    },
    /// Create a read-only snapshot of a volume
    Snapshot {
        /// Volume name
        name: String,
        /// Snapshot name [default: volume name and time]
        #[arg(long = "name", alias = "as", value_name = "NAME")]
        own: Option<String>,
    },
    /// Clone a volume; works while it is attached
    Clone {
        /// Volume name
        name: String,
        /// Name of the clone
        copy: String,
    },
    /// Protect a volume from deletion
    Protect {
        /// Volume name
        name: String,
        /// Remove the protection
        #[arg(long)]
        off: bool,
    },
    /// Delete volumes and their data
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// Volume names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            let named = |volume: &Volume| volume.name.clone();
            match self {
                Command::Create { name, size_mb, protected } => {
                    let request = CreateVolume { name, size_mb, protected };
                    output.value(&client.create_volume(&request).await?, named)?;
                }
                Command::List => list(&client.list_volumes().await?, output)?,
                Command::Get { names } => {
                    let fetch = async |name: &str| Ok(client.get_volume(name).await?);
                    return show_each(&names, output, fetch, describe).await;
                }
                Command::Grow { name, size_mb } => {
                    let grow = async { Ok(client.grow_volume(&name, size_mb).await?) };
                    let background =
                        format!("the volume still grows; `pandastack volume get {name}` shows it");
                    output
                        .value(&shown(format!("Growing volume {name}"), &background, grow).await?, named)?;
                }
                Command::Snapshot { name, own } => {
                    let take = async { Ok(client.snapshot_volume(&name, own).await?) };
                    let what = format!("Taking a snapshot of volume {name}");
                    output.value(&shown(what, COPIED, take).await?, named)?;
                }
                Command::Clone { name, copy } => {
                    let clone = async { Ok(client.clone_volume(&name, &copy).await?) };
                    output.value(&shown(format!("Cloning volume {name}"), COPIED, clone).await?, named)?;
                }
                Command::Protect { name, off } => {
                    let request = PatchVolume { protected: Some(!off), ..PatchVolume::default() };
                    output.value(&client.change_volume(&name, &request).await?, named)?;
                }
                Command::Rm { names } => {
                    let delete = async |name: &str| {
                        client.delete_volume(name).await?;
                        Ok(name.to_owned())
                    };
                    return each(&names, output, delete).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn list(volumes: &[Volume], output: Output) -> Result<()> {
    let now = Timestamp::now();
    output.table(volumes, ["NAME", "SIZE", "USED", "ATTACHED TO", "AGE"], |volume| {
        [
            volume.name.clone(),
            size(volume.size_bytes),
            size(volume.used_bytes),
            holders(volume),
            age(volume.created_at, now),
        ]
    })
}

fn holders(volume: &Volume) -> String {
    let shown = volume
        .attached_to
        .iter()
        .map(|holder| format!("{}{}", holder.sandbox_id, if holder.read_only { " (read-only)" } else { "" }));
    let shown: Vec<_> = shown.collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

fn describe(volume: &Volume) -> String {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    fields(&[
        ("name", volume.name.clone()),
        ("id", volume.id.to_string()),
        ("size", size(volume.size_bytes)),
        ("used", size(volume.used_bytes)),
        ("host", volume.host.to_string()),
        ("generation", volume.generation.to_string()),
        ("attached to", holders(volume)),
        ("protected", yes(volume.protected)),
        ("deleted with its sandbox", yes(volume.delete_with_sandbox)),
        ("snapshot", yes(volume.snapshot)),
    ])
}
