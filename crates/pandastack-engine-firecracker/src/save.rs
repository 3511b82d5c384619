//! Saving a paused machine.
//!
//! A diff snapshot holds the pages written since the last snapshot, load or start. Firecracker
//! writes them in place, so the result is complete only if the target is a clone of the file with
//! all earlier pages:
//!
//! | target is a clone of | method |
//! |---|---|
//! | the last save, or the base if there was none | diff |
//! | anything else, machine was loaded | diff, then the process's private pages that it lacks |
//! | anything else, machine was booted | full: anonymous memory cannot be distinguished from a base |

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use pandastack_engine::private_pages::{Mapping, copy_private_pages};
use pandastack_engine::{EngineError, Result, SaveStats, SaveTarget};

use crate::api::types::{SnapshotCreate, SnapshotType};
use crate::devices::{SAVED_MEMORY, SAVED_STATE};
use crate::machine::{FirecrackerMachine, LockedState, Phase};
use crate::root::{Access, PlacedFile, blocking, take_back};

const STEP: &str = "saving the machine";

/// Identity of a file and its contents. Inode numbers are reused, and modification times tell the
/// files apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    /// Identity of the file at a path.
    pub(crate) fn of_path(path: &Path) -> Result<Self> {
        let metadata =
            fs::metadata(path).map_err(EngineError::io("read the metadata of the memory file", path))?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { device: metadata.dev(), inode: metadata.ino(), modified })
    }
}

/// Method that completes the memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// A diff snapshot.
    Diff,
    /// A diff snapshot, then private pages that earlier snapshots wrote elsewhere.
    DiffAndPrivatePages,
    /// A full snapshot.
    Full,
}

/// Saves a machine. The caller holds the operation lock.
pub(crate) async fn save(
    machine: &FirecrackerMachine,
    turn: &mut LockedState,
    target: SaveTarget,
) -> Result<SaveStats> {
    let started = Instant::now();
    require_paused(turn.phase)?;
    let method = choose(machine, turn, &target)?;
    let (state, memory) = open_target(machine, &target)?;
    let kept = [&state, &memory].map(|placed| (placed.file.try_clone(), placed.path.clone()));
    let written_before = bytes_written(machine.record.pid);
    // A failed snapshot may already have cleared its record of dirty pages.
    turn.saved_in = None;
    let outcome = match machine.root.place(vec![state, memory], Vec::new()).await {
        Ok(()) => create(machine, method).await,
        Err(error) => Err(error),
    };
    // A failed snapshot may have reset the guest's connections, too.
    machine.drop_lost_stream();
    let removed = machine.root.remove([SAVED_STATE, SAVED_MEMORY]).await;
    for (file, path) in kept {
        take_back(&file.map_err(EngineError::io("restore the owner of the file", &path))?, &path)?;
    }
    outcome.and(removed)?;
    turn.phase = Phase::Paused { plain: false };
    let copied = match method {
        Method::DiffAndPrivatePages => copy_missing(machine, &target).await?,
        _ => 0,
    };
    turn.saved_in = Some(FileIdentity::of_path(&target.memory)?);
    let state_bytes =
        fs::metadata(&target.state).map_err(EngineError::io("read the metadata of", &target.state))?.len();
    let written = bytes_written(machine.record.pid).saturating_sub(written_before + state_bytes);
    Ok(SaveStats { state_bytes, memory_bytes_written: written + copied, took: started.elapsed() })
}

fn require_paused(phase: Phase) -> Result<()> {
    let detail = match phase {
        Phase::Paused { .. } => return Ok(()),
        Phase::Running => "the machine is running; pause it first",
        Phase::Configured => "the machine was not started yet",
        Phase::Unknown => "the state of the machine is unknown",
    };
    Err(EngineError::Vmm { step: STEP, detail: detail.to_owned() })
}

fn choose(machine: &FirecrackerMachine, turn: &LockedState, target: &SaveTarget) -> Result<Method> {
    let base = FileIdentity::of_path(&target.base)?;
    Ok(match turn.saved_in {
        Some(file) if file == base => Method::Diff,
        _ if machine.details.loaded => Method::DiffAndPrivatePages,
        _ => Method::Full,
    })
}

