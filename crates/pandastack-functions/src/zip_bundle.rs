//! Converts zip bundles to gzip-compressed tar archives.
//!
//! Invariants: at most the limits of a bundle are ever unpacked, counted on the output rather than
//! on the archive's own claims; only files, directories and links that stay inside pass. Names and
//! links are then checked once more with those of every bundle ([`crate::bundle::check`]).

use std::io::{Cursor, Read};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use pandastack_types::limits::{BUNDLE_ENTRIES_MAX, BUNDLE_UNPACKED_BYTES_MAX};
use tar::EntryType;
use zip::ZipArchive;
use zip::read::ZipFile;

use crate::bundle::{BundleRefused, clean, shown, stays_inside};

/// First bytes of an archive, and of one without entries.
const STARTS: [&[u8]; 2] = [b"PK\x03\x04", END];
/// Signature of the record at the end, which counts the entries.
const END: &[u8] = b"PK\x05\x06";
/// Longest such record: 22 bytes and a comment.
const END_BYTES_MAX: usize = 22 + 65_535;
/// Longest target of a link.
const LINK_BYTES_MAX: u64 = 4096;
/// Kinds of file in a Unix mode.
const KIND: u32 = 0o170_000;
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

type PackedTar = tar::Builder<GzEncoder<Vec<u8>>>;

/// Returns whether these bytes start like a zip archive.
pub(crate) fn is_zip(bytes: &[u8]) -> bool {
    STARTS.iter().any(|start| bytes.starts_with(start))
}

/// The same files as a gzip-compressed tar archive; equal files are equal bytes.
pub(crate) fn to_tar(bytes: &[u8]) -> Result<Vec<u8>, BundleRefused> {
    check_count(bytes)?;
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    if archive.len() > BUNDLE_ENTRIES_MAX {
        return Err(BundleRefused::TooMany);
    }
    let mut packed = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut left = BUNDLE_UNPACKED_BYTES_MAX;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(broken)?;
        left -= append(&mut packed, &mut entry, left)?;
    }
    packed.into_inner().and_then(GzEncoder::finish).map_err(broken)
}

fn broken(error: impl std::fmt::Display) -> BundleRefused {
    BundleRefused::NotAnArchive(error.to_string())
}

/// Checks the number of entries before the directory is read, because each takes memory.
fn check_count(bytes: &[u8]) -> Result<(), BundleRefused> {
    let tail = bytes.get(bytes.len().saturating_sub(END_BYTES_MAX)..).unwrap_or_default();
    let at = tail.windows(END.len()).rposition(|window| window == END);
    let count = at.and_then(|at| tail.get(at + 10..at + 12)).and_then(|field| field.try_into().ok());
    match count.map(u16::from_le_bytes) {
        Some(count) if usize::from(count) > BUNDLE_ENTRIES_MAX => Err(BundleRefused::TooMany),
        Some(_) => Ok(()),
        None => Err(broken("it is truncated")),
    }
}

/// Adds an entry; how many bytes it has.
fn append<R: Read>(
    packed: &mut PackedTar,
    entry: &mut ZipFile<'_, R>,
    left: u64,
) -> Result<u64, BundleRefused> {
    let raw = entry.name().map_err(broken)?.into_owned();
    let name = Path::new(&raw);
    let path = clean(name).ok_or_else(|| BundleRefused::Outside(shown(name)))?;
    let mode = entry.unix_mode();
    let kind = mode.map_or(0, |mode| mode & KIND);
    let mut header = tar::Header::new_gnu();
    // Archives from systems without file modes do not record executables.
    header.set_mode(mode.map_or(0o755, |mode| mode & 0o777));
    if entry.is_dir() || kind == DIRECTORY {
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        if !path.is_empty() {
            packed.append_data(&mut header, format!("{path}/"), std::io::empty()).map_err(broken)?;
        }
        return Ok(0);
    }
    if kind == LINK {
        return append_link(packed, entry, header, &path);
    }
    if ![0, FILE].contains(&kind) {
        return Err(BundleRefused::Special(path));
    }
    let mut content = Vec::new();
    entry.take(left + 1).read_to_end(&mut content).map_err(broken)?;
    let size = content.len() as u64;
    if size > left {
        return Err(BundleRefused::TooLarge);
    }
    header.set_size(size);
    packed.append_data(&mut header, path, Cursor::new(content)).map_err(broken)?;
    Ok(size)
}

