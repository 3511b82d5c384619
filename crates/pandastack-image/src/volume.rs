//! Empty file systems for volumes.

use std::fs::OpenOptions;
use std::path::Path;

use crate::command::Program;
use crate::error::ImageError;

/// Creates the file `image` of `bytes`: a sparse, empty ext4 file system. Structures that a guest would
/// otherwise initialize in the background are marked as done, because the file reads as zeros anyway; so it
/// stays sparse.
pub fn format_volume(image: &Path, bytes: u64) -> Result<(), ImageError> {
    let file = OpenOptions::new().write(true).create_new(true).open(image);
    let sized = file.and_then(|file| file.set_len(bytes));
    sized.map_err(ImageError::io("create", image))?;
    Program::new("mkfs.ext4", "format the volume")
        .args(["-q", "-F", "-L", "volume", "-m", "0"])
        .args(["-E", "lazy_itable_init=0,lazy_journal_init=0,discard,root_owner=0:0"])
        .arg(image)
        .run()
        .map(drop)
}
