//! Targets for `cargo xtask fuzz`.

use std::io::Cursor;
use std::path::Path;

use crate::deb;

/// A Debian package. None of its files are written.
pub fn deb(data: &[u8]) {
    let name = Path::new("fuzz.deb");
    let _ = deb::unpack_from(Cursor::new(data), name, Path::new("/nonexistent"), |_| false);
}
