//! Unpacking a tar archive into a directory, and nowhere else.
//!
//! Every path is resolved by the kernel beneath the directory ([`ResolveFlag::RESOLVE_BENEATH`]),
//! so neither `..` nor a link from the archive itself leads out of it, even if another process
//! changes the directory at the same time. Set-id bits are dropped; devices are refused. Files that
//! were unpacked before a refusal stay.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, fchmod, futimens, mkdirat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, linkat, symlinkat, unlinkat};
use pandastack_guest_proto::message::{ErrorBody, ErrorCode, RawPath};

use super::absolute::absolute;
use super::errors::refusal;
use super::sink::Sink;
use super::tar_stream::{Entry, Item, Kind, TarStream};
use super::write::{DIRECTORY_MODE_DEFAULT, make_parents};
use crate::process::User;

/// Permission bits to keep.
const MODE_KEPT: u32 = 0o1777;

/// An archive being unpacked.
#[derive(Debug)]
pub(crate) struct UnpackSink {
    path: RawPath,
    user: Option<String>,
    machine_root: PathBuf,
    stream: TarStream,
    target: Option<Target>,
    bytes: u64,
}

impl UnpackSink {
    pub(crate) fn new(path: RawPath, user: Option<String>, machine_root: PathBuf) -> Self {
        Self { path, user, machine_root, stream: TarStream::default(), target: None, bytes: 0 }
    }

    fn open(&mut self) -> Result<(), ErrorBody> {
        if self.target.is_some() {
            return Ok(());
        }
        let path = absolute(&self.path)?;
        let user = self.user.as_deref().map(|user| User::find(&self.machine_root, user)).transpose()?;
        make_parents(&path, DIRECTORY_MODE_DEFAULT, user.as_ref())?;
        let directory = File::open(&path)
            .and_then(|file| match file.metadata()?.is_dir() {
                true => Ok(OwnedFd::from(file)),
                false => Err(std::io::ErrorKind::NotADirectory.into()),
            })
            .map_err(|error| refusal("unpack into", &path, &error))?;
        let owner = user.map_or((0, 0), |user| (user.credentials.uid, user.credentials.gid));
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        self.target = Some(Target { directory, uid, gid, parent: None, file: None });
        Ok(())
    }
}

impl Sink for UnpackSink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ErrorBody> {
        self.open()?;
        self.bytes += bytes.len() as u64;
        let Some(target) = &mut self.target else { return Ok(()) };
        self.stream.feed(bytes, |item| match item {
            Item::Entry(entry) => target.begin(entry),
            Item::Body(bytes) => target.body(bytes),
            Item::FileEnd => target.end_file(),
        })
    }

    fn finish(&mut self) -> Result<u64, ErrorBody> {
        self.stream.finish()?;
        Ok(self.bytes)
    }
}

/// The directory that is unpacked into.
#[derive(Debug)]
struct Target {
    directory: OwnedFd,
    uid: Uid,
    gid: Gid,
    /// The directory of the last entry; the next one is often there too.
    parent: Option<(PathBuf, OwnedFd)>,
    file: Option<(File, Entry)>,
}

impl Target {
    fn begin(&mut self, entry: Entry) -> Result<(), ErrorBody> {
        let Some((parent, name)) = split(&entry.path)? else { return Ok(()) };
        let fail = |errno| refuse(&entry.path, errno);
        if self.parent.as_ref().is_none_or(|(known, _)| *known != parent) {
            let opened = self.make_parent(&parent).map_err(fail)?;
            self.parent = Some((parent.clone(), opened));
        }
        let Some((_, directory)) = &self.parent else { return Ok(()) };
        match &entry.kind {
            Kind::Directory => self.directory(directory, &name, entry.mode).map_err(fail),
            Kind::Symlink { target } => self.symlink(directory, &name, target).map_err(fail),
            Kind::HardLink { target } => {
                let Some((from, from_name)) = split(target)? else { return Err(fail(Errno::EISDIR)) };
                self.hard_link(&from, &from_name, directory, &name).map_err(fail)
            }
            Kind::File { .. } => {
                let file = self.new_file(directory, &name).map_err(fail)?;
                self.file = Some((file, entry));
                Ok(())
            }
        }
    }

    fn body(&mut self, bytes: &[u8]) -> Result<(), ErrorBody> {
        let Some((file, entry)) = &mut self.file else { return Ok(()) };
        file.write_all(bytes)
            .map_err(|error| refusal("unpack", Path::new(OsStr::from_bytes(&entry.path)), &error))
    }