/// Opens both files of a target. Firecracker would truncate a memory file of another length, so that
/// is refused here.
fn open_target(machine: &FirecrackerMachine, target: &SaveTarget) -> Result<(PlacedFile, PlacedFile)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&target.state);
    let file = file.map_err(EngineError::io("create the state file", &target.state))?;
    let name = SAVED_STATE.to_owned();
    let state = PlacedFile { name, path: target.state.clone(), file, access: Access::Own };
    let memory = PlacedFile::open(SAVED_MEMORY, &target.memory, Access::Own)?;
    let length = memory
        .file
        .metadata()
        .map_err(EngineError::io("read the metadata of the memory file", &target.memory))?
        .len();
    let expected = machine.record.shape.memory_bytes();
    if length == expected {
        return Ok((state, memory));
    }
    let path = target.memory.display();
    let detail = format!("{path} has {length} bytes instead of {expected}: clone the machine's base memory");
    Err(EngineError::Vmm { step: STEP, detail })
}

async fn create(machine: &FirecrackerMachine, method: Method) -> Result<()> {
    let snapshot_type = match method {
        Method::Diff | Method::DiffAndPrivatePages => SnapshotType::Diff,
        Method::Full => SnapshotType::Full,
    };
    let snapshot = SnapshotCreate {
        snapshot_type,
        snapshot_path: SAVED_STATE.to_owned(),
        mem_file_path: SAVED_MEMORY.to_owned(),
    };
    machine.control.checked(STEP, machine.control.api.create_snapshot(&snapshot)).await
}

/// Copies private pages that the memory file lacks. Returns the bytes written.
async fn copy_missing(machine: &FirecrackerMachine, target: &SaveTarget) -> Result<u64> {
    let process = machine.control.process.clone();
    let (pid, path, base) = (process.pid, target.memory.clone(), machine.record.base_memory.clone());
    let expected = machine.record.shape.memory_bytes();
    let copy = move || {
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file: File = file.map_err(EngineError::io("open the memory file", &path))?;
        let mut written = 0;
        for mapping in mappings(pid, FileIdentity::of_path(&base)?.inode, expected)? {
            let copied = copy_private_pages((pid, process.descriptor()), mapping, &file, &file);
            written += copied.map_err(EngineError::io("copy guest memory to", &path))?;
        }
        Ok(written)
    };
    blocking("copying guest memory", copy).await
}

/// The guest memory of a process: all its mappings of the base file.
fn mappings(pid: u32, inode: u64, expected: u64) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let text = fs::read_to_string(&path).map_err(EngineError::io("read the memory map", &path))?;
    let found = parse_mappings(&text, inode);
    let bytes: u64 = found.iter().map(|mapping| mapping.bytes).sum();
    if bytes == expected {
        return Ok(found);
    }
    let detail = format!("process {pid} has {bytes} bytes of its base memory mapped instead of {expected}");
    Err(EngineError::Vmm { step: "copying guest memory", detail })
}

/// Parses lines such as `7f00-7f10 rw-p 00001000 08:01 42 /memory`.
fn parse_mappings(text: &str, inode: u64) -> Vec<Mapping> {
    let parse = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let file_offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        let found: u64 = fields.nth(1)?.parse().ok()?;
        let mapping = Mapping { address: start, bytes: end.checked_sub(start)?, file_offset };
        (found == inode).then_some(mapping)
    };
    text.lines().filter_map(parse).collect()
}

/// Bytes a process has written so far, from `/proc/<pid>/io`; 0 if unavailable.
fn bytes_written(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("wchar:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_the_base_file_are_parsed_with_their_offsets() {
        let text = "7f0000000000-7f0000200000 rw-p 00000000 08:01 42                     /memory\n\
                    7f0000200000-7f0000201000 rw-p 00000000 00:00 0 \n\
                    7f0000400000-7f0000500000 rw-p 00200000 08:01 42                     /memory\n\
                    7f0000600000-7f0000700000 r--p 00000000 08:01 43                     /other\n\
                    broken\n";
        let mapping = |address, bytes, file_offset| Mapping { address, bytes, file_offset };
        assert_eq!(
            parse_mappings(text, 42),
            [mapping(0x7f00_0000_0000, 0x20_0000, 0), mapping(0x7f00_0040_0000, 0x10_0000, 0x20_0000)]
        );
    }
}
