//! Permissions, owners and extended attributes.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, FileAttributes};

use super::absolute::absolute;
use super::errors::refusal;
use super::names::Names;
use super::source::{Source, Step};
use super::walk::{STEP_ENTRIES, Walker};
use super::xattrs;

/// A change of attributes in progress.
#[derive(Debug)]
pub(crate) struct AttributesSource {
    request: FileAttributes,
    root: PathBuf,
    open: Option<(RequestedAttributes, Option<Walker>)>,
}

#[derive(Debug, Clone, Copy)]
struct RequestedAttributes {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl AttributesSource {
    pub(crate) fn new(request: FileAttributes, root: PathBuf) -> Self {
        Self { request, root, open: None }
    }

    fn open(&self) -> Result<(RequestedAttributes, Option<Walker>), ErrorBody> {
        let FileAttributes { path, mode, user, group, recursive, xattrs } = &self.request;
        let path = absolute(path)?;
        let names = Names::read(&self.root);
        let wanted = RequestedAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid: user.as_deref().map(|user| names.uid(user)).transpose()?,
            gid: group.as_deref().map(|group| names.gid(group)).transpose()?,
        };
        let wanted_xattrs = xattrs::Changes::check(xattrs)?;
        wanted.apply(&path, false).map_err(|error| refusal("change", &path, &error))?;
        wanted_xattrs.apply(&path)?;
        let walker = (*recursive && path.is_dir()).then(|| Walker::open(&path, None)).transpose();
        Ok((wanted, walker.map_err(|error| refusal("list", &path, &error))?))
    }
}

impl RequestedAttributes {
    fn apply(self, path: &Path, is_link: bool) -> io::Result<()> {
        if self.uid.is_some() || self.gid.is_some() {
            if is_link { lchown(path, self.uid, self.gid)? } else { chown(path, self.uid, self.gid)? }
        }
        // After the owner, whose change takes set-id bits away. A link has no permissions of its own.
        match self.mode {
            Some(mode) if !is_link => std::fs::set_permissions(path, Permissions::from_mode(mode)),
            _ => Ok(()),
        }
    }
}

impl Source for AttributesSource {
    fn next(&mut self, _bytes_max: usize) -> Result<Step, ErrorBody> {
        let Some((wanted, walker)) = &mut self.open else {
            self.open = Some(self.open()?);
            return Ok(Step::Idle);
        };
        let Some(walker) = walker else { return Ok(Step::End) };
        for _ in 0..STEP_ENTRIES {
            let Some(visited) = walker.next() else { return Ok(Step::End) };
            wanted
                .apply(&visited.path, visited.meta.is_symlink())
                .map_err(|error| refusal("change", &visited.path, &error))?;
        }
        Ok(Step::Idle)
    }
}
