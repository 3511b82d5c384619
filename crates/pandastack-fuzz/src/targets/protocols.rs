//! Binary protocols whose parsers are public.

use pandastack_fleet::{JoinToken, SigningRequest};
use pandastack_function_proto as function;
use pandastack_guest_proto::frame::{FrameBuffer, FrameError, FrameKind, data_chunks, encode};
use pandastack_guest_proto::message::{Done, Event, Hello, Reply, Request as GuestRequest};
use pandastack_guest_proto::sync::{GuestDecoder, Input, PREAMBLE_MAGIC, find_ack_end, preamble};
use pandastack_qemu_shim::protocol::{REQUEST_BYTES_MAX, Request};
use pandastack_types::host_identity::HostIdentity;
use serde::Serialize;
use serde::de::DeserializeOwned;

type OwnedFrame = (FrameKind, u8, u32, Vec<u8>);

fn frames(bytes: &[u8], piece_bytes: usize) -> (Vec<OwnedFrame>, Option<FrameError>) {
    let (mut buffer, mut found) = (FrameBuffer::default(), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        buffer.push(piece);
        loop {
            match buffer.next_frame() {
                Ok(Some(frame)) => {
                    found.push((frame.kind, frame.flags, frame.stream, frame.payload.to_vec()))
                }
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// A valid message round-trips.
fn check_message<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(payload: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(payload) else { return };
    let written = serde_json::to_vec(&message).unwrap_or_default();
    assert_eq!(serde_json::from_slice::<T>(&written).ok(), Some(message));
}

/// Bytes of a guest after the handshake. The first byte is the size of the pieces.
pub(super) fn guest_frames(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let _ = find_ack_end(bytes, &[*piece; 16]);
    let whole = frames(bytes, bytes.len().max(1));
    assert_eq!(whole, frames(bytes, usize::from(*piece) + 1));
    let mut written = Vec::new();
    for (kind, flags, stream, payload) in &whole.0 {
        assert!(payload.len() <= kind.payload_max());
        encode(&mut written, *kind, *flags, *stream, payload);
        match kind {
            FrameKind::Hello => check_message::<Hello>(payload),
            FrameKind::Event => check_message::<Event>(payload),
            FrameKind::Reply => check_message::<Reply<Done>>(payload),
            FrameKind::Request => check_message::<GuestRequest>(payload),
            FrameKind::Data => assert_eq!(data_chunks(payload).collect::<Vec<_>>().concat(), *payload),
            FrameKind::End | FrameKind::Credit | FrameKind::Cancel => {}
        }
    }
    assert!(bytes.starts_with(&written));
}

/// Bytes on the guest's channel. The first byte is the size of the pieces. After any bytes, the
/// guest finds the next connection, unless that connection's preamble completed a truncated one.
pub(super) fn guest_decoder(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let mut decoder = GuestDecoder::default();
    for piece in bytes.chunks(usize::from(*piece) + 1) {
        decoder.push(piece);
        while let Some(input) = decoder.next_input() {
            if let Input::Frame(frame) = input {
                assert!(frame.payload.len() <= frame.kind.payload_max());
            }
        }
    }
    let before = bytes.get(bytes.len().saturating_sub(preamble(&[0; 16]).len())..).unwrap_or_default();
    if before.windows(PREAMBLE_MAGIC.len()).any(|window| window == PREAMBLE_MAGIC) {
        return;
    }
    let nonce = [7; 16];
    let mut connection = preamble(&nonce);
    encode(&mut connection, FrameKind::Cancel, 0, 9, &[]);
    decoder.push(&connection);
    let mut inputs = Vec::new();
    while let Some(input) = decoder.next_input() {
        inputs.push(match input {
            Input::Connected(nonce) => format!("connected {nonce:?}"),
            Input::Frame(frame) => format!("frame {}", frame.stream),
            Input::Lost(_) => "lost".to_owned(),
        });
    }
    let expect = [format!("connected {nonce:?}"), "frame 9".to_owned()];
    assert!(inputs.ends_with(&expect), "{inputs:?}");
}

/// Frames to and from the runtime of a function.
pub(super) fn function_frames(data: &[u8]) {
    let Some((head, payload)) = data.split_first_chunk() else { return };
    if let Ok((kind, length)) = function::decode_head(*head) {
        assert!(length <= function::FRAME_BYTES_MAX);
        let frame = function::encode(kind, payload.get(..length).unwrap_or(payload));
        let (head, _) = frame.split_first_chunk().unwrap_or((head, &[]));
        assert_eq!(function::decode_head(*head), Ok((kind, frame.len() - function::FRAME_HEAD_BYTES)));
    }
    if let Ok((call, event)) = function::decode_invoke(payload) {
        let frame = function::encode_invoke(&call, event);
        let again = function::decode_invoke(&frame[function::FRAME_HEAD_BYTES..]);
        assert_eq!(again, Ok((call, event)));
    }
    check_message::<function::Await>(payload);
    check_message::<function::Ready>(payload);
    check_message::<function::Head>(payload);
    check_message::<function::End>(payload);
}

/// A request to the library in an emulator's process.
pub(super) fn shim_request(data: &[u8]) {
    let Ok(request) = Request::decode(data) else { return };
    let mut written = [0; REQUEST_BYTES_MAX];
    let length = request.encode(&mut written).unwrap_or_default();
    assert_eq!(length, data.len());
    assert_eq!(Request::decode(&written[..length]), Ok(request));
}

/// What a host that joins sends: a request for a certificate, or a text with a token or an identity.
pub(super) fn host_join(data: &[u8]) {
    if let Err(error) = SigningRequest::from_der(data) {
        assert!(!error.to_string().is_empty());
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(token.expose(), text.trim());
        assert_eq!(JoinToken::id_of(token.presented()), Some(token.id()));
    }
    if let Ok(identity) = text.parse::<HostIdentity>() {
        assert_eq!(identity.to_string(), text);
    }
}
