//! The initramfs: a cpio archive whose `/init` is the guest program, PID 1 from the first instruction on.
//!
//! Contents, as the guest program finds them:
//!
//! ```text
//! /init                          itself
//! /lib/pandastack/modules        one absolute path a line: load with finit_module in this order
//! /lib/modules/<release>/        every module a guest may use, with modprobe's indexes; copy the tree to the same
//!                                place on the root disk before switching to it, and `modprobe` works there
//! /dev/console, /dev/null        before devtmpfs is mounted
//! /proc /sys /run /sysroot       empty, to mount on
//! ```
//!
//! A machine boots only when its template is baked. The archive is not compressed: under emulation unpacking gzip took
//! up to a second longer than reading the larger file.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::ImageError;
use crate::kernel::KernelSet;

/// Path of the load order in the archive.
pub const MODULE_LIST: &str = "lib/pandastack/modules";

const MODE_DIRECTORY: u32 = 0o040_755;
const MODE_PROGRAM: u32 = 0o100_755;
const MODE_FILE: u32 = 0o100_644;
const MODE_CHARACTER_DEVICE: u32 = 0o020_600;

/// Builds initramfs archives.
#[derive(Debug, Clone, Copy)]
pub struct Initramfs;

impl Initramfs {
    /// Writes the archive that boots `guest_program` on `kernel` to `out`, replacing it whole.
    pub fn build(kernel: &KernelSet, guest_program: &[u8], out: &Path) -> Result<(), ImageError> {
        let parent = out.parent().unwrap_or(Path::new("/"));
        let file =
            tempfile::NamedTempFile::new_in(parent).map_err(ImageError::io("create a file in", parent))?;
        let mut archive = Cpio::new(BufWriter::new(file));
        write_contents(&mut archive, kernel, guest_program)?;
        let written =
            archive.finish().and_then(|writer| writer.into_inner().map_err(|error| error.into_error()));
        let file = written.map_err(ImageError::io("write", out))?;
        file.as_file().sync_all().map_err(ImageError::io("make durable", out))?;
        file.persist(out).map_err(|error| ImageError::io("publish", out)(error.error))?;
        Ok(())
    }
}

fn write_contents<W: Write>(
    archive: &mut Cpio<W>,
    kernel: &KernelSet,
    guest_program: &[u8],
) -> Result<(), ImageError> {
    let io = |name: &str| ImageError::io("add to the initramfs:", Path::new(name));
    for dir in ["dev", "proc", "sys", "run", "sysroot", "lib", "lib/modules", "lib/pandastack"] {
        archive.add(dir, MODE_DIRECTORY, (0, 0), &[]).map_err(io(dir))?;
    }
    archive.add("dev/console", MODE_CHARACTER_DEVICE, (5, 1), &[]).map_err(io("dev/console"))?;
    archive.add("dev/null", MODE_CHARACTER_DEVICE, (1, 3), &[]).map_err(io("dev/null"))?;
    archive.add("init", MODE_PROGRAM, (0, 0), guest_program).map_err(io("init"))?;
    let home = format!("lib/modules/{}", kernel.release);
    let list: String =
        kernel.boot_modules.iter().map(|path| format!("/{home}/{}\n", path.display())).collect();
    archive.add(MODULE_LIST, MODE_FILE, (0, 0), list.as_bytes()).map_err(io(MODULE_LIST))?;
    archive.add(&home, MODE_DIRECTORY, (0, 0), &[]).map_err(io(&home))?;
    add_tree(archive, &kernel.modules, &home)
}

fn add_tree<W: Write>(archive: &mut Cpio<W>, dir: &Path, name: &str) -> Result<(), ImageError> {
    let listing = std::fs::read_dir(dir).map_err(ImageError::io("list", dir))?;
    let mut paths: Vec<PathBuf> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // The same kernel and program give the same bytes.
    paths.sort();
    for path in paths {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{name}/{file}");
        if path.is_dir() {
            archive.add(&name, MODE_DIRECTORY, (0, 0), &[]).map_err(ImageError::io("add", &path))?;
            add_tree(archive, &path, &name)?;
        } else {
            let contents = std::fs::read(&path).map_err(ImageError::io("read", &path))?;
            archive.add(&name, MODE_FILE, (0, 0), &contents).map_err(ImageError::io("add", &path))?;
        }
    }
    Ok(())
}

/// A writer of the "newc" cpio format, the one the kernel unpacks.
struct Cpio<W> {
    out: W,
    inode: u32,
}

impl<W: Write> Cpio<W> {
    fn new(out: W) -> Cpio<W> {
        Cpio { out, inode: 0 }
    }

    fn add(&mut self, name: &str, mode: u32, device: (u32, u32), contents: &[u8]) -> std::io::Result<()> {
        self.inode += 1;
        let links = if mode == MODE_DIRECTORY { 2 } else { 1 };
        let size = u32::try_from(contents.len()).map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, "cpio holds files up to 4 GiB")
        })?;
        let fields =
            [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
        let mut header = String::from("070701");
        header.extend(fields.map(|field| format!("{field:08x}")));
        header.push_str(name);
        self.put(header.as_bytes(), 1)?;
        self.put(contents, 0)
    }

    /// Writes bytes, `extra` zeros, and zeros up to a multiple of four.
    fn put(&mut self, bytes: &[u8], extra: usize) -> std::io::Result<()> {
        let length = bytes.len() + extra;
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; 4][..extra + (4 - length % 4) % 4])
    }

    fn finish(mut self) -> std::io::Result<W> {
        self.inode = 0;
        self.add("TRAILER!!!", 0, (0, 0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_entries_are_aligned_and_end_with_the_trailer() {
        for contents in [&b""[..], b"1", b"12", b"123", b"1234"] {
            let mut archive = Cpio::new(Vec::new());
            archive.add("init", MODE_PROGRAM, (0, 0), contents).unwrap();
            let bytes = archive.finish().unwrap();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(&bytes[..6], b"070701");
            // 110 bytes of header and "init\0", padded to 116.
            assert_eq!(&bytes[116..116 + contents.len()], contents);
            let text = String::from_utf8_lossy(&bytes);
            assert!(text.contains("TRAILER!!!"), "{text}");
        }
    }
}
