//! Packs a directory or a file as a bundle.

use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Excluded files: version control, caches, and dependencies that the deployment installs.
const EXCLUDED: [&str; 6] = [".git", "node_modules", "__pycache__", ".venv", "venv", ".DS_Store"];

/// File name extensions of bundles.
const BUNDLES: [&str; 3] = [".zip", ".tar.gz", ".tgz"];

/// Whether a file is already a bundle.
pub(super) fn is_bundle(source: &Path) -> bool {
    let name = source.to_string_lossy().to_ascii_lowercase();
    source.is_file() && BUNDLES.iter().any(|end| name.ends_with(end))
}

/// Packs a directory or a single file; a bundle is used unchanged.
pub(super) fn pack(source: &Path) -> Result<Vec<u8>> {
    let packing = || format!("cannot pack {}", source.display());
    if is_bundle(source) {
        return std::fs::read(source).with_context(packing);
    }
    let encoder = GzEncoder::new(Vec::new(), Compression::default());
    let mut archive = tar::Builder::new(encoder);
    archive.follow_symlinks(false);
    if source.is_dir() {
        append(&mut archive, source, Path::new("")).with_context(packing)?;
    } else {
        let name = source.file_name().with_context(packing)?;
        archive.append_path_with_name(source, name).with_context(packing)?;
    }
    archive.into_inner().and_then(GzEncoder::finish).with_context(packing)
}

fn append(
    archive: &mut tar::Builder<GzEncoder<Vec<u8>>>,
    directory: &Path,
    name: &Path,
) -> std::io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(directory)?.collect::<Result<_, _>>()?;
    // Sorted, so that the same files give the same bundle.
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let file_name = entry.file_name();
        if EXCLUDED.iter().any(|excluded| file_name == *excluded) {
            continue;
        }
        let (path, name) = (entry.path(), name.join(&file_name));
        if entry.file_type()?.is_dir() {
            archive.append_dir(&name, &path)?;
            append(archive, &path, &name)?;
        } else {
            archive.append_path_with_name(&path, &name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_excludes_installed_dependencies() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("pkg")).unwrap();
        std::fs::create_dir_all(dir.path().join("node_modules/x")).unwrap();
        std::fs::write(dir.path().join("pkg/a.py"), "1").unwrap();
        std::fs::write(dir.path().join("main.py"), "2").unwrap();
        let bytes = pack(dir.path()).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let names: Vec<_> =
            archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!(names, ["main.py", "pkg", "pkg/a.py"]);
        assert_eq!(bytes, pack(dir.path()).unwrap());
        std::fs::write(dir.path().join("made.ZIP"), "as it is").unwrap();
        assert_eq!(pack(&dir.path().join("made.ZIP")).unwrap(), b"as it is");
    }
}
