//! Finds guest memory pages that differ from the underlying file, and copies them out.
//!
//! Guest memory is a private mapping of a file: a page the guest wrote is anonymous, a page it only read is the file's.
//! The kernel tells them apart in `/proc/PID/pagemap`, without any tracking while the guest runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::process::is_running;

/// Page size of the architecture.
const PAGE_BYTES: u64 = 4096;
/// Ranges fetched from the kernel per call.
const RANGES_PER_SCAN: usize = 1024;
/// Copied at a time.
const COPY_BYTES: usize = 1 << 20;
/// Threads that copy at most.
const COPIERS_MAX: usize = 4;
/// Entries read at a time where the kernel cannot scan.
const PAGEMAP_ENTRIES: usize = 64 * 1024;

/// Guest memory in a machine's process: a private mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Start address in the process.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Offset in the file at which the mapping begins.
    pub file_offset: u64,
}

/// A run of pages, as addresses in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    /// First byte.
    start: u64,
    /// One past the last.
    end: u64,
}

/// Pages of `start..end` in process `pid` that are private copies, in address order.
fn private_pages(pid: u32, start: u64, end: u64) -> io::Result<Vec<Range>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    match scan(&pagemap, start, end) {
        // Before Linux 6.7.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
            walk(&pagemap, start, end)
        }
        outcome => outcome,
    }
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArgument>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

/// Queries the kernel for ranges of pages that are not the file's, and are present or swapped out.
fn scan(pagemap: &File, mut start: u64, end: u64) -> io::Result<Vec<Range>> {
    let mut regions = [Region::default(); RANGES_PER_SCAN];
    let mut ranges = Vec::new();
    while start < end {
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_inverted: PAGE_IS_FILE,
            category_mask: PAGE_IS_FILE,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ..ScanArgument::default()
        };
        // SAFETY: the argument has the layout and the size it states, and names a buffer of as many regions as it says.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut argument) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        regions.iter().take(found).for_each(|region| push(&mut ranges, region.start, region.end));
        if argument.walk_end <= start {
            return Err(io::Error::other("the kernel's page scan makes no progress"));
        }
        start = argument.walk_end;
    }
    Ok(ranges)
}

/// Reads one entry per page: not of the file (bit 61), and present (63) or swapped out (62).
fn walk(pagemap: &File, start: u64, end: u64) -> io::Result<Vec<Range>> {
    let mut ranges = Vec::new();
    let mut buffer = vec![0u8; PAGEMAP_ENTRIES * 8];
    let mut at = start;
    while at < end {
        let pages =
            usize::try_from((end - at).div_ceil(PAGE_BYTES)).unwrap_or(PAGEMAP_ENTRIES).min(PAGEMAP_ENTRIES);
        pagemap.read_exact_at(&mut buffer[..pages * 8], at / PAGE_BYTES * 8)?;
        for entry in buffer[..pages * 8].as_chunks::<8>().0 {
            if is_private(u64::from_le_bytes(*entry)) {
                push(&mut ranges, at, at + PAGE_BYTES);
            }
            at += PAGE_BYTES;
        }
    }
    Ok(ranges)
}

fn is_private(entry: u64) -> bool {
    entry >> 62 != 0 && entry & (1 << 61) == 0
}

/// Appends a range, joined with its predecessor where they touch.
fn push(ranges: &mut Vec<Range>, start: u64, end: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ => ranges.push(Range { start, end }),
    }
}

