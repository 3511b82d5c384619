//! Sharing a file's extents (FICLONE), and copying a file with its holes where sharing cannot be had.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pandastack_types::chain;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::command::Program;

/// `XFS_SUPER_MAGIC` of `linux/magic.h`.
const XFS_MAGIC: rustix::fs::FsWord = 0x5846_5342;

/// Largest size of one `copy_file_range` call.
const COPY_CHUNK_BYTES: usize = 64 << 20;

/// Holes shorter than this are copied as zeros.
///
/// The cost of a clone is its source's number of extents, paid again at every create. An image built by installing
/// packages has holes everywhere: copied one by one they made 3,400 extents and 17 ms a clone; with this limit the
/// same image has 60 extents, clones in 0.13 ms, and is a tenth larger.
const HOLE_BYTES_MIN: u64 = 4 << 20;

/// Extent that the file system allocates at the first write to a shared block.
///
/// XFS sets 128 KiB aside for every block of 4, in case its neighbours follow, and takes it back minutes later. A machine's
/// memory and disk are written here and there: 3 MiB of scattered pages held 85 MiB, and with this hint hold 3.
const OWN_EXTENT: &str = "4k";

/// Requests [`OWN_EXTENT`] for `dir` and everything created in it. Only XFS supports this hint;
/// without it, only space is lost.
pub(super) fn own_small_extents(dir: &Path) {
    let is_xfs = rustix::fs::statfs(dir).is_ok_and(|found| found.f_type == XFS_MAGIC);
    if !is_xfs {
        return;
    }
    let told = Program::new("xfs_io", "tell the store to set little aside")
        .args(["-c", &format!("cowextsize -D {OWN_EXTENT}")])
        .arg(dir)
        .run();
    if let Err(error) = told {
        tracing::warn!(
            error = %chain(&error),
            "the store preallocates more space than needed; the space is freed after minutes"
        );
    }
}

/// Makes `dst` share every extent of `src`. `dst` must not exist; after a failure it does not.
pub(super) fn share_extents(src: &File, dst: &Path) -> io::Result<()> {
    let target = create_new(dst)?;
    rustix::fs::ioctl_ficlone(&target, src).map_err(|error| discard(dst, error.into()))
}

/// Copies `src` to the new file `dst`, long holes staying holes. After a failure `dst` does not exist.
pub(super) fn copy_sparse(src: &File, dst: &Path) -> io::Result<()> {
    let target = create_new(dst)?;
    copy_data(src, &target).map_err(|error| discard(dst, error))
}

/// Tests whether files in `dir` can share extents, by doing it.
pub(super) fn probe(dir: &Path) -> io::Result<()> {
    use std::io::Write as _;
    const PROBE: &[u8] = &[0x5a; 8192];
    let scratch = tempfile::Builder::new().prefix(".reflink-probe-").tempdir_in(dir)?;
    let source_path = scratch.path().join("source");
    File::create(&source_path)?.write_all(PROBE)?;
    let clone_path = scratch.path().join("clone");
    share_extents(&File::open(&source_path)?, &clone_path)?;
    if std::fs::read(&clone_path)? != PROBE {
        return Err(io::Error::other("the clone of a file does not hold the file's bytes"));
    }
    Ok(())
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn discard(path: &Path, error: io::Error) -> io::Error {
    // The first error is the one to report; a file that cannot be removed is swept with its directory.
    let _ = std::fs::remove_file(path);
    error
}

pub(super) fn copy_data(src: &File, dst: &File) -> io::Result<()> {
    let length = src.metadata()?.len();
    dst.set_len(length)?;
    let mut position = 0;
    while position < length {
        let start = match rustix::fs::seek(src, SeekFrom::Data(position)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break, // only a hole is left
            Err(error) => return Err(error.into()),
        };
        let end = data_end(src, start, length)?;
        copy_range(src, dst, start, end)?;
        position = end;
    }
    Ok(())
}

/// Start of the next long hole after `start`.
fn data_end(src: &File, start: u64, length: u64) -> io::Result<u64> {
    let mut end = rustix::fs::seek(src, SeekFrom::Hole(start))?;
    while end < length {
        match rustix::fs::seek(src, SeekFrom::Data(end)) {
            Ok(next) if next - end < HOLE_BYTES_MIN => end = rustix::fs::seek(src, SeekFrom::Hole(next))?,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(end)
}

fn copy_range(src: &File, dst: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let want = usize::try_from(end - read_at).unwrap_or(usize::MAX).min(COPY_CHUNK_BYTES);
        let moved = match rustix::fs::copy_file_range(src, Some(&mut read_at), dst, Some(&mut write_at), want)
        {
            Ok(moved) => moved,
            Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP) => {
                return copy_range_by_buffer(src, dst, read_at, end);
            }
            Err(error) => return Err(error.into()),
        };
        if moved == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// For pairs of file systems between which the kernel does not copy by itself.
fn copy_range_by_buffer(src: &File, dst: &File, mut position: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let mut buffer = vec![0; 1 << 20];
    while position < end {
        let want = usize::try_from(end - position).unwrap_or(usize::MAX).min(buffer.len());
        let got = src.read_at(&mut buffer[..want], position)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        dst.write_all_at(&buffer[..got], position)?;
        position += got as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn a_sparse_copy_keeps_bytes_and_holes() {
        let dir = tempfile::tempdir().unwrap();
        let source_path = dir.path().join("source");
        let source = create_new(&source_path).unwrap();
        source.set_len(256 << 20).unwrap();
        source.write_all_at(b"head", 0).unwrap();
        source.write_all_at(b"tail", (256 << 20) - 4).unwrap();
        source.write_all_at(b"middle", 100 << 20).unwrap();

        let copy_path = dir.path().join("copy");
        copy_sparse(&source, &copy_path).unwrap();

        let copy = File::open(&copy_path).unwrap();
        let metadata = copy.metadata().unwrap();
        assert_eq!(metadata.len(), 256 << 20);
        assert!(metadata.blocks() * 512 < 4 << 20, "holes were filled: {} blocks", metadata.blocks());
        let mut middle = [0; 6];
        copy.read_exact_at(&mut middle, 100 << 20).unwrap();
        assert_eq!(&middle, b"middle");
        let mut tail = [0; 4];
        copy.read_exact_at(&mut tail, (256 << 20) - 4).unwrap();
        assert_eq!(&tail, b"tail");
    }

    #[test]
    fn short_holes_are_filled_so_that_clones_stay_cheap() {
        let dir = tempfile::tempdir().unwrap();
        let source = create_new(&dir.path().join("source")).unwrap();
        source.set_len(64 << 20).unwrap();
        for offset in (0..32 << 20).step_by(1 << 20) {
            source.write_all_at(&[1; 4096], offset).unwrap();
        }
        let copy_path = dir.path().join("copy");
        copy_sparse(&source, &copy_path).unwrap();
        let copy = File::open(&copy_path).unwrap();
        let hole = rustix::fs::seek(&copy, SeekFrom::Hole(0)).unwrap();
        assert_eq!(hole, (31 << 20) + 4096, "the first hole is the long one at the end");
        let mut block = [9; 4096];
        copy.read_exact_at(&mut block, 4096).unwrap();
        assert_eq!(block, [0; 4096]);
    }

    #[test]
    fn an_existing_target_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        let source = File::open(&target).unwrap();
        let error = copy_sparse(&source, &target).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }
}
