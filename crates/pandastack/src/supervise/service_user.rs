//! The unprivileged user that control and edges run as.
//!
//! A role that is started as root opens the files that only root may read, hands over the files
//! that it writes, and becomes this user before it serves. It keeps no capability except binding
//! low ports, and only if it needs one.
//!
//! Must hold:
//! - A role that could not do its work as this user stays root and logs the reason.
//! - Files are handed over only below a directory that root owned and that the user cannot enter
//!   during the handover: files that it could have placed there must not become its own.

use std::fs::{self, Metadata, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::{Gid, Uid, getgrouplist, setgroups, setresgid, setresuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities};

use crate::failure::Failure;
use crate::settings::Settings;

/// Name in the setting for no user of its own.
pub const ROOT: &str = "root";
/// The user, if the machine has it.
const NAME: &str = "pandastack";
/// The user otherwise: below the numbers of machines, and above what distributions hand out.
const FALLBACK_ID: u32 = 0x6fff_ffff;
/// Mode of directories that others pass and do not list.
const PASSABLE: u32 = 0o711;
/// Capabilities that root needs to hand over files and become another user.
const CHANGING: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::DAC_OVERRIDE);
/// Ports from here on need no capability.
const PORT_OPEN_FIRST: u16 = 1024;

/// An unprivileged user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUser {
    name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Resources that a role uses after it became another user.
#[derive(Debug, Default)]
pub struct Needs {
    /// Directories that it alone writes; made if missing.
    pub directories: Vec<PathBuf>,
    /// The directories that the operator chose. They may have files of other users: handed over
    /// only if empty.
    pub chosen: Vec<PathBuf>,
    /// Files that it appends to; made if missing.
    pub files: Vec<PathBuf>,
    /// Logs, which it also renames.
    pub logs: Vec<PathBuf>,
    /// Files that it reads again.
    pub read: Vec<PathBuf>,
    /// The join secret, which root replaces while the role runs.
    pub secret: Option<PathBuf>,
    /// Addresses that it listens on.
    pub listen: Vec<SocketAddr>,
}

impl Needs {
    /// The same with absolute paths: the permissions of parent directories matter too.
    fn absolute(&self) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let all = |paths: &[PathBuf]| paths.iter().map(absolute).collect();
        Self {
            directories: all(&self.directories),
            chosen: all(&self.chosen),
            files: all(&self.files),
            logs: all(&self.logs),
            read: all(&self.read),
            secret: self.secret.as_ref().map(absolute),
            listen: self.listen.clone(),
        }
    }
}

/// The user that a role runs as.
#[derive(Debug)]
pub enum User {
    /// An unprivileged one.
    Service(ServiceUser),
    /// The user that started it: not root, or root by the operator's choice.
    AsStarted,
    /// Root, for this reason.
    Root(String),
}

impl User {
    /// Chooses the user of a role, and hands over the resources that it needs.
    pub fn prepare(settings: &Settings, needs: &Needs) -> Result<Self> {
        let needs = &needs.absolute();
        let Some(user) = ServiceUser::resolve(settings.run_as.as_deref())? else {
            reclaim(&needs.directories);
            return Ok(Self::AsStarted);
        };
        // An edge has no directory: it uses existing ones.
        if !needs.directories.is_empty() {
            make_passable(settings)?;
        }
        let prepared = match user.obstacle(needs) {
            Some(reason) => Err(reason),
            None => user.hand_over(needs).map_err(|error| format!("{error:#}")),
        };
        Ok(match prepared {
            Ok(()) => Self::Service(user),
            Err(reason) => {
                reclaim(&needs.directories);
                Self::Root(reason)
            }
        })
    }

    /// Logs the choice.
    pub fn log(&self, role: &str) {
        match self {
            Self::Service(user) => tracing::info!(user = user.name, "{role} runs without privileges"),
            Self::AsStarted => {}
            Self::Root(reason) => tracing::warn!(reason, "{role} runs as root"),
        }
    }
}

