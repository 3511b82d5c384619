//! Every limit of the guest channel, in one place.
//!
//! Both ends enforce limits on received data; sent data keeps to the same limits. Raising one is
//! compatible only if the *other* end, possibly years old, accepts it: see `VERSIONING.md`.

/// Largest payload of any frame but a request.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// Largest payload of a request frame. A shell command may be 128 KiB (the kernel's own limit for one
/// argument) and arrives as escaped JSON beside its environment.
pub const REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// Largest data payload that our own senders put in one frame. Smaller than the limit, so that
/// streams are interleaved more finely.
pub const DATA_BYTES_MAX: usize = 32 * 1024;

/// Bytes that a sender may have in flight on one stream before the receiver grants more.
pub const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Least that a frame costs against the window, so that tiny frames cannot pile up without bound.
pub const FRAME_CHARGE_BYTES_MIN: u32 = 256;

/// Most frames that can wait in one stream's queue: the window full of the cheapest frames, and a reply.
pub const STREAM_QUEUE_FRAMES_MAX: usize = (STREAM_WINDOW_BYTES / FRAME_CHARGE_BYTES_MIN) as usize + 1;

/// Calls that may be open at once on one connection.
pub const STREAMS_MAX: usize = 256;

/// Stale bytes that the host discards while it looks for the echo of its nonce. At most the
/// contents of the guest's virtqueue and the host's socket can be left over, both far below this.
pub const RESYNC_DISCARD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Output bytes that the guest keeps per process stream, for readers that attach or reconnect
/// later.
pub const OUTPUT_RING_BYTES: usize = 1024 * 1024;

/// Output already sent to a reader that the guest keeps, so that the reader can request it again
/// after its connection broke: the bytes that may be in flight in all buffers between guest and
/// client.
pub const OUTPUT_UNSEEN_BYTES: usize = OUTPUT_RING_BYTES * 3 / 4;

/// Time, on the guest's clock, that a process is held back for a lost reader before its oldest
/// output is dropped.
pub const OUTPUT_HOLD_SECONDS: u64 = 30;

/// Least entropy that an identity must carry.
pub const ENTROPY_BYTES_MIN: usize = 32;

/// Most entropy that an identity may carry.
pub const ENTROPY_BYTES_MAX: usize = 512;

/// Longest name of an extended attribute: the kernel's own limit.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Most bytes of names and values of the extended attributes in a file's description, or set at once.
pub const XATTRS_BYTES_MAX: usize = 4096;

/// Charge of a frame with this payload length against its stream's window.
#[must_use]
pub fn frame_charge(payload_len: usize) -> u32 {
    u32::try_from(payload_len).unwrap_or(u32::MAX).max(FRAME_CHARGE_BYTES_MIN)
}
