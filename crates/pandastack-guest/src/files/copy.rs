//! Copying and moving files and trees, step by step. Each file appears complete, under a temporary name
//! before.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, fchown, lchown, symlink};
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, ErrorCode, RawPath};

use super::absolute::absolute;
use super::directory::remove;
use super::errors::refusal;
use super::source::{Source, Step};
use super::walk::Walker;
use super::write::{DIRECTORY_MODE_DEFAULT, Temporary, create_new, make_parents};

/// Bytes copied in one step.
const STEP_BYTES: u64 = 4 * 1024 * 1024;
/// Entries copied in one step.
const STEP_ENTRIES: usize = 64;

/// A copy in progress.
#[derive(Debug)]
pub(crate) struct CopySource {
    from: RawPath,
    to: RawPath,
    open: Option<CopyState>,
}

#[derive(Debug)]
struct CopyState {
    to: PathBuf,
    walker: Option<Walker>,
    file: Option<CopiedFile>,
}

/// A file being copied.
#[derive(Debug)]
struct CopiedFile {
    original: File,
    copy: File,
    meta: Metadata,
    temporary: Temporary,
    to: PathBuf,
}

impl CopySource {
    pub(crate) fn new(from: RawPath, to: RawPath) -> Self {
        Self { from, to, open: None }
    }

    fn open(&self) -> Result<CopyState, ErrorBody> {
        let (from, to) = (absolute(&self.from)?, absolute(&self.to)?);
        let fail = |error: &io::Error| refusal("copy", &from, error);
        let meta = std::fs::symlink_metadata(&from).map_err(|error| fail(&error))?;
        if let Some(parent) = to.parent() {
            make_parents(parent, DIRECTORY_MODE_DEFAULT, None)?;
        }
        let mut open = CopyState { to: to.clone(), walker: None, file: None };
        if meta.is_dir() {
            refuse_inside(&from, &to)?;
            copy_directory(&to, &meta).map_err(|error| refusal("copy to", &to, &error))?;
            open.walker = Some(Walker::open(&from, None).map_err(|error| fail(&error))?);
        } else {
            open.begin(&from, &meta, &to)?;
        }
        Ok(open)
    }
}

impl CopyState {
    fn begin(&mut self, from: &Path, meta: &Metadata, to: &Path) -> Result<(), ErrorBody> {
        let fail = |error: io::Error| refusal("copy to", to, &error);
        if meta.is_dir() {
            return copy_directory(to, meta).map_err(fail);
        }
        if meta.is_symlink() {
            return copy_link(from, to, meta).map_err(fail);
        }
        if !meta.is_file() {
            // Devices, pipes and sockets have no content to copy.
            return Ok(());
        }
        if std::fs::symlink_metadata(to).is_ok_and(|meta| meta.is_dir()) {
            return Err(fail(ErrorKind::IsADirectory.into()));
        }
        let original = File::open(from).map_err(|error| refusal("copy", from, &error))?;
        let temporary = Temporary::next_to(to);
        let copy = create_new(temporary.path()).map_err(fail)?;
        self.file = Some(CopiedFile { original, copy, meta: meta.clone(), temporary, to: to.to_owned() });
        Ok(())
    }

    /// One step; true when all is copied.
    fn step(&mut self) -> Result<bool, ErrorBody> {
        let mut left = STEP_BYTES;
        for _ in 0..STEP_ENTRIES {
            if let Some(file) = &mut self.file {
                let copied = file.copy_part(left).map_err(|error| refusal("copy to", &file.to, &error))?;
                left = left.saturating_sub(copied.max(1));
                if copied == 0 {
                    let file = self.file.take();
                    file.map_or(Ok(()), |file| file.finish())?;
                }
                if left == 0 {
                    break;
                }
                continue;
            }
            let Some(visited) = self.walker.as_mut().and_then(Iterator::next) else { return Ok(true) };
            let to = self.to.join(&visited.relative);
            self.begin(&visited.path, &visited.meta, &to)?;
        }
        Ok(false)
    }
}