    fn end_file(&mut self) -> Result<(), ErrorBody> {
        let Some((file, entry)) = self.file.take() else { return Ok(()) };
        let seconds = i64::try_from(entry.mtime_s).unwrap_or_default();
        let time = TimeSpec::new(seconds, 0);
        self.set_owner_and_mode(&file, entry.mode)
            .and_then(|()| futimens(&file, &time, &time))
            .map_err(|errno| refuse(&entry.path, errno))
    }

    fn set_owner_and_mode(&self, file: impl AsFd, mode: u32) -> Result<(), Errno> {
        fchown(file.as_fd(), Some(self.uid), Some(self.gid))?;
        fchmod(file.as_fd(), Mode::from_bits_truncate(mode & MODE_KEPT))
    }

    fn open_beneath(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        if path.as_os_str().is_empty() {
            return self.directory.try_clone().map_err(|_| Errno::EMFILE);
        }
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&self.directory, path, how)
    }

    /// Opens a directory, creating missing parents.
    fn make_parent(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        match self.open_beneath(path, flags) {
            Err(Errno::ENOENT) => {}
            opened => return opened,
        }
        let mut sofar = PathBuf::new();
        let mut directory = self.open_beneath(Path::new(""), flags)?;
        for name in path.components() {
            sofar.push(name);
            directory = match self.open_beneath(&sofar, flags) {
                Err(Errno::ENOENT) => {
                    mkdirat(&directory, name.as_os_str(), Mode::from_bits_truncate(DIRECTORY_MODE_DEFAULT))?;
                    let made = self.open_beneath(&sofar, flags | OFlag::O_NOFOLLOW)?;
                    fchownat(&made, "", Some(self.uid), Some(self.gid), AtFlags::AT_EMPTY_PATH)?;
                    made
                }
                opened => opened?,
            };
        }
        Ok(directory)
    }

    fn directory(&self, parent: &OwnedFd, name: &OsStr, mode: u32) -> Result<(), Errno> {
        let made = match mkdirat(parent, name, Mode::from_bits_truncate(0o700)) {
            Err(Errno::EEXIST) => false,
            made => made.map(|()| true)?,
        };
        // An existing directory is not changed; if a link or file has the name, later use of it
        // fails the checks.
        if !made {
            return Ok(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        self.set_owner_and_mode(openat(parent, name, flags, Mode::empty())?, mode)
    }

    fn new_file(&self, parent: &OwnedFd, name: &OsStr) -> Result<File, Errno> {
        make_way(parent, name)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(parent, name, flags, Mode::from_bits_truncate(0o600))?.into())
    }

    fn symlink(&self, parent: &OwnedFd, name: &OsStr, target: &[u8]) -> Result<(), Errno> {
        make_way(parent, name)?;
        symlinkat(target, parent, name)?;
        fchownat(parent, name, Some(self.uid), Some(self.gid), AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    fn hard_link(&self, from: &Path, from_name: &OsStr, parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
        let from = self.open_beneath(from, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        make_way(parent, name)?;
        linkat(&from, from_name, parent, name, AtFlags::empty())
    }
}

/// Removes the existing entry of that name, unless it is a directory.
fn make_way(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        removed => removed,
    }
}

/// Directory and name of an entry; `None` for the top itself.
fn split(path: &[u8]) -> Result<Option<(PathBuf, OsString)>, ErrorBody> {
    let mut parts = Vec::new();
    for part in Path::new(OsStr::from_bytes(path)).components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                let why = "names must be relative and without `..`";
                return Err(outside(path, why));
            }
        }
    }
    let Some(name) = parts.pop() else { return Ok(None) };
    Ok(Some((parts.iter().collect(), name.to_owned())))
}

fn outside(path: &[u8], why: &str) -> ErrorBody {
    let shown: String = String::from_utf8_lossy(path).chars().take(200).collect();
    let message = format!("entry {shown:?} would be unpacked outside of the directory: {why}");
    ErrorBody::new(ErrorCode::Invalid, message)
}

fn refuse(path: &[u8], errno: Errno) -> ErrorBody {
    match errno {
        // The kernel's errors for a path that leads outside.
        Errno::EXDEV => outside(path, "a link on its way leads there"),
        Errno::ELOOP => outside(path, "links on its way lead nowhere"),
        errno => refusal("unpack", Path::new(OsStr::from_bytes(path)), &errno.into()),
    }
}
