//! Fuzz target: archives in pieces of any size.

use pandastack_guest_proto::message::ErrorBody;

use super::tar_stream::{Entry, Item, TarStream};

/// Contents of an archive: its entries with their data, and the error that ended it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Unpacked {
    entries: Vec<(Entry, Vec<u8>, bool)>,
    error: Option<ErrorBody>,
}

fn unpack(archive: &[u8], piece_bytes: usize) -> Unpacked {
    let (mut stream, mut entries) = (TarStream::default(), Vec::new());
    let mut take = |item: Item<'_>| {
        match (item, entries.last_mut()) {
            (Item::Entry(entry), _) => entries.push((entry, Vec::new(), false)),
            (Item::Body(bytes), Some((_, content, false))) => content.extend_from_slice(bytes),
            (Item::FileEnd, Some((_, _, is_whole @ false))) => *is_whole = true,
            (item, last) => unreachable!("{item:?} after {last:?}"),
        }
        Ok(())
    };
    let fed = archive.chunks(piece_bytes).try_for_each(|piece| stream.feed(piece, &mut take));
    let error = fed.and_then(|()| stream.finish()).err();
    Unpacked { entries, error }
}

/// The first byte is the size of the pieces. An archive holds the same however it is cut, and no more than
/// its own bytes.
pub fn tar_stream(data: &[u8]) {
    let Some((piece, archive)) = data.split_first() else { return };
    let whole = unpack(archive, archive.len().max(1));
    assert_eq!(whole, unpack(archive, usize::from(*piece) + 1));
    let bytes: usize = whole.entries.iter().map(|(_, content, _)| content.len()).sum();
    assert!(bytes <= archive.len(), "{bytes} bytes of content in {}", archive.len());
}