/// A link's content is where it leads.
fn append_link<R: Read>(
    packed: &mut PackedTar,
    entry: &mut ZipFile<'_, R>,
    mut header: tar::Header,
    path: &str,
) -> Result<u64, BundleRefused> {
    let outside = || BundleRefused::LinkOutside(path.to_owned());
    let mut target = String::new();
    entry.take(LINK_BYTES_MAX).read_to_string(&mut target).map_err(broken)?;
    if target.is_empty() || !stays_inside(path.matches('/').count(), Path::new(&target)) {
        return Err(outside());
    }
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    packed.append_link(&mut header, path, &target).map_err(broken)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::bundle::{check, read_file};

    fn zipped(fill: impl FnOnce(&mut ZipWriter<Cursor<Vec<u8>>>)) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        fill(&mut writer);
        writer.finish().unwrap().into_inner()
    }

    fn file(name: &str, content: &[u8]) -> Vec<u8> {
        zipped(|zip| {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        })
    }

    /// The external attributes of the only entry, which no writer lets be anything.
    fn with_mode(mut bytes: Vec<u8>, mode: u32) -> Vec<u8> {
        let at = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        bytes[at + 5] = 3; // Made on Unix.
        bytes[at + 38..at + 42].copy_from_slice(&(mode << 16).to_le_bytes());
        bytes
    }

    #[test]
    fn files_directories_links_and_modes_are_preserved() {
        let bytes = zipped(|zip| {
            zip.add_directory("pkg", SimpleFileOptions::default()).unwrap();
            zip.start_file("pkg/run", SimpleFileOptions::default().unix_permissions(0o755)).unwrap();
            zip.write_all(b"#!/bin/sh\n").unwrap();
            zip.add_symlink("pkg/link", "run", SimpleFileOptions::default()).unwrap();
        });
        assert!(is_zip(&bytes));
        let packed = to_tar(&bytes).unwrap();
        assert_eq!(packed, to_tar(&bytes).unwrap(), "equal files are equal bytes");
        assert_eq!(check(&packed).unwrap().files, ["pkg/run"]);
        assert_eq!(read_file(&packed, "pkg/run").unwrap(), b"#!/bin/sh\n");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed[..]));
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.header().entry_type(), entry.header().mode().unwrap())
            })
            .collect();
        assert_eq!(entries[0].0, EntryType::Directory);
        assert_eq!(entries[1], (EntryType::Regular, 0o755));
        assert_eq!(entries[2].0, EntryType::Symlink);
    }

    #[test]
    fn zip_entries_outside_the_bundle_and_special_files_are_rejected() {
        assert_eq!(to_tar(&file("../x", b"")), Err(BundleRefused::Outside("../x".to_owned())));
        assert_eq!(to_tar(&file("/etc/x", b"")), Err(BundleRefused::Outside("/etc/x".to_owned())));
        for target in ["/etc/passwd", "../x", "a/../../x"] {
            let link = with_mode(file("link", target.as_bytes()), 0o120_777);
            assert_eq!(to_tar(&link), Err(BundleRefused::LinkOutside("link".to_owned())), "{target}");
        }
        for kind in [0o020_000, 0o060_000, 0o010_000, 0o140_000] {
            let special = with_mode(file("a", b""), kind | 0o644);
            assert_eq!(to_tar(&special), Err(BundleRefused::Special("a".to_owned())), "{kind:o}");
        }
    }

    #[test]
    fn zip_bombs_and_malformed_archives_are_refused() {
        let exact = vec![0; usize::try_from(BUNDLE_UNPACKED_BYTES_MAX).unwrap()];
        let fits = file("a", &exact);
        assert!(fits.len() < 1024 * 1024 && to_tar(&fits).is_ok());
        assert_eq!(to_tar(&file("a", &[&exact[..], b"1"].concat())), Err(BundleRefused::TooLarge));
        let two = zipped(|zip| {
            for name in ["a", "b"] {
                zip.start_file(name, SimpleFileOptions::default()).unwrap();
                zip.write_all(&exact[..exact.len() / 2 + 1]).unwrap();
            }
        });
        assert_eq!(to_tar(&two), Err(BundleRefused::TooLarge), "in sum");
        let many = zipped(|zip| {
            for n in 0..=BUNDLE_ENTRIES_MAX {
                zip.start_file(format!("f{n}"), SimpleFileOptions::default()).unwrap();
            }
        });
        assert_eq!(to_tar(&many), Err(BundleRefused::TooMany));
        assert!(matches!(to_tar(b"PK\x03\x04 nothing more"), Err(BundleRefused::NotAnArchive(_))));
        let cut = file("a", &[7; 5000]);
        assert!(matches!(to_tar(&cut[..cut.len() / 2]), Err(BundleRefused::NotAnArchive(_))));
    }

    #[test]
    fn a_false_zip_size_is_not_trusted() {
        // The directory claims one byte; the unpacked bytes are counted.
        let mut bytes = file("a", &vec![0; 4096]);
        let at = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        bytes[at + 24..at + 28].copy_from_slice(&1_u32.to_le_bytes());
        match to_tar(&bytes) {
            Ok(packed) => assert!(read_file(&packed, "a").unwrap().len() <= 4096),
            Err(refused) => assert!(matches!(refused, BundleRefused::NotAnArchive(_)), "{refused}"),
        }
    }
}
