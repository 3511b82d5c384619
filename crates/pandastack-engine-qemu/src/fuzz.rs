//! Targets for `cargo xtask fuzz`.

use pandastack_qemu_shim::protocol::{REPLY_BYTES_MAX, Reply};
use serde_json::Value;

use crate::qmp::result;
use crate::qmp_lines::Lines;
use crate::shim_client::describe;

fn lines_of(bytes: &[u8], piece_bytes: usize) -> Vec<Vec<u8>> {
    let (mut lines, mut found) = (Lines::default(), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        lines.buffer().extend_from_slice(piece);
        while let Some(line) = lines.next_line() {
            found.push(line.to_vec());
        }
    }
    assert_eq!(found.concat().len() + lines.unfinished_bytes(), bytes.len());
    found
}

/// Bytes of an emulator on its control connection. The first byte is the size of the pieces.
pub fn qmp(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let lines = lines_of(bytes, bytes.len().max(1));
    assert_eq!(lines, lines_of(bytes, usize::from(*piece) + 1));
    for reply in lines.iter().filter_map(|line| serde_json::from_slice::<Value>(line).ok()) {
        let is_error = reply.get("return").is_none();
        assert_eq!(result("fuzz", reply).is_err(), is_error);
    }
}

/// A reply of the library in an emulator's process. A valid reply round-trips.
pub fn shim_reply(data: &[u8]) {
    let Ok(reply) = Reply::decode(data) else { return };
    assert!(!describe(reply.status, reply.errno, reply.note.as_bytes()).is_empty());
    let mut written = [0; REPLY_BYTES_MAX];
    let length = reply.encode(&mut written);
    assert_eq!(length, Ok(data.len()));
    assert_eq!(Reply::decode(&written[..data.len()]), Ok(reply));
}
