//! CI's checkout: a copy of the clone at one fixed path, beside CI's build output.
//!
//! Every CI run has a fresh clone, often at another path. Cargo decides by path and file time what to compile, so it
//! would compile every crate of ours again. CI therefore builds from this checkout, which each run updates in place:
//! only files whose content differs are written, and cargo compiles what changed by its own rules.
//!
//! - The checkout has exactly the files that git lists in the clone. Files that git ignores, such
//!   as `node_modules`, stay as long as git lists something in their directory.
//! - One run at a time uses it: a lock is held until the process ends, however it ends.
//! - A run that was cut off in the middle of an update leaves a list of every file that may be there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::tree;

/// Names every file that is, or may be, in the checkout: one path a line.
const LIST: &str = "checkout.files";

/// The checkout in use, once there is one, with its lock.
static IN_USE: OnceLock<(PathBuf, File)> = OnceLock::new();

/// The checkout, if this run uses one.
pub fn in_use() -> Option<&'static Path> {
    IN_USE.get().map(|(dir, _)| dir.as_path())
}

/// Updates the checkout from the clone and uses it from now on.
pub fn enter() -> Result<()> {
    let files = tree::files()?;
    let base = tree::cache_dir();
    fs::create_dir_all(&base).with_context(|| format!("create {}", base.display()))?;
    let lock = lock(&base)?;
    let dir = update(tree::clone_root(), &base, &files)?;
    // A second call finds the first one's checkout in use.
    let _ = IN_USE.set((dir, lock));
    Ok(())
}

fn lock(base: &Path) -> Result<File> {
    let path = base.join("checkout.lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another test run on this machine to finish ({})", path.display());
        file.lock().with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(file)
}

/// Makes `base/checkout` hold exactly `files` of `clone`.
fn update(clone: &Path, base: &Path, files: &[PathBuf]) -> Result<PathBuf> {
    let (dir, list) = (base.join("checkout"), base.join(LIST));
    let wanted: BTreeSet<PathBuf> = files.iter().cloned().collect();
    let known = match fs::read_to_string(&list) {
        Ok(text) => text.lines().map(PathBuf::from).collect(),
        // Its contents are unknown.
        Err(_) => {
            if dir.exists() {
                fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
            }
            BTreeSet::new()
        }
    };
    write_list(&list, wanted.union(&known))?;
    for path in known.difference(&wanted) {
        remove(&dir, path, &wanted)?;
    }
    for path in &wanted {
        copy_if_different(&clone.join(path), &dir.join(path))?;
    }
    write_list(&list, wanted.iter())?;
    Ok(dir)
}

fn write_list<'a>(list: &Path, paths: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let text: String = paths.map(|path| format!("{}\n", path.display())).collect();
    let beside = list.with_extension("new");
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, list));
    written.with_context(|| format!("write {}", list.display()))
}

/// Removes a file. If the clone has nothing else in its directory, removes the directory with all
/// build output: cargo treats every directory below `crates` as a crate.
fn remove(dir: &Path, path: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    let has_files = |parent: &&Path| {
        let mut from_there = wanted.range(parent.to_path_buf()..).skip_while(|next| next == parent);
        from_there.next().is_some_and(|next| next.starts_with(parent))
    };
    let parents = path.ancestors().skip(1).take_while(|parent| !parent.as_os_str().is_empty());
    let gone = parents.take_while(|parent| !has_files(parent)).last();
    let target = dir.join(gone.unwrap_or(path));
    let removed = if gone.is_some() { fs::remove_dir_all(&target) } else { fs::remove_file(&target) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", target.display()))
        }
        _ => Ok(()),
    }
}

fn copy_if_different(from: &Path, to: &Path) -> Result<()> {
    let content = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    let mode = |path: &Path| fs::metadata(path).map(|found| found.permissions().mode()).ok();
    if fs::read(to).is_ok_and(|there| there == content) && mode(from) == mode(to) {
        return Ok(());
    }
    let parent = to.parent().unwrap_or(to);
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A clone and a cache, both gone at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("pandastack-checkout-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("clone/src")).unwrap();
            fs::create_dir_all(dir.join("cache")).unwrap();
            Self(dir)
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.0.join("clone").join(path), text).unwrap();
        }

        fn update(&self, files: &[&str]) -> PathBuf {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            update(&self.0.join("clone"), &self.0.join("cache"), &files).unwrap()
        }

        /// Gives a file of the checkout an old modification time, and returns it.
        fn age(&self, path: &str) -> SystemTime {
            let old = SystemTime::now() - Duration::from_secs(3600);
            let file = File::options().write(true).open(self.0.join("cache/checkout").join(path)).unwrap();
            file.set_modified(old).unwrap();
            self.modified(path)
        }

        fn modified(&self, path: &str) -> SystemTime {
            fs::metadata(self.0.join("cache/checkout").join(path)).unwrap().modified().unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_changed_files_are_written() {
        let scratch = Scratch::new("changed");
        scratch.write("src/a", "a");
        scratch.write("src/b", "b");
        let dir = scratch.update(&["src/a", "src/b"]);
        let (a, b) = (scratch.age("src/a"), scratch.age("src/b"));
        // As in a fresh clone: every file is new.
        scratch.write("src/a", "a");
        scratch.write("src/b", "changed");
        scratch.update(&["src/a", "src/b"]);
        assert_eq!(scratch.modified("src/a"), a);
        assert!(scratch.modified("src/b") > b);
        assert_eq!(fs::read_to_string(dir.join("src/b")).unwrap(), "changed");
    }

    #[test]
    fn deleted_files_are_removed_and_ignored_files_kept() {
        let scratch = Scratch::new("deleted");
        scratch.write("src/a", "a");
        scratch.write("src/b", "b");
        let dir = scratch.update(&["src/a", "src/b"]);
        fs::create_dir(dir.join("node_modules")).unwrap();
        scratch.update(&["src/a"]);
        assert!(dir.join("src/a").exists() && !dir.join("src/b").exists());
        assert!(dir.join("node_modules").exists());
    }

    #[test]
    fn a_removed_directory_is_deleted_with_its_build_output() {
        let scratch = Scratch::new("directory");
        fs::create_dir_all(scratch.0.join("clone/crates/a/src")).unwrap();
        let files = ["crates/a/Cargo.toml", "crates/a/src/lib.rs", "crates/b"];
        files.iter().for_each(|path| scratch.write(path, ""));
        let dir = scratch.update(&files);
        fs::create_dir(dir.join("crates/a/built")).unwrap();
        scratch.update(&["crates/b"]);
        assert!(!dir.join("crates/a").exists() && dir.join("crates/b").exists());
    }

    #[test]
    fn a_checkout_with_unknown_content_starts_over() {
        let scratch = Scratch::new("unknown");
        scratch.write("src/a", "a");
        let dir = scratch.update(&["src/a"]);
        fs::write(dir.join("src/left"), "").unwrap();
        fs::remove_file(scratch.0.join("cache").join(LIST)).unwrap();
        scratch.update(&["src/a"]);
        assert!(dir.join("src/a").exists() && !dir.join("src/left").exists());
    }

    #[test]
    fn the_executable_bit_is_copied() {
        let scratch = Scratch::new("mode");
        scratch.write("src/a", "a");
        let dir = scratch.update(&["src/a"]);
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        fs::set_permissions(scratch.0.join("clone/src/a"), fs::Permissions::from_mode(0o755)).unwrap();
        scratch.update(&["src/a"]);
        assert_eq!(mode(dir.join("src/a")), 0o755);
    }
}
