//! Lists the elements of a set with timeouts.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use libc::{NFNL_SUBSYS_NFTABLES, NFT_MSG_GETSETELEM, NFT_MSG_NEWSETELEM};

use super::{Attributes, NLM_F_REQUEST, NOTE_KIND, SetName};
use crate::error::{NetError, Result};
use crate::netlink::{FIRST_SEQUENCE, HEADER_BYTES, Netlink, attributes};

const NLM_F_DUMP: u16 = 0x300;

/// Bytes of `struct nfgenmsg`, before the attributes.
const GENERIC_BYTES: usize = 4;

/// Attributes of a message, of an element, and of its key.
const ELEMENTS: u16 = 3;
const KEY: u16 = 1;
const LEFT: u16 = 5;
const NOTE: u16 = 6;
const VALUE: u16 = 1;

/// An element as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedElement {
    pub(crate) address: Ipv4Addr,
    /// Time until it expires.
    pub(crate) left: Duration,
    /// Empty if the element has none.
    pub(crate) note: String,
}

/// Lists the elements of an expiring set, through a socket of its namespace. A missing set has
/// none.
pub(crate) fn list_set(socket: &Netlink, table: &str, set: SetName) -> Result<Vec<ListedElement>> {
    let kind = |message: libc::c_int| (NFNL_SUBSYS_NFTABLES as u16) << 8 | message as u16;
    let mut found = Vec::new();
    let request = request(kind(NFT_MSG_GETSETELEM), table, set);
    match socket.list(&request, kind(NFT_MSG_NEWSETELEM), |body| found.extend(read(body))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(NetError::Netlink {
            action: format!("listing nftables set {}", set.0),
            target: table.to_owned(),
            reason: error,
        }),
        _ => Ok(found),
    }
}

fn request(kind: u16, table: &str, set: SetName) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend(FIRST_SEQUENCE.to_ne_bytes());
    bytes.extend([0; 4]);
    debug_assert_eq!(bytes.len(), HEADER_BYTES);
    bytes.extend([libc::NFPROTO_INET as u8, 0, 0, 0]);
    let mut to = Attributes(&mut bytes);
    to.text(1, table);
    to.text(2, set.0);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

/// The elements of one message.
fn read(body: &[u8]) -> Vec<ListedElement> {
    let body = body.get(GENERIC_BYTES..).unwrap_or_default();
    let lists = attributes(body).filter(|attribute| attribute.kind == ELEMENTS);
    lists.flat_map(|list| attributes(list.value())).filter_map(|one| read_element(one.value())).collect()
}

fn read_element(element: &[u8]) -> Option<ListedElement> {
    let part = |kind: u16| attributes(element).find(|attribute| attribute.kind == kind);
    let key = attributes(part(KEY)?.value()).find(|attribute| attribute.kind == VALUE)?;
    let address = *key.value().first_chunk::<4>()?;
    let left = u64::from_be_bytes(*part(LEFT)?.value().first_chunk::<8>()?);
    let note = part(NOTE).and_then(|note| read_note(note.value()).map(str::to_owned));
    Some(ListedElement {
        address: Ipv4Addr::from(address),
        left: Duration::from_millis(left),
        note: note.unwrap_or_default(),
    })
}

fn read_note(bytes: &[u8]) -> Option<&str> {
    let (head, text) = bytes.split_first_chunk::<2>()?;
    let text = text.get(..usize::from(head[1]))?.strip_suffix(&[0])?;
    (head[0] == NOTE_KIND).then(|| std::str::from_utf8(text).ok())?
}

#[cfg(test)]
mod tests {
    use super::super::{Element, NOTE_BYTES_MAX};
    use super::*;

    /// A message that lists the element as the kernel would, with its whole lifetime left.
    fn listed(note: &str) -> Vec<u8> {
        let lifetime = Duration::from_secs(300);
        let element = Element { address: Ipv4Addr::new(93, 184, 216, 34), class: 2, lifetime, note };
        let mut bytes = vec![0; GENERIC_BYTES];
        Attributes(&mut bytes).nest(ELEMENTS, |a| element.write(a, true, true));
        // Use the configured lifetime as the remaining time.
        let at = bytes.windows(4).position(|four| four == [12, 0, 4, 0]).expect("a lifetime");
        bytes[at + 2] = LEFT as u8;
        bytes
    }

    #[test]
    fn nft_elements_are_parsed_with_their_notes() {
        let check = |note: &str, expect: &str| {
            let [one] = read(&listed(note)).try_into().expect("one element");
            let ListedElement { address, left, note } = one;
            assert_eq!((address.octets(), left.as_secs()), ([93, 184, 216, 34], 300));
            assert_eq!(note, expect);
        };
        check("a.com", "a.com");
        check("", "");
        let longest = "a".repeat(NOTE_BYTES_MAX);
        check(&longest, &longest);
        check(&"a".repeat(NOTE_BYTES_MAX + 1), "");
    }

    #[test]
    fn truncated_nft_listings_are_ignored() {
        let whole = listed("a.com");
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_empty(), "{length}");
        }
        for bytes in [&[][..], &[0], &[0, 5, b'a'], &[1, 2, b'a', 0], &[0, 0], &[0, 1, 7]] {
            assert_eq!(read_note(bytes), None, "{bytes:?}");
        }
    }
}
