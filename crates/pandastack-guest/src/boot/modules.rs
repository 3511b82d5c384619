//! Kernel modules, in the order that the initramfs lists them.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

/// Loads every module of a list, one path per line. A kernel with everything built in has no list.
pub(super) fn load_listed(list: &Path) -> io::Result<()> {
    let Ok(paths) = std::fs::read_to_string(list) else { return Ok(()) };
    for path in paths.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let load = |file: File| match finit_module(&file, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(io::Error::from(errno)),
        };
        File::open(path)
            .and_then(load)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    }
    Ok(())
}
