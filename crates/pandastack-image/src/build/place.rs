//! Copies files of unpacked registry packages into the tree.

use std::path::Path;

use crate::command::Program;
use crate::error::ImageError;
use crate::recipe::CopiedFile;

/// Copies each entry from below `packages` into `root`. Links and permissions stay.
pub(super) fn copy(root: &Path, packages: &Path, places: &[CopiedFile]) -> Result<(), ImageError> {
    for place in places {
        let to = root.join(place.to.trim_start_matches('/'));
        let parent = to.parent().unwrap_or(root);
        std::fs::create_dir_all(parent).map_err(ImageError::io("create", parent))?;
        Program::new("cp", format!("install {}", place.from))
            .args(["--recursive", "--no-dereference", "--preserve=mode,links", "--no-target-directory"])
            .arg(packages.join(&place.from))
            .arg(&to)
            .run()?;
    }
    Ok(())
}
