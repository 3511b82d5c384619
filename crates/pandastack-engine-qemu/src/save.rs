//! Saves a paused machine to files.
//!
//! Memory is copied after device state, so that the copy includes everything that saving a device
//! writes into guest memory.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pandastack_engine::private_pages::{Mapping, copy_private_pages};
use pandastack_engine::{EngineError, Result, SaveStats, SaveTarget};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use crate::limits::{STATE_BYTES_MAX, STATE_MAX};
use crate::machine::QemuMachine;
use crate::migration::{self, DESCRIPTOR_NAME};

/// Saves a machine. The caller holds its turn.
pub(crate) async fn save(machine: &QemuMachine, target: &SaveTarget) -> Result<SaveStats> {
    let started = Instant::now();
    machine.require_paused("saving the machine").await?;
    leave_last_save(machine).await?;
    let state_bytes = save_state(machine, &target.state).await?;
    let memory_bytes_written = save_memory(machine, target.memory.clone(), target.base.clone()).await?;
    Ok(SaveStats { state_bytes, memory_bytes_written, took: started.elapsed() })
}

/// A machine that was saved is in a state in which QEMU does not save it again, and only running
/// leads out of it. The user processes were frozen before the pause, so nothing in the machine sees
/// that moment.
async fn leave_last_save(machine: &QemuMachine) -> Result<()> {
    let status = machine.qmp.command("query-status", json!({})).await?;
    if status.get("status").and_then(serde_json::Value::as_str) != Some("postmigrate") {
        return Ok(());
    }
    machine.continue_guest().await?;
    machine.stop().await
}

async fn save_state(machine: &QemuMachine, path: &Path) -> Result<u64> {
    let failed = |action| EngineError::io(action, path);
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let file = tokio::fs::File::from_std(file.map_err(failed("create the state file"))?);
    let (reading, writing) = migration::pipe().map_err(failed("make a pipe for"))?;
    rustix::io::ioctl_fionbio(&reading, true).map_err(|error| failed("make a pipe for")(error.into()))?;
    let reading = Receiver::from_owned_fd(reading).map_err(failed("make a pipe for"))?;
    let mut events = machine.qmp.subscribe();
    machine.qmp.give_descriptor(DESCRIPTOR_NAME, writing.as_fd()).await?;
    drop(writing);
    let begun = machine.qmp.command("migrate", json!({ "uri": format!("fd:{DESCRIPTOR_NAME}") })).await;
    if let Err(error) = begun {
        // Close it: a descriptor left in the machine would interfere with every fork.
        machine.qmp.command("closefd", json!({ "fdname": DESCRIPTOR_NAME })).await?;
        return Err(error);
    }
    let step = "saving device state";
    let both = async {
        let copied = copy(reading, file).await.map_err(failed("write the state file"))?;
        migration::wait(&mut events, step).await?;
        Ok(copied)
    };
    let late = EngineError::Deadline { step, limit_ms: STATE_MAX.as_millis() as u64 };
    timeout(STATE_MAX, both).await.unwrap_or(Err(late))
}

/// Copies the whole stream, up to the limit, and returns its length.
async fn copy(reading: Receiver, mut file: tokio::fs::File) -> std::io::Result<u64> {
    let mut limited = reading.take(STATE_BYTES_MAX + 1);
    let copied = tokio::io::copy(&mut limited, &mut file).await?;
    file.flush().await?;
    if copied > STATE_BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "the device state is larger than {STATE_BYTES_MAX} bytes"
        )));
    }
    Ok(copied)
}

/// Writes the machine's own pages that differ from `base` to its clone at `path`. Returns the bytes written.
async fn save_memory(machine: &QemuMachine, path: PathBuf, base: PathBuf) -> Result<u64> {
    let (process, address, bytes) =
        (machine.process.clone(), machine.details.ram_address, machine.record.shape.memory_bytes());
    let copy = move || {
        let file = open_memory(&path, bytes)?;
        let original = File::open(&base).map_err(EngineError::io("open the base memory", &base))?;
        let mapping = Mapping { address, bytes, file_offset: 0 };
        copy_private_pages((process.pid, process.descriptor()), mapping, &file, &original)
            .map_err(EngineError::io("copy guest memory to", path))
    };
    tokio::task::spawn_blocking(copy).await.unwrap_or_else(|error| {
        Err(EngineError::Vmm { step: "copying guest memory", detail: error.to_string() })
    })
}

fn open_memory(path: &Path, bytes: u64) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(EngineError::io("open the memory file", path))?;
    let len = file.metadata().map_err(EngineError::io("read the metadata of the memory file", path))?.len();
    if len == bytes {
        return Ok(file);
    }
    let detail =
        format!("{} has {len} bytes instead of {bytes}: clone the machine's base memory", path.display());
    Err(EngineError::Vmm { step: "copying guest memory", detail })
}
