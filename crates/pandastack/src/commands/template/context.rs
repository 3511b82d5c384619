//! Packs a build directory, without what its `.dockerignore` excludes.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use pandastack_dockerfile::Ignore;

/// Packs a directory.
pub(super) fn pack(file: File, directory: &Path) -> Result<()> {
    let ignore = match std::fs::read_to_string(directory.join(".dockerignore")) {
        Ok(text) => Ignore::parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ignore::default(),
        Err(error) => return Err(error).context("cannot read .dockerignore"),
    };
    let mut archive = tar::Builder::new(BufWriter::new(file));
    archive.follow_symlinks(false);
    add(&mut archive, directory, "", &ignore)?;
    archive.into_inner()?.into_inner().context("cannot write the archive")?;
    Ok(())
}

fn add(archive: &mut tar::Builder<BufWriter<File>>, root: &Path, below: &str, ignore: &Ignore) -> Result<()> {
    let here = root.join(below);
    let entries = std::fs::read_dir(&here).with_context(|| format!("cannot read {}", here.display()))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        let (excluded, kind) = (ignore.excludes(&path), entry.file_type()?);
        if !excluded && (kind.is_dir() || kind.is_file() || kind.is_symlink()) {
            let full = entry.path();
            archive
                .append_path_with_name(&full, &path)
                .with_context(|| format!("cannot pack {}", full.display()))?;
        }
        if kind.is_dir() && (!excluded || ignore.may_keep_below()) {
            add(archive, root, &path, ignore)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_are_not_packed() {
        let directory = tempfile::tempdir().unwrap();
        for path in
            ["Dockerfile", "src/a.py", "src/a.pyc", "node_modules/x/index.js", "docs/b.md", "docs/keep.md"]
        {
            let full = directory.path().join(path);
            std::fs::create_dir_all(full.parent().unwrap()).unwrap();
            std::fs::write(full, "").unwrap();
        }
        std::fs::write(
            directory.path().join(".dockerignore"),
            "node_modules\n**/*.pyc\ndocs/*\n!docs/keep.md\n",
        )
        .unwrap();
        let packed = tempfile::NamedTempFile::new().unwrap();
        pack(packed.reopen().unwrap(), directory.path()).unwrap();
        let mut archive = tar::Archive::new(packed.reopen().unwrap());
        let paths: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(paths, [".dockerignore", "Dockerfile", "docs", "docs/keep.md", "src", "src/a.py"]);
    }
}
