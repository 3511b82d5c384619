//! Reading Debian binary packages: an `ar` archive holding `data.tar` in one of three compressions.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use crate::error::ImageError;

const MAGIC: &[u8; 8] = b"!<arch>\n";
const HEADER_BYTES: usize = 60;

/// Unpacks those files of a package whose path (without leading `./`) `wanted` accepts, below `into`.
pub(crate) fn unpack(package: &Path, into: &Path, wanted: impl Fn(&Path) -> bool) -> Result<(), ImageError> {
    let open = ImageError::io("open", package);
    unpack_from(BufReader::new(File::open(package).map_err(open)?), package, into, wanted)
}

/// The same, from any reader of the package.
pub(crate) fn unpack_from(
    mut reader: impl Read + Seek,
    package: &Path,
    into: &Path,
    wanted: impl Fn(&Path) -> bool,
) -> Result<(), ImageError> {
    let member = find_data(&mut reader, package)?;
    let data = reader.take(member.size_bytes);
    let decoded: Box<dyn Read> = match member.name.as_str() {
        "data.tar.xz" => Box::new(xz2::read::XzDecoder::new(data)),
        "data.tar.zst" => Box::new(zstd::Decoder::new(data).map_err(ImageError::io("decompress", package))?),
        "data.tar" => Box::new(data),
        other => {
            return Err(ImageError::malformed(
                package.display().to_string(),
                format!("unknown member {other}"),
            ));
        }
    };
    unpack_tar(decoded, package, into, wanted)
}

struct Member {
    name: String,
    size_bytes: u64,
}

/// Positions `reader` at the contents of the package's `data.tar*` member.
fn find_data(reader: &mut (impl Read + Seek), package: &Path) -> Result<Member, ImageError> {
    let mut magic = [0; 8];
    reader.read_exact(&mut magic).map_err(ImageError::io("read", package))?;
    if &magic != MAGIC {
        return Err(ImageError::malformed(package.display().to_string(), "not a Debian package"));
    }
    loop {
        let mut header = [0; HEADER_BYTES];
        reader.read_exact(&mut header).map_err(ImageError::io("read", package))?;
        let member = parse_header(&header)
            .ok_or_else(|| ImageError::malformed(package.display().to_string(), "broken archive header"))?;
        if member.name.starts_with("data.tar") {
            return Ok(member);
        }
        // Members start at even offsets.
        let skip = i64::try_from(member.size_bytes + member.size_bytes % 2)
            .map_err(|error| ImageError::malformed(package.display().to_string(), error))?;
        reader.seek(SeekFrom::Current(skip)).map_err(ImageError::io("read", package))?;
    }
}

fn parse_header(header: &[u8; HEADER_BYTES]) -> Option<Member> {
    let text = std::str::from_utf8(header).ok()?;
    if text.get(58..60)? != "`\n" {
        return None;
    }
    let name = text.get(..16)?.trim_end().trim_end_matches('/').to_owned();
    Some(Member { name, size_bytes: text.get(48..58)?.trim_end().parse().ok()? })
}

fn unpack_tar(
    decoded: impl Read,
    package: &Path,
    into: &Path,
    wanted: impl Fn(&Path) -> bool,
) -> Result<(), ImageError> {
    let mut archive = tar::Archive::new(decoded);
    for entry in archive.entries().map_err(ImageError::io("read", package))? {
        let mut entry = entry.map_err(ImageError::io("read", package))?;
        let path = relative(&entry.path().map_err(ImageError::io("read", package))?);
        if entry.header().entry_type().is_dir() || !wanted(&path) {
            continue;
        }
        let target = into.join(&path);
        let parent = target.parent().unwrap_or(into);
        std::fs::create_dir_all(parent).map_err(ImageError::io("create", parent))?;
        entry.unpack(&target).map_err(ImageError::io("unpack", &target))?;
    }
    Ok(())
}

/// Keeps only the plain components: an archive cannot lead out of the target directory.
fn relative(path: &Path) -> PathBuf {
    path.components().filter(|component| matches!(component, Component::Normal(_))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(dir: &Path, members: &[(&str, &[u8])]) -> PathBuf {
        let mut bytes = MAGIC.to_vec();
        for (name, data) in members {
            bytes.extend(
                format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, data.len()).bytes(),
            );
            bytes.extend_from_slice(data);
            bytes.extend(std::iter::repeat_n(b'\n', data.len() % 2));
        }
        let path = dir.join("test.deb");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn data_tar(path: &str, contents: &[u8]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        // Set by hand: the crate's own setter refuses hostile paths.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, contents).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn wanted_files_are_unpacked_past_odd_sized_members() {
        let dir = tempfile::tempdir().unwrap();
        let data = data_tar("./boot/vmlinuz", b"kernel");
        let deb =
            package(dir.path(), &[("debian-binary", b"2.0"), ("control.tar", b"12345"), ("data.tar", &data)]);
        let into = dir.path().join("out");
        unpack(&deb, &into, |path| path.starts_with("boot")).unwrap();
        assert_eq!(std::fs::read(into.join("boot/vmlinuz")).unwrap(), b"kernel");
    }

    #[test]
    fn a_path_traversal_stays_inside_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let data = data_tar("../../escaped", b"x");
        let deb = package(dir.path(), &[("data.tar", &data)]);
        unpack(&deb, &dir.path().join("a/b/out"), |_| true).unwrap();
        assert!(!dir.path().join("a/escaped").exists());
        assert!(dir.path().join("a/b/out/escaped").exists());
    }

    #[test]
    fn malformed_deb_archives_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rubbish.deb");
        std::fs::write(&path, b"not an archive at all, only text that is long enough to be read").unwrap();
        assert!(matches!(unpack(&path, dir.path(), |_| true), Err(ImageError::Malformed { .. })));
    }
}
