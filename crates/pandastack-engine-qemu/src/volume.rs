//! Volumes: attached in place of the emulator's empty disk files.
//!
//! The emulator opens [`VOLUMES_MAX`] empty files when it starts ([`crate::command_line`]). To
//! attach a volume to a stopped machine, the preloaded library replaces the file's descriptor with
//! the image's; then the engine sets the device's size. In this order a guest never sees a disk
//! that is not the image.
//!
//! Setting the size needs an active block layer. The block layer is inactive in a process that
//! saved its state and has not run since, such as a zygote, so in a fork [`announce`] sets the size
//! after the machine runs. Nothing uses the disk before it has a size; and a disk that the parent
//! also had already has its size.
//!
//! Invariant: the image's open file is handed over rather than opened again, so that a lock on it
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

/// Sizes of the devices, by place; 0 for a place without a disk.
pub(crate) type Sizes = [u64; VOLUMES_MAX];

/// Attaches volumes to a stopped machine that has empty files in their places. Returns the machine's files
/// afterwards, and the new size of each place.
pub(crate) async fn attach(
    paths: &Paths,
    mut files: FileIdentities,
    volumes: Vec<Volume>,
) -> Result<(FileIdentities, Sizes)> {
    let mut sizes = Sizes::default();
    if volumes.is_empty() {
        return Ok((files, sizes));
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
        files.volumes[place] = FileIdentity::of(&volume.image, Path::new(&volume_serial(place)))?;
        sizes[place] = volume.bytes;
    }
    let images: Vec<_> = volumes.iter().map(|volume| volume.image.as_fd()).collect();
    shim_client::request(&paths.shim(), STEP, &Request::Replace { rules }, &images, COMMAND_MAX).await?;
    Ok((files, sizes))
}

/// Resizes the devices whose size changed.
pub(crate) async fn announce(qmp: &Qmp, had: &Sizes, sizes: &Sizes) -> Result<()> {
    for (place, bytes) in sizes.iter().enumerate().filter(|(place, bytes)| had[*place] != **bytes) {
        resize(qmp, place, *bytes).await?;
    }
    Ok(())
}

/// Resizes the device at `place`. A shorter image becomes that long; the device announces its size even if
/// it did not change.
pub(crate) async fn resize(qmp: &Qmp, place: usize, bytes: u64) -> Result<()> {
    let arguments = json!({ "node-name": volume_serial(place), "size": bytes });
    qmp.command("block_resize", arguments).await.map(drop)
}
