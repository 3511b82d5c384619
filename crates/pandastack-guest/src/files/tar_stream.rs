//! Reading a tar archive that arrives in pieces of any size.
//!
//! Pure: bytes in, [`Item`]s out. Knows the old, ustar, GNU and pax forms. Nothing an archive claims makes it hold more
//! than [`EXTENSION_BYTES_MAX`].
//!
//! ```text
//! header --file--> body --> padding --> header ...   two blocks of zeros --> ended
//!    |--extension--> collected, applies to the next header
//! ```

use pandastack_guest_proto::message::{ErrorBody, ErrorCode};
use tar::{EntryType, Header, PaxExtensions};

use super::pack::BLOCK_BYTES;

/// Longest name or pax record set of one entry.
const EXTENSION_BYTES_MAX: u64 = 64 * 1024;

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File { size: u64 },
    Directory,
    Symlink { target: Vec<u8> },
    HardLink { target: Vec<u8> },
}

/// An entry's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) mtime_s: u64,
}

/// A parsed item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// Start of an entry.
    Entry(Entry),
    /// Content of the file that began last.
    Body(&'a [u8]),
    /// The current file is complete.
    FileEnd,
}

/// The state between two pieces.
#[derive(Debug, Default)]
pub(super) struct TarStream {
    stage: Stage,
    header: Vec<u8>,
    zero_blocks: u32,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    pax: Vec<u8>,
    /// Any byte was seen.
    begun: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Header,
    Extension {
        kind: ExtensionKind,
        left: u64,
        padding: u64,
    },
    Body {
        left: u64,
        padding: u64,
    },
    Skip {
        left: u64,
    },
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExtensionKind {
    Name,
    Link,
    Pax,
}

fn refuse(message: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::Invalid, message)
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).chars().take(200).collect()
}