impl ServiceUser {
    /// The user that a setting names. `None` if this process is not root, or should stay root.
    pub fn resolve(setting: Option<&str>) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let found = match setting {
            None => nix::unistd::User::from_name(NAME),
            Some(text) => match text.parse() {
                Ok(0) => return Ok(None),
                Ok(number) => return Ok(Some(Self::numbered(number))),
                Err(_) => nix::unistd::User::from_name(text),
            },
        };
        let found = found.context("cannot read the users of this machine")?;
        match (found, setting) {
            (Some(user), _) if user.uid.is_root() => Ok(None),
            (Some(user), _) => Self::named(user).map(Some),
            (None, None) => Ok(Some(Self::numbered(FALLBACK_ID))),
            (None, Some(name)) => {
                let failure = Failure::new(format!("user `{name}` of --run-as not found"));
                let create = "useradd --system --user-group --shell /usr/sbin/nologin";
                Err(failure.hint(format!("create it with `{create} {name}`")).into())
            }
        }
    }

    fn numbered(id: u32) -> Self {
        Self { name: id.to_string(), uid: id, gid: id, groups: vec![id] }
    }

    fn named(user: nix::unistd::User) -> Result<Self> {
        let name = std::ffi::CString::new(user.name.clone())?;
        let groups = getgrouplist(&name, user.gid).context("cannot read the groups of this machine")?;
        let groups = groups.into_iter().map(Gid::as_raw).collect();
        Ok(Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups })
    }

    /// The name by which [`Self::resolve`] finds it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// User and group.
    pub fn ids(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// Reason why a role cannot work as this user; `None` if it can.
    fn obstacle(&self, needs: &Needs) -> Option<String> {
        if !is_mapped(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default(), self.uid) {
            return Some(format!("user {} does not exist in this container; set --run-as", self.name));
        }
        let ours = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        if !ours.contains(CHANGING) {
            let needed = "CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_FOWNER and CAP_DAC_OVERRIDE";
            return Some(format!("root may not change its user here; allow {needed}, or set another user"));
        }
        let Needs { directories, files, logs, read, secret, .. } = needs;
        let mut used = directories.iter().chain(files).chain(logs).chain(read).chain(secret);
        if let Some(dir) = used.find_map(|path| self.first_closed(path, directories)) {
            let (dir, name) = (dir.display(), &self.name);
            return Some(format!("user {name} cannot pass {dir}; run `chmod o+x {dir}`"));
        }
        let is_refused = |path: &Path, bits| fs::metadata(path).is_ok_and(|found| !self.may(&found, bits));
        if let Some(file) = read.iter().find(|file| is_refused(file, 0o4)) {
            let (file, name) = (file.display(), &self.name);
            return Some(format!(
                "user {name} cannot read {file}; run `chgrp {name} {file}; chmod g+r {file}`"
            ));
        }
        let is_anothers =
            |dir: &Path| fs::metadata(dir).is_ok_and(|found| found.uid() != 0 && !self.may(&found, 0o7));
        if let Some(dir) = directories.iter().find(|dir| is_anothers(dir)) {
            let (dir, name) = (dir.display(), &self.name);
            return Some(format!("user {name} cannot write to {dir}; run `chown -R {name} {dir}`"));
        }
        if let Some(dir) = needs.chosen.iter().find(|dir| is_roots_with_files(dir)) {
            let (dir, name) = (dir.display(), &self.name);
            return Some(format!(
                "{dir} has files of root; run `chown -R {name} {dir}` if they are control's"
            ));
        }
        let own = |dir: &Path| directories.iter().any(|own| dir.starts_with(own));
        let parents = logs.iter().filter(|log| !is_device(log)).filter_map(|log| log.parent());
        let refused = parents.filter(|dir| !own(dir)).find(|dir| is_refused(dir, 0o3))?;
        let (dir, name) = (refused.display(), &self.name);
        Some(format!("user {name} cannot rotate logs in {dir}; run `chown {name} {dir}`"))
    }

    /// The first parent directory of a path that this user cannot traverse, and that is not handed
    /// over to it.
    fn first_closed<'a>(&self, path: &'a Path, own: &[PathBuf]) -> Option<&'a Path> {
        let mut above = path.ancestors().skip(1).filter(|dir| !own.iter().any(|own| dir.starts_with(own)));
        above.find(|dir| fs::metadata(dir).is_ok_and(|found| !self.may(&found, 0o1)))
    }

    /// Whether the mode of a file allows this user all of these bits.
    fn may(&self, found: &Metadata, bits: u32) -> bool {
        let mode = match (found.uid() == self.uid, self.groups.contains(&found.gid())) {
            (true, _) => found.mode() >> 6,
            (false, true) => found.mode() >> 3,
            (false, false) => found.mode(),
        };
        mode & bits == bits
    }

    fn hand_over(&self, needs: &Needs) -> Result<()> {
        let unable = |path: &Path| format!("cannot give {} to user {}", path.display(), self.name);
        for dir in &needs.directories {
            self.hand_over_directory(dir).with_context(|| unable(dir))?;
        }
        if let Some(secret) = &needs.secret {
            self.share(secret).with_context(|| unable(secret))?;
        }
        let own = |file: &Path| needs.directories.iter().any(|own| file.starts_with(own));
        for file in needs.files.iter().chain(&needs.logs).filter(|file| !is_device(file) && !own(file)) {
            let opened = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file);
            opened
                .and_then(|_| lchown(file, Some(self.uid), Some(self.gid)))
                .with_context(|| unable(file))?;
        }
        Ok(())
    }

    /// Lets the user read a file of root.
    fn share(&self, file: &Path) -> std::io::Result<()> {
        let found = fs::metadata(file)?;
        if found.uid() == 0 && found.mode() & 0o777 == 0o600 {
            chown(file, None, Some(self.gid))?;
            fs::set_permissions(file, Permissions::from_mode(0o640))?;
        }
        Ok(())
    }

    fn hand_over_directory(&self, dir: &Path) -> std::io::Result<()> {
        if let Some(parent) = dir.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
        }
        let made = fs::DirBuilder::new().mode(0o700).create(dir);
        made.or_else(|error| if dir.is_dir() { Ok(()) } else { Err(error) })?;
        let dir = &fs::canonicalize(dir)?;
        let found = fs::metadata(dir)?;
        if found.uid() != 0 {
            return Ok(());
        }
        // No other user can enter during the handover, not even an owner of files further down.
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
        give_contents(dir, 0, self.ids())?;
        fs::set_permissions(dir, Permissions::from_mode(found.mode() & 0o7777))?;
        lchown(dir, Some(self.uid), Some(self.gid))
    }

    /// Makes this process run as the user, for good. Called before it has threads.
    pub fn enter(&self, needs: &Needs) -> Result<()> {
        let low_ports = needs.listen.iter().any(|address| (1..PORT_OPEN_FIRST).contains(&address.port()));
        self.change(low_ports).with_context(|| format!("cannot become user {}", self.name))
    }

    fn change(&self, low_ports: bool) -> std::io::Result<()> {
        set_keep_capabilities(low_ports)?;
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        setgroups(&groups)?;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
        let kept = if low_ports { CapabilitySet::NET_BIND_SERVICE } else { CapabilitySet::empty() };
        let inheritable = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
        Ok(set_keep_capabilities(false)?)
    }
}

