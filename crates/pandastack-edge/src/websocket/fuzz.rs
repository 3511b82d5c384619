//! Fuzz target: where WebSocket frames end, in pieces of any size.

use super::frames::Frames;

/// The first byte is the size of the pieces. Frames end at the same bytes however they are cut, and the rest
/// of a frame ends it.
pub fn websocket(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let (mut whole, mut cut) = (Frames::default(), Frames::default());
    whole.pass(bytes);
    for piece in bytes.chunks(usize::from(*piece) + 1) {
        let rest = cut.rest_within(piece);
        assert!(rest <= piece.len());
        let was_between = cut.is_between();
        cut.pass(&piece[..rest]);
        assert!(if was_between { rest == 0 } else { cut.is_between() || rest == piece.len() });
        cut.pass(&piece[rest..]);
    }
    assert_eq!(whole, cut);
    assert!(!(whole.is_lost() && whole.is_between()));
}
