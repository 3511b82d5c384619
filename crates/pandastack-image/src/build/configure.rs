//! Finishes a tree: files, links, environment, the recipe's commands; then everything that must not be
//! baked in is taken out.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::chroot::Chroot;
use crate::error::ImageError;
use crate::recipe::Recipe;

/// Directories to empty.
const EMPTIED: &[&str] =
    &["var/lib/apt/lists", "var/cache/apt", "var/log", "var/cache/debconf", "tmp", "var/tmp", "run"];

/// Rewritten by the guest program whenever a machine gets its identity; plain files, so that it only has to
/// overwrite them.
const IDENTITY: &[(&str, &str)] = &[
    ("etc/machine-id", ""),
    ("etc/resolv.conf", ""),
    ("etc/hostname", "sandbox\n"),
    ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n"),
];

/// Writes the recipe's files, then runs its commands.
pub(super) fn apply(chroot: &Chroot, recipe: &Recipe) -> Result<(), ImageError> {
    for file in &recipe.files {
        write(chroot.root(), &file.path, &file.content, file.mode)?;
    }
    for link in &recipe.symlinks {
        let path = in_tree(chroot.root(), &link.path)?;
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink(&link.target, &path).map_err(ImageError::io("link", &path))?;
    }
    write_environment(chroot.root(), recipe)?;
    for command in &recipe.run {
        chroot.shell(command, "run the recipe's command")?;
    }
    Ok(())
}

/// Appends to the parent's file; the last line for a name wins.
fn write_environment(root: &Path, recipe: &Recipe) -> Result<(), ImageError> {
    if recipe.environment.is_empty() {
        return Ok(());
    }
    let path = root.join("etc/environment");
    let mut text = std::fs::read_to_string(&path).unwrap_or_default();
    for (name, value) in &recipe.environment {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}={value}");
    }
    std::fs::write(&path, text).map_err(ImageError::io("write", &path))
}

/// Removes caches, logs and the building host's identity.
pub(super) fn clean(root: &Path) -> Result<(), ImageError> {
    for dir in EMPTIED {
        empty(&root.join(dir))?;
    }
    for (path, content) in IDENTITY {
        let target = root.join(path);
        // resolv.conf may be a link into a directory of the host's making.
        let _ = std::fs::remove_file(&target);
        write(root, path, content, 0o644)?;
    }
    Ok(())
}

fn empty(dir: &Path) -> Result<(), ImageError> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(ImageError::io("delete", &path))?;
    }
    Ok(())
}

fn write(root: &Path, path: &str, content: &str, mode: u32) -> Result<(), ImageError> {
    let target = in_tree(root, path)?;
    std::fs::write(&target, content).map_err(ImageError::io("write", &target))?;
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&target, permissions).map_err(ImageError::io("set the mode of", &target))
}

fn in_tree(root: &Path, path: &str) -> Result<std::path::PathBuf, ImageError> {
    let target = root.join(path.trim_start_matches('/'));
    let parent = target.parent().unwrap_or(root);
    std::fs::create_dir_all(parent).map_err(ImageError::io("create", parent))?;
    Ok(target)
}
