//! The messages of all calls.
//!
//! Control payloads are JSON. Unknown fields are ignored, fields added later are optional and left out
//! when unset, names and meanings never change: a guest frozen in a snapshot must understand next year's
//! host. `schema/generation-<n>.json` freezes one sample of every message.

mod error;
mod file;
mod identity;
mod machine;
mod process;
mod raw;
mod tree;
mod volume;

pub use error::{ErrorBody, ErrorCode};
pub use file::{FileEntry, FileKind, FileRead, FileWrite, FileWritten, WriteMode};
pub use identity::{GuestSetup, Identity, IdentityApplied};
pub use machine::{CpuStats, DiskStats, ListeningPort, MemoryStats, NetworkStats, Pong, Stats};
pub use process::{
    Attach, Command, ExitStatus, OutputStream, ProcessId, ProcessInfo, ProcessLimits, ProcessSpec, Started,
    StdinWrite, StdinWritten, TerminalSize,
};
pub use raw::{Entropy, RawPath, Secret};
pub use tree::{Change, ChangeKind, FileAttributes, FileGrep, FileWalk, FileWatch, GrepMatch, WatchPosition};
pub use volume::VolumeMount;

use serde::{Deserialize, Serialize};

/// First frame in each direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The sender's [`crate::GENERATION`]; both sides then speak the lower one.
    pub generation: u32,
    /// The sender's package version, for display.
    pub version: String,
    /// The guest's kernel boot id; empty from the host. It survives snapshots and forks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
}

/// Every call that the host can make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Answers [`Pong`].
    Ping,
    /// Starts a process; answers [`Started`].
    Start(ProcessSpec),
    /// Starts a process and attaches to it: [`Event::Started`], output, then [`ExitStatus`].
    Exec(ProcessSpec),
    /// Follows a process's output from two offsets: output, then [`ExitStatus`].
    Attach(Attach),
    /// Data frames go to a process's standard input; answers [`StdinWritten`].
    Stdin(StdinWrite),
    /// Sends a signal to a process.
    Signal {
        /// The process.
        process: ProcessId,
        /// The signal's number. 9 kills everything that the process started, too.
        signal: i32,
    },
    /// Changes the size of a process's terminal.
    Resize {
        /// The process.
        process: ProcessId,
        /// The new size.
        size: TerminalSize,
    },
    /// Disconnects a process's terminal, as when a line drops: its programs get SIGHUP and read no
    /// more.
    HangUp {
        /// The process.
        process: ProcessId,
    },
    /// [`Event::Processes`] pages.
    Processes,
    /// [`Event::File`], then the file's bytes.
    FileRead(FileRead),
    /// Data frames are the file's content; answers [`FileWritten`].
    FileWrite(FileWrite),
    /// Answers [`FileEntry`].
    FileStat {
        /// The path; relative ones start at the root directory.
        path: RawPath,
        /// Describe the link itself instead of its target.
        #[serde(default, skip_serializing_if = "is_false")]
        no_follow: bool,
    },
    /// [`Event::Entries`] pages, unsorted.
    FileList {
        /// The directory.
        path: RawPath,
    },
    /// Creates a directory.
    FileMkdir {
        /// The directory.
        path: RawPath,
        /// Make missing parents, and be content if it exists.
        #[serde(default, skip_serializing_if = "is_false")]
        parents: bool,
        /// Permission bits; 0755 when unset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
        /// Owner; root when unset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
    },
    /// Removes a file, a link or a directory.
    FileRemove {
        /// Path to remove.
        path: RawPath,
        /// With everything below it.
        #[serde(default, skip_serializing_if = "is_false")]
        recursive: bool,
    },
    /// Renames, replacing a file that is in the way.
    FileRename {
        /// The old path.
        from: RawPath,
        /// The new path.
        to: RawPath,
        /// Make missing parents of the new path.
        #[serde(default, skip_serializing_if = "is_false")]
        make_parents: bool,
    },
    /// Copies a file or a tree, with permissions and owners, replacing files that are in the way.
    FileCopy {
        /// The original.
        from: RawPath,
        /// The copy's own path, not its parent directory. Missing parents are created.
        to: RawPath,
    },
    /// Changes permissions and owners.
    FileSetAttributes(FileAttributes),
    /// [`Event::Entries`] pages with relative paths, then [`Event::WalkEnded`].
    FileWalk(FileWalk),
    /// [`Event::Matches`] pages, then [`Event::WalkEnded`].
    FileGrep(FileGrep),
    /// The bytes of a tar archive of a directory's content, or of one file.
    FilePack {
        /// The directory or file.
        path: RawPath,
    },
    /// Data frames are a tar archive that is unpacked into a directory; answers [`FileWritten`].
    FileUnpack {
        /// The directory; made if it is missing. Nothing is written outside of it.
        path: RawPath,
        /// Owner of the unpacked files; root when unset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
    },
    /// [`Event::Watching`], then [`Event::Changes`].
    FileWatch(FileWatch),
    /// [`Event::Ports`] pages.
    Ports,
    /// Freezes every user process, then syncs the file system if requested.
    Quiesce {
        /// Write dirty pages to the disk before answering.
        #[serde(default, skip_serializing_if = "is_false")]
        sync: bool,
    },
    /// Thaws user processes without changes.
    Thaw,
    /// Gives this machine its own identity: entropy, clock, names, environment; then thaws. Answers
    /// [`IdentityApplied`].
    SetIdentity(Identity),
    /// Answers [`Stats`].
    Stats,
    /// Mounts the durable disk with a serial number, once it appears, and makes its file system as large as
    /// the disk. Does nothing if it is already mounted there.
    VolumeMount(VolumeMount),
    /// Makes the file system of a mounted durable disk as large as the disk, once the disk has that size.
    VolumeGrow {
        /// Serial number of the disk.
        serial: String,
        /// New size in bytes.
        bytes: u64,
    },
    /// Ends every process, writes the disk out and powers off. There may be no reply.
    Shutdown {
        /// Milliseconds between SIGTERM and SIGKILL.
        #[serde(default)]
        grace_ms: u32,
    },
}