/// Copies the private pages of a mapping into `target`, a clone of `base`, at their offsets in the file.
/// Skips pages that are equal in `base` (inherited from a fork parent, they are private but not new), and
/// pages of zeros where the base has a hole, so that a sparse base stays sparse. Returns the bytes written.
///
/// The kernel reads by process id. Fails if the process has ended: its id may have been reused during the
/// copy.
pub fn copy_private_pages(
    (pid, pidfd): (u32, BorrowedFd<'_>),
    mapping: Mapping,
    target: &File,
    base: &File,
) -> io::Result<u64> {
    let written = copy_pages_of(pid, mapping, target, base);
    let ended = || io::Error::other(format!("process {pid} ended while its memory was copied"));
    if is_running(pidfd) { written } else { Err(ended()) }
}

fn copy_pages_of(pid: u32, mapping: Mapping, target: &File, base: &File) -> io::Result<u64> {
    let Mapping { address, bytes, file_offset } = mapping;
    let pieces = pieces(&private_pages(pid, address, address + bytes)?);
    let next = AtomicUsize::new(0);
    let copy = || -> io::Result<u64> {
        let mut holes = Holes::of(base)?;
        let (mut buffer, mut original) = (vec![0u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
        let mut written = 0;
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let len = (piece.end - piece.start) as usize;
            let (chunk, original) = (&mut buffer[..len], &mut original[..len]);
            read_memory(pid, piece.start, chunk)?;
            let offset = piece.start - address + file_offset;
            holes.read_around(original, offset)?;
            written += write_changed(target, chunk, original, offset)?;
        }
        Ok(written)
    };
    std::thread::scope(|scope| {
        // If the system has no thread to spare, this one does it all.
        let begin = |_| std::thread::Builder::new().spawn_scoped(scope, copy).ok();
        let others: Vec<_> = (1..copiers()).filter_map(begin).collect();
        others.into_iter().try_fold(copy()?, |written, other| Ok(written + joined(other.join())?))
    })
}

/// Threads that copy: a guest that was written to here and there costs more system calls than bytes.
fn copiers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(COPIERS_MAX)
}

fn joined<T>(outcome: std::thread::Result<T>) -> T {
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Splits ranges into pieces that fit the buffers.
fn pieces(ranges: &[Range]) -> Vec<Range> {
    let cut = |range: &Range| {
        let end = range.end;
        let starts = (range.start..end).step_by(COPY_BYTES);
        starts.map(move |start| Range { start, end: end.min(start + COPY_BYTES as u64) })
    };
    ranges.iter().flat_map(cut).collect()
}

fn read_memory(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let (wanted, base) = (buffer.len(), address as usize);
    let mut filled = 0;
    while filled < wanted {
        let local = libc::iovec { iov_base: buffer[filled..].as_mut_ptr().cast(), iov_len: wanted - filled };
        let remote = libc::iovec { iov_base: (base + filled) as *mut _, iov_len: wanted - filled };
        // SAFETY: the local part is our buffer; the remote one is checked by the kernel.
        let read = unsafe {
            libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0)
        };
        match usize::try_from(read) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// Writes the pages of `chunk` that differ from `original`. Returns the bytes written.
fn write_changed(target: &File, chunk: &[u8], original: &[u8], offset: u64) -> io::Result<u64> {
    const PAGE: usize = PAGE_BYTES as usize;
    let mut written = 0;
    let mut run: Option<usize> = None;
    let mut write = |from: usize, to: usize| {
        written += (to - from) as u64;
        target.write_all_at(&chunk[from..to], offset + from as u64)
    };
    for (index, (page, before)) in chunk.chunks(PAGE).zip(original.chunks(PAGE)).enumerate() {
        let at = index * PAGE;
        match (page == before, run) {
            (false, None) => run = Some(at),
            (true, Some(from)) => {
                write(from, at)?;
                run = None;
            }
            _ => {}
        }
    }
    if let Some(from) = run {
        write(from, chunk.len())?;
    }
    Ok(written)
}

/// The holes of a file, queried in ascending order. Several readers may query one file.
struct Holes<'a> {
    file: &'a File,
    len: u64,
    /// Hole last found: empty at first.
    current: Range,
}

impl<'a> Holes<'a> {
    fn of(file: &'a File) -> io::Result<Self> {
        Ok(Self { file, len: file.metadata()?.len(), current: Range { start: 0, end: 0 } })
    }

    /// Fills `buffer` from `offset` on without reading holes: they would be brought into memory page by page.
    fn read_around(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let mut at = offset;
        while at < end {
            if at >= self.current.end {
                let start = self.seek(at, libc::SEEK_HOLE)?;
                self.current = Range { start, end: self.seek(start, libc::SEEK_DATA)? };
            }
            let in_hole = self.current.start <= at;
            let stop = if in_hole { self.current.end } else { self.current.start }.clamp(at, end);
            // The file's end, which a memory file has only where guest memory ends.
            let stop = if stop == at { end } else { stop };
            let part = &mut buffer[(at - offset) as usize..(stop - offset) as usize];
            match in_hole {
                true => part.fill(0),
                false => self.file.read_exact_at(part, at)?,
            }
            at = stop;
        }
        Ok(())
    }

    /// Next hole or data at or after `offset`; the end of the file if no more follows.
    fn seek(&self, offset: u64, whence: libc::c_int) -> io::Result<u64> {
        // SAFETY: plain integers. No code relies on the position of this descriptor.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), offset as libc::off_t, whence) };
        match u64::try_from(found) {
            Ok(found) => Ok(found),
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => Ok(self.len),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    const PAGE: usize = PAGE_BYTES as usize;

    /// A private mapping of a file whose pages 1 and 2 of 8 are written and page 5 is only read.
    fn mapped() -> (File, u64) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * PAGE_BYTES).unwrap();
        file.write_all_at(&[7; PAGE], 5 * PAGE_BYTES).unwrap();
        // SAFETY: a fresh mapping of 8 pages; some of them are touched.
        let address = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let map =
                libc::mmap(std::ptr::null_mut(), 8 * PAGE, prot, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
            assert_ne!(map, libc::MAP_FAILED);
            let bytes = map.cast::<u8>();
            bytes.add(PAGE).write_volatile(1);
            bytes.add(2 * PAGE).write_volatile(2);
            assert_eq!(bytes.add(5 * PAGE).read_volatile(), 7);
            map as u64
        };
        (file, address)
    }

    #[test]
    fn written_pages_are_found_by_scan_and_by_walk() {
        let (_file, address) = mapped();
        let expected = [Range { start: address + PAGE_BYTES, end: address + 3 * PAGE_BYTES }];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        assert_eq!(walk(&pagemap, address, address + 8 * PAGE_BYTES).unwrap(), expected);
        match scan(&pagemap, address, address + 8 * PAGE_BYTES) {
            Ok(ranges) => assert_eq!(ranges, expected),
            // Before Linux 6.7. `EINVAL`, which `private_pages` takes for the same, would be our mistake.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                println!("skipped: this kernel has no page scan ({error})");
            }
            Err(error) => panic!("the page scan failed: {error}"),
        }
    }

    #[test]
    fn copying_private_pages_makes_the_target_equal_to_memory() {
        let (file, address) = mapped();
        // Pages that a machine shares with its parent: private here, and in its base too.
        let inherited = tempfile::tempfile().unwrap();
        let mut base = Vec::new();
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap().read_to_end(&mut base).unwrap();
        base[PAGE] = 1;
        inherited.write_all_at(&base, 0).unwrap();
        let mut target = tempfile::tempfile().unwrap();
        target.write_all_at(&base, 0).unwrap();
        let pid = std::process::id();
        let mapping = Mapping { address, bytes: 8 * PAGE_BYTES, file_offset: 0 };
        let pidfd = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let written = copy_private_pages((pid, pidfd.as_fd()), mapping, &target, &inherited).unwrap();
        assert_eq!(written, PAGE_BYTES, "page 1 is equal in the base, page 2 is not");
        let mut copied = Vec::new();
        target.read_to_end(&mut copied).unwrap();
        // SAFETY: the mapping is 8 pages long and lives on.
        assert_eq!(copied, unsafe { std::slice::from_raw_parts(address as *const u8, 8 * PAGE) });
    }

    #[test]
    fn memory_of_a_process_that_reuses_the_pid_is_not_copied() {
        let (file, address) = mapped();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&ended), PidfdFlags::empty()).unwrap();
        ended.wait().unwrap();
        let this_got_the_id = (std::process::id(), pidfd.as_fd());
        let mapping = Mapping { address, bytes: 8 * PAGE_BYTES, file_offset: 0 };
        let error = copy_private_pages(this_got_the_id, mapping, &file, &file).unwrap_err();
        assert!(error.to_string().contains("ended while"), "{error}");
    }

    #[test]
    fn zero_pages_are_skipped_only_over_holes() {
        let base = tempfile::tempfile().unwrap();
        base.set_len(64 * PAGE_BYTES).unwrap();
        base.write_all_at(&[9; 16 * PAGE], 16 * PAGE_BYTES).unwrap();
        let mut original = vec![1; 60 * PAGE];
        Holes::of(&base).unwrap().read_around(&mut original, 4 * PAGE_BYTES).unwrap();
        let mut expected = vec![0; 60 * PAGE];
        expected[12 * PAGE..28 * PAGE].fill(9);
        assert_eq!(original, expected);
        let target = tempfile::tempfile().unwrap();
        let written = write_changed(&target, &[0; 60 * PAGE], &original, 4 * PAGE_BYTES).unwrap();
        assert_eq!(written, 16 * PAGE_BYTES, "zeros over data must be written, zeros over a hole must not");
        assert_eq!(target.metadata().unwrap().len(), 32 * PAGE_BYTES);
    }
}