/// Creates the directories through which other users reach their own files. They can traverse, but
/// not list them.
pub fn make_passable(settings: &Settings) -> Result<()> {
    [&settings.data_dir, &settings.runtime_dir].into_iter().try_for_each(|dir| make_directory(dir, PASSABLE))
}

/// Makes a directory, and gives it this mode.
pub fn make_directory(dir: &Path, mode: u32) -> Result<()> {
    let make = || -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(mode).create(dir)?;
        fs::set_permissions(dir, Permissions::from_mode(mode))
    };
    make().with_context(|| format!("cannot create the directory {}", dir.display()))
}

/// The path at which control binds its socket. Agents and edges find it through a link, at the old path.
pub fn link_control_socket(settings: &Settings) -> Result<PathBuf> {
    let (socket, link) = (settings.control_socket_dir().join("control.sock"), settings.control_socket());
    let leads_there = fs::read_link(&link).is_ok_and(|target| target == socket);
    if !leads_there {
        let _ = fs::remove_file(&link);
        symlink(&socket, &link).with_context(|| format!("cannot link {}", link.display()))?;
    }
    Ok(socket)
}

/// Gives directories back to root, so that files that root then creates in them are handed over
/// with the rest later.
fn reclaim(directories: &[PathBuf]) {
    let is_root = rustix::process::geteuid().is_root();
    for dir in directories.iter().filter(|_| is_root) {
        let found = fs::symlink_metadata(dir).ok().filter(|found| found.is_dir() && found.uid() != 0);
        if let Some(found) = found {
            // Root needs no permission: files that stay another user's do no harm.
            let _ = reclaim_directory(dir, &found);
        }
    }
}

/// Gives a directory with its owner's files back to root; the owner cannot enter it during this.
fn reclaim_directory(dir: &Path, found: &Metadata) -> std::io::Result<()> {
    lchown(dir, Some(0), Some(0))?;
    fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    give_contents(dir, found.uid(), (0, 0))?;
    fs::set_permissions(dir, Permissions::from_mode(found.mode() & 0o7777))
}

/// Gives one user's files in a directory to another user and group. Files with a second hard link
/// are skipped: the other name may belong to the system.
fn give_contents(dir: &Path, from: u32, (uid, gid): (u32, u32)) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let found = fs::symlink_metadata(&path)?;
        if found.is_dir() {
            give_contents(&path, from, (uid, gid))?;
        }
        if found.uid() == from && !found.is_symlink() && (found.is_dir() || found.nlink() == 1) {
            lchown(&path, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

fn is_roots_with_files(dir: &Path) -> bool {
    let is_roots = fs::metadata(dir).is_ok_and(|found| found.uid() == 0);
    is_roots && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// Whether the numbers of a container include this user.
fn is_mapped(uid_map: &str, uid: u32) -> bool {
    let mut ranges = uid_map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (first, _, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(first..first + count)
    });
    uid_map.is_empty() || ranges.any(|range| range.contains(&u64::from(uid)))
}

fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

#[cfg(test)]
mod tests;