impl CopiedFile {
    fn copy_part(&mut self, bytes_max: u64) -> io::Result<u64> {
        io::copy(&mut (&mut self.original).take(bytes_max), &mut self.copy)
    }

    fn finish(self) -> Result<(), ErrorBody> {
        let Self { copy, meta, temporary, to, .. } = self;
        let finish = || {
            fchown(&copy, Some(meta.uid()), Some(meta.gid()))?;
            copy.set_permissions(meta.permissions())?;
            copy.set_modified(meta.modified()?)?;
            std::fs::rename(temporary.path(), &to)
        };
        finish().map_err(|error| refusal("copy to", &to, &error))
    }
}

fn copy_directory(to: &Path, meta: &Metadata) -> io::Result<()> {
    match std::fs::create_dir(to) {
        // Merge into the existing directory.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && to.is_dir() => return Ok(()),
        made => made?,
    }
    std::os::unix::fs::chown(to, Some(meta.uid()), Some(meta.gid()))?;
    std::fs::set_permissions(to, meta.permissions())
}

fn copy_link(from: &Path, to: &Path, meta: &Metadata) -> io::Result<()> {
    let target = std::fs::read_link(from)?;
    let temporary = Temporary::next_to(to);
    symlink(target, temporary.path())?;
    lchown(temporary.path(), Some(meta.uid()), Some(meta.gid()))?;
    std::fs::rename(temporary.path(), to)
}

/// A tree copied into itself would never end.
fn refuse_inside(from: &Path, to: &Path) -> Result<(), ErrorBody> {
    let real = std::fs::canonicalize(from).map_err(|error| refusal("copy", from, &error))?;
    let parent = to.ancestors().find_map(|parent| Some((parent, std::fs::canonicalize(parent).ok()?)));
    let inside = parent.is_some_and(|(parent, real_parent)| {
        let rest = to.strip_prefix(parent).unwrap_or(Path::new(""));
        real_parent.join(rest).starts_with(&real)
    });
    if inside {
        let message = format!("cannot copy {} into itself at {}", from.display(), to.display());
        return Err(ErrorBody::new(ErrorCode::Invalid, message));
    }
    Ok(())
}

impl Source for CopySource {
    fn next(&mut self, _bytes_max: usize) -> Result<Step, ErrorBody> {
        let Some(open) = &mut self.open else {
            self.open = Some(self.open()?);
            return Ok(Step::Idle);
        };
        Ok(if open.step()? { Step::End } else { Step::Idle })
    }
}

/// A move in progress: a rename, or between file systems a copy and a removal.
#[derive(Debug)]
pub(crate) struct MoveSource {
    from: RawPath,
    to: RawPath,
    make_parents: bool,
    copy: Option<CopySource>,
}

impl MoveSource {
    pub(crate) fn new(from: RawPath, to: RawPath, make_parents: bool) -> Self {
        Self { from, to, make_parents, copy: None }
    }

    fn rename(&mut self) -> Result<Step, ErrorBody> {
        let (from, to) = (absolute(&self.from)?, absolute(&self.to)?);
        std::fs::symlink_metadata(&from).map_err(|error| refusal("move", &from, &error))?;
        if self.make_parents
            && let Some(parent) = to.parent()
        {
            make_parents(parent, DIRECTORY_MODE_DEFAULT, None)?;
        }
        match std::fs::rename(&from, &to) {
            Ok(()) => Ok(Step::End),
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                self.copy = Some(CopySource::new(self.from.clone(), self.to.clone()));
                Ok(Step::Idle)
            }
            Err(error) => Err(refusal("move", &from, &error)),
        }
    }
}

impl Source for MoveSource {
    fn next(&mut self, bytes_max: usize) -> Result<Step, ErrorBody> {
        let Some(copy) = &mut self.copy else { return self.rename() };
        let step = copy.next(bytes_max)?;
        if matches!(step, Step::End) {
            remove(&self.from, true)?;
        }
        Ok(step)
    }
}
