//! Fuzz target: requests of a handler to the runtime API.

use std::io::{BufRead, BufReader};

use super::http::read_head;

/// Bytes of a body that are read at a time.
const PART_BYTES: usize = 1000;

/// Requests as they were read, up to the first that is malformed.
fn requests(reader: &mut impl BufRead) -> Vec<(String, String, Vec<u8>, bool)> {
    let mut found = Vec::new();
    while let Ok(Some(head)) = read_head(reader) {
        let (mut content, mut is_whole) = (Vec::new(), false);
        if let Ok(mut body) = head.body() {
            while let Ok(part) = body.read_part(reader, PART_BYTES) {
                assert!(part.len() <= PART_BYTES, "a part of {} bytes", part.len());
                if part.is_empty() {
                    is_whole = true;
                    break;
                }
                content.extend_from_slice(&part);
            }
        }
        found.push((head.method, head.path, content, is_whole));
        if !is_whole {
            break;
        }
    }
    found
}

/// The first byte is the size of the buffer. Requests are the same however they arrive.
pub fn runtime_http(data: &[u8]) {
    let Some((buffer, mut bytes)) = data.split_first() else { return };
    let cut = requests(&mut BufReader::with_capacity(usize::from(*buffer) + 1, bytes));
    assert_eq!(requests(&mut bytes), cut);
}