impl TarStream {
    /// Takes a piece and passes on its content.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut emit: impl FnMut(Item<'_>) -> Result<(), ErrorBody>,
    ) -> Result<(), ErrorBody> {
        self.begun |= !bytes.is_empty();
        while !bytes.is_empty() {
            match self.stage {
                Stage::Header => {
                    let wanted = BLOCK_BYTES - self.header.len();
                    let taken = take(&mut bytes, wanted as u64);
                    self.header.extend_from_slice(taken);
                    if self.header.len() == BLOCK_BYTES {
                        self.end_header(&mut emit)?;
                    }
                }
                Stage::Extension { kind, left, padding } => {
                    let taken = take(&mut bytes, left);
                    self.extension(kind).extend_from_slice(taken);
                    let left = left - taken.len() as u64;
                    self.stage = match left {
                        0 => skip(padding),
                        left => Stage::Extension { kind, left, padding },
                    };
                }
                Stage::Body { left, padding } => {
                    let taken = take(&mut bytes, left);
                    emit(Item::Body(taken))?;
                    let left = left - taken.len() as u64;
                    self.stage = Stage::Body { left, padding };
                    if left == 0 {
                        emit(Item::FileEnd)?;
                        self.stage = skip(padding);
                    }
                }
                Stage::Skip { left } => {
                    let taken = take(&mut bytes, left).len() as u64;
                    self.stage = skip(left - taken);
                }
                // Bytes after the end are padding.
                Stage::Ended => return Ok(()),
            }
        }
        Ok(())
    }

    /// All was fed.
    pub(super) fn finish(&self) -> Result<(), ErrorBody> {
        match self.stage {
            _ if !self.begun => Err(refuse("the archive is empty; send a tar archive as the body")),
            Stage::Ended => Ok(()),
            Stage::Header if self.header.is_empty() => Ok(()),
            _ => Err(refuse("the archive is cut off in the middle of an entry; send it again")),
        }
    }

    fn extension(&mut self, kind: ExtensionKind) -> &mut Vec<u8> {
        match kind {
            ExtensionKind::Name => self.long_name.get_or_insert_default(),
            ExtensionKind::Link => self.long_link.get_or_insert_default(),
            ExtensionKind::Pax => &mut self.pax,
        }
    }

    fn end_header(
        &mut self,
        emit: &mut impl FnMut(Item<'_>) -> Result<(), ErrorBody>,
    ) -> Result<(), ErrorBody> {
        let block = std::mem::take(&mut self.header);
        if block.iter().all(|&byte| byte == 0) {
            self.zero_blocks += 1;
            if self.zero_blocks == 2 {
                self.stage = Stage::Ended;
            }
            return Ok(());
        }
        self.zero_blocks = 0;
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&block);
        check_sum(&header, &block)?;
        let size = header.size().map_err(|_| refuse("the archive has an entry without a readable size"))?;
        let kind = match header.entry_type() {
            EntryType::GNULongName => Some(ExtensionKind::Name),
            EntryType::GNULongLink => Some(ExtensionKind::Link),
            EntryType::XHeader => Some(ExtensionKind::Pax),
            _ => None,
        };
        if let Some(kind) = kind {
            if size > EXTENSION_BYTES_MAX {
                let limit = format!("the archive has a name of {size} bytes; at most {EXTENSION_BYTES_MAX}");
                return Err(refuse(limit));
            }
            self.extension(kind).clear();
            self.stage = Stage::Extension { kind, left: size, padding: padding(size) };
            if size == 0 {
                self.stage = Stage::Header;
            }
            return Ok(());
        }
        self.begin_entry(&header, size, emit)
    }

    fn begin_entry(
        &mut self,
        header: &Header,
        size: u64,
        emit: &mut impl FnMut(Item<'_>) -> Result<(), ErrorBody>,
    ) -> Result<(), ErrorBody> {
        if header.entry_type() == EntryType::XGlobalHeader {
            // Comments, such as git's.
            self.stage = skip(padded(size)?);
            return Ok(());
        }
        let pax = std::mem::take(&mut self.pax);
        let path = pax_value(&pax, "path").or(self.long_name.take().map(trim_zeros));
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = pax_value(&pax, "linkpath").or(self.long_link.take().map(trim_zeros));
        let target =
            link.unwrap_or_else(|| header.link_name_bytes().map(|l| l.into_owned()).unwrap_or_default());
        let size = pax_value(&pax, "size")
            .and_then(|text| String::from_utf8(text).ok()?.parse().ok())
            .unwrap_or(size);
        let kind = match header.entry_type() {
            // Before ustar a directory was a file whose name ends so.
            EntryType::Regular if path.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File { size },
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink { target },
            EntryType::Link => Kind::HardLink { target },
            _ => {
                let what = "is a device, a pipe or of another kind that is not unpacked here";
                return Err(refuse(format!("entry {:?} {what}", shown(&path))));
            }
        };
        let (mode, mtime_s) = (header.mode().unwrap_or(0o644), header.mtime().unwrap_or_default());
        let is_file = matches!(kind, Kind::File { .. });
        emit(Item::Entry(Entry { path, kind, mode, mtime_s }))?;
        self.stage = match (is_file, size) {
            (true, 0) => {
                emit(Item::FileEnd)?;
                Stage::Header
            }
            (true, size) => Stage::Body { left: size, padding: padding(size) },
            (false, size) => skip(padded(size)?),
        };
        Ok(())
    }
}

fn check_sum(header: &Header, block: &[u8]) -> Result<(), ErrorBody> {
    // The field itself counts as spaces.
    let sum = |range: std::ops::Range<usize>| -> u32 {
        block.get(range).unwrap_or_default().iter().map(|&byte| u32::from(byte)).sum()
    };
    let counted = sum(0..148) + 8 * u32::from(b' ') + sum(156..BLOCK_BYTES);
    if header.cksum().ok() == Some(counted) {
        return Ok(());
    }
    Err(refuse("this is not a tar archive, or it is damaged; a compressed one has to be unpacked first"))
}

