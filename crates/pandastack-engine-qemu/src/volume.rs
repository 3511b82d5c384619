//! Durable disks of a stopped machine: put where the emulator has empty files.
//!
//! The emulator opens [`VOLUMES_MAX`] files of no length when it starts ([`crate::command_line`]). To attach a volume, the
//! device is first told its new size, on the empty file, and then the preloaded library puts the image's
//! descriptor over the file's. In this order the emulator never needs to write to the image itself, so one that is open
//! for reading only is attached in the same way; what a guest writes to that comes back as an error.
//!
//! What must hold: the machine is stopped, and the image's open file is handed over, not opened again, so that a lock on it
//! lasts until the process ends.

use std::os::fd::AsFd;
use std::path::Path;

use pandastack_engine::{EngineError, Result, VOLUMES_MAX, Volume, volume_serial};
use pandastack_qemu_shim::protocol::{List, Match, Request, Rule};
use serde_json::json;

use crate::endpoints::{FileIdentities, FileIdentity, Paths};
use crate::limits::COMMAND_MAX;
use crate::qmp::Qmp;
use crate::shim_client;

const STEP: &str = "attaching a volume";

/// Attaches volumes to a stopped machine that has none, and answers what its files are then.
pub(crate) async fn attach(
    qmp: &Qmp,
    paths: &Paths,
    mut files: FileIdentities,
    volumes: Vec<Volume>,
) -> Result<FileIdentities> {
    if volumes.is_empty() {
        return Ok(files);
    }
    if volumes.len() > VOLUMES_MAX {
        let detail = format!("{} volumes, and a machine has places for {VOLUMES_MAX}", volumes.len());
        return Err(EngineError::Vmm { step: STEP, detail });
    }
    let mut rules = List::EMPTY;
    for (place, volume) in volumes.iter().enumerate() {
        let FileIdentity { device, inode } = files.volumes[place];
        let rule = Rule { matches: Match::File { device, inode }, required: true };
        rules.push(rule).map_err(|_| EngineError::Vmm { step: STEP, detail: "too many rules".to_owned() })?;
        resize(qmp, place, volume.bytes).await?;
        files.volumes[place] = FileIdentity::of(&volume.image, Path::new(&volume_serial(place)))?;
    }
    let images: Vec<_> = volumes.iter().map(|volume| volume.image.as_fd()).collect();
    shim_client::request(&paths.shim(), STEP, &Request::Replace { rules }, &images, COMMAND_MAX).await?;
    Ok(files)
}

/// Tells the device at `place` its size. A shorter image becomes that long; the guest is told, also when nothing changed.
pub(crate) async fn resize(qmp: &Qmp, place: usize, bytes: u64) -> Result<()> {
    let arguments = json!({ "node-name": volume_serial(place), "size": bytes });
    qmp.command("block_resize", arguments).await.map(drop)
}