/// An event that the guest sends before the reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The process of an exec runs.
    Started(Started),
    /// Output was dropped because it was not read in time.
    Gap {
        /// The stream.
        stream: OutputStream,
        /// First missing byte.
        from: u64,
        /// First byte after the gap.
        to: u64,
    },
    /// The file of a read, before its bytes.
    File {
        /// The file's description.
        file: FileEntry,
    },
    /// Some entries of a directory.
    Entries {
        /// A page of the list.
        entries: Vec<FileEntry>,
    },
    /// Some processes.
    Processes {
        /// A page of the list.
        processes: Vec<ProcessInfo>,
    },
    /// Some listening ports.
    Ports {
        /// A page of the list.
        ports: Vec<ListeningPort>,
    },
    /// Some lines that match.
    Matches {
        /// A page of the list.
        matches: Vec<GrepMatch>,
    },
    /// A walk or search has sent all it will.
    WalkEnded {
        /// Entries visited.
        visited: u64,
        /// Whether the result was cut at a limit.
        #[serde(default, skip_serializing_if = "is_false")]
        truncated: bool,
    },
    /// A watch is in place: what happens from now on is reported.
    Watching {
        /// The watch and the change after which it continues.
        position: WatchPosition,
        /// Whether the requested watch continues and nothing was missed.
        #[serde(default, skip_serializing_if = "is_false")]
        resumed: bool,
    },
    /// Some changes, oldest first.
    Changes {
        /// A page of the list.
        changes: Vec<Change>,
    },
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// Success.
    Ok(T),
    /// Failure, with the reason.
    Error(ErrorBody),
}

/// A reply that carries nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

fn is_false(value: &bool) -> bool {
    !*value
}