fn pax_value(records: &[u8], key: &str) -> Option<Vec<u8>> {
    let records = PaxExtensions::new(records).flatten();
    records.filter(|record| record.key() == Ok(key)).last().map(|record| record.value_bytes().to_vec())
}

fn trim_zeros(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

fn take<'a>(bytes: &mut &'a [u8], wanted: u64) -> &'a [u8] {
    let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(bytes.len());
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

fn skip(left: u64) -> Stage {
    if left == 0 { Stage::Header } else { Stage::Skip { left } }
}

fn padding(size: u64) -> u64 {
    (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64
}

fn padded(size: u64) -> Result<u64, ErrorBody> {
    size.checked_add(padding(size)).ok_or_else(|| refuse("the archive has an entry of impossible size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let add = |builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]| {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o640);
            builder.append_data(&mut header, name, content).unwrap();
        };
        add(&mut builder, "plain", b"content");
        add(&mut builder, "empty", b"");
        add(&mut builder, &format!("{}/long", "d".repeat(150)), &[7; 700]);
        builder.into_inner().unwrap()
    }

    fn items(bytes: &[u8], piece: usize) -> Result<Vec<(String, usize)>, ErrorBody> {
        let mut stream = TarStream::default();
        let mut seen: Vec<(String, usize)> = Vec::new();
        for piece in bytes.chunks(piece) {
            stream.feed(piece, |item| {
                match item {
                    Item::Entry(entry) => seen.push((shown(&entry.path), 0)),
                    Item::Body(bytes) => seen.last_mut().unwrap().1 += bytes.len(),
                    Item::FileEnd => {}
                }
                Ok(())
            })?;
        }
        stream.finish().map(|()| seen)
    }

    #[test]
    fn tar_parsing_does_not_depend_on_chunk_size() {
        let archive = archive();
        let whole = items(&archive, archive.len()).unwrap();
        let sizes: Vec<usize> = whole.iter().map(|(_, size)| *size).collect();
        assert_eq!(sizes, [7, 0, 700]);
        assert!(whole[2].0.ends_with("/long") && whole[2].0.len() == 155);
        for piece in [1, 7, 511, 512, 513, 4096] {
            assert_eq!(items(&archive, piece).unwrap(), whole, "{piece}");
        }
    }

    #[test]
    fn a_truncated_tar_is_accepted_only_at_block_boundaries() {
        let archive = archive();
        for end in 1..archive.len() {
            match items(&archive[..end], 4096) {
                Ok(_) => assert_eq!(end % BLOCK_BYTES, 0, "{end}"),
                Err(error) => assert_eq!(error.code, ErrorCode::Invalid),
            }
        }
    }

    #[test]
    fn corrupt_archives_are_rejected_without_panicking() {
        assert!(items(b"", 1).is_ok_and(|items| items.is_empty()) || items(b"", 1).is_err());
        assert!(TarStream::default().finish().is_err());
        let mut seed = 1_u32;
        for round in 0..500 {
            let mut bytes = archive();
            for _ in 0..(round % 20 + 1) {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = seed as usize % bytes.len();
                bytes[at] ^= (seed >> 24) as u8;
            }
            let _ = items(&bytes, 1000);
        }
        assert!(items(&[0x1f, 0x8b].repeat(512), 512).unwrap_err().message.contains("not a tar"));
    }

    #[test]
    fn an_oversized_tar_name_is_refused_before_buffering() {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(EXTENSION_BYTES_MAX + 1);
        header.set_cksum();
        assert!(items(header.as_bytes(), 512).unwrap_err().message.contains("at most"));
        header.set_size(EXTENSION_BYTES_MAX);
        header.set_cksum();
        assert!(items(header.as_bytes(), 512).unwrap_err().message.contains("cut off"));
    }
}
