//! The files and sockets of one machine: made by the engine, used by the emulator.
//!
//! The engine binds and listens itself, so a socket exists before the process does: connecting needs no retry, and a
//! forked process starts out connected.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use pandastack_engine::{
    EngineError, MachineFiles, RUNTIME_DIR_BYTES_MAX, Result, VOLUMES_MAX, volume_serial,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::shared_namespaces::SharedNamespaces;
use crate::tap;

/// Connections that may wait: only the agent connects.
const BACKLOG: i32 = 8;

/// Paths inside a machine's runtime directory.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    dir: PathBuf,
}

impl Paths {
    pub(crate) fn new(runtime_dir: &Path) -> Self {
        Self { dir: runtime_dir.to_owned() }
    }

    /// Control protocol of the emulator.
    pub(crate) fn qmp(&self) -> PathBuf {
        self.dir.join("qmp.sock")
    }

    /// Stream to the guest program.
    pub(crate) fn guest(&self) -> PathBuf {
        self.dir.join("guest.sock")
    }

    /// Control protocol of the preloaded library.
    pub(crate) fn shim(&self) -> PathBuf {
        self.dir.join("shim.sock")
    }

    /// The empty file at a place for a volume.
    pub(crate) fn no_volume(&self, place: usize) -> PathBuf {
        self.dir.join(volume_serial(place))
    }

    /// The emulator's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("qemu.log")
    }
}

/// Device and inode of a file: how it is recognised among the descriptors of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileIdentity {
    pub(crate) fn of(file: &File, path: &Path) -> Result<Self> {
        let metadata = file.metadata().map_err(EngineError::io("read the metadata of the file", path))?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// Files of a machine that a fork must replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentities {
    pub(crate) disk: FileIdentity,
    pub(crate) console: FileIdentity,
    pub(crate) log: FileIdentity,
    /// Identity of the file in each volume slot.
    pub(crate) volumes: [FileIdentity; VOLUMES_MAX],
}

/// The descriptors that belong to a machine.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) qmp: OwnedFd,
    pub(crate) guest: OwnedFd,
    pub(crate) shim: OwnedFd,
    pub(crate) disk: File,
    pub(crate) console: File,
    pub(crate) log: File,
    pub(crate) tap: OwnedFd,
    /// Empty files at the places of volumes.
    pub(crate) volumes: [File; VOLUMES_MAX],
    pub(crate) files: FileIdentities,
}

impl Endpoints {
    /// Opens and binds everything a place names.
    pub(crate) fn prepare(place: &mut MachineFiles, namespaces: &SharedNamespaces) -> Result<Self> {
        check_runtime_dir(&place.runtime_dir)?;
        let paths = Paths::new(&place.runtime_dir);
        let disk = OpenOptions::new().read(true).write(true).open(&place.disk);
        let disk = disk.map_err(EngineError::io("open the disk", &place.disk))?;
        let console =
            append(&place.console).map_err(EngineError::io("open the console file", &place.console))?;
        let log = append(&paths.log()).map_err(EngineError::io("open the emulator's log", paths.log()))?;
        let (volumes, volume_identities) = no_volumes(&paths)?;
        let files = FileIdentities {
            disk: FileIdentity::of(&disk, &place.disk)?,
            console: FileIdentity::of(&console, &place.console)?,
            log: FileIdentity::of(&log, &paths.log())?,
            volumes: volume_identities,
        };
        Ok(Self {
            qmp: listen_stream(&paths.qmp())
                .map_err(EngineError::io("bind the control socket", paths.qmp()))?,
            guest: listen_stream(&paths.guest())
                .map_err(EngineError::io("bind the guest socket", paths.guest()))?,
            shim: listen_packets(&paths.shim())
                .map_err(EngineError::io("bind the fork socket", paths.shim()))?,
            tap: tap::prepare(place.tap.take(), namespaces)?,
            disk,
            console,
            log,
            volumes,
            files,
        })
    }
}

/// Empty files of this machine alone: a fork recognises what to replace by its inode.
fn no_volumes(paths: &Paths) -> Result<([File; VOLUMES_MAX], [FileIdentity; VOLUMES_MAX])> {
    let mut files = Vec::with_capacity(VOLUMES_MAX);
    let mut identities = Vec::with_capacity(VOLUMES_MAX);
    for place in 0..VOLUMES_MAX {
        let path = paths.no_volume(place);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(EngineError::io("create the place of a volume", &path))?;
        identities.push(FileIdentity::of(&file, &path)?);
        files.push(file);
    }
    match (files.try_into(), identities.try_into()) {
        (Ok(files), Ok(identities)) => Ok((files, identities)),
        _ => Err(EngineError::Vmm { step: "making places for volumes", detail: "miscounted".to_owned() }),
    }
}

fn check_runtime_dir(dir: &Path) -> Result<()> {
    let len = dir.as_os_str().len();
    if len > RUNTIME_DIR_BYTES_MAX || !dir.is_absolute() {
        let detail =
            format!("{} must be absolute and at most {RUNTIME_DIR_BYTES_MAX} bytes long", dir.display());
        return Err(EngineError::Vmm { step: "using the runtime directory", detail });
    }
    Ok(())
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// A listening stream socket, for the agent's user alone.
fn listen_stream(path: &Path) -> io::Result<OwnedFd> {
    listen(path, SocketType::STREAM)
}

/// A listening socket that keeps message boundaries.
fn listen_packets(path: &Path) -> io::Result<OwnedFd> {
    listen(path, SocketType::SEQPACKET)
}

fn listen(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Set before it listens, so that no client can connect while the mode is wider.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a stream socket; waits for nothing, since a listener takes connections before it accepts them.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_pathname(path)?)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Both ends of a connection through `listener`, which listens at `path`: ours, and the one its owner would accept.
pub(crate) fn connect_and_accept(listener: &OwnedFd, path: &Path) -> io::Result<(UnixStream, OwnedFd)> {
    let ours = connect(path)?;
    let accepting = UnixListener::from(listener.as_fd().try_clone_to_owned()?);
    let (theirs, _) = accepting.accept()?;
    Ok((ours, theirs.into()))
}
