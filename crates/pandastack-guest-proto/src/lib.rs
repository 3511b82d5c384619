//! Messages and framing between agent and guest.
//!
//! Owns every byte that crosses the machine's boundary on the guest channel: how the two ends find
//! each other again after a restore ([`sync`]), how one byte stream carries many calls ([`frame`]),
//! and the calls' messages ([`message`]). With the feature `client` it also holds the host's end
//! ([`client::GuestClient`]).
//!
//! ```text
//! host                                                  guest
//!  | preamble(nonce) Hello Request(1, set_identity) ->    |   all three may be sent at once
//!  |                      <- ack(nonce) Hello Reply(1)    |
//!  | Request(2, exec)                              ->     |
//!  |            <- Event(2, started) Data(2) ... Data(2)  |   each within the credit of stream 2
//!  | Credit(2)                                     ->     |
//!  |                             <- Reply(2, exit status) |   a reply is final: stream 2 is gone
//! ```
//!
//! Invariants:
//! - A guest may be frozen inside a snapshot for years. One [`GENERATION`] number, optional new
//!   fields, ignored unknown fields; `VERSIONING.md` describes how to make changes.
//! - The guest is hostile to the host: decoding is pure, strict and bounded by [`limits`].
//! - The channel may lose its peer, or get a new one, at any byte; the preamble finds the frame boundary.
//!
//! Out of scope: executing calls inside the machine (`pandastack-guest`), making them
//! (`pandastack-agent`).
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
pub mod frame;
pub mod limits;
pub mod message;
pub mod sync;

/// The version of this protocol. Raised only when an older peer would misread a message.
pub const GENERATION: u32 = 1;

/// The oldest guest generation that this crate's client still speaks to.
pub const GENERATION_OLDEST: u32 = 1;

/// Name of the virtio-serial port that carries this protocol.
pub const PORT_NAME: &str = "pandastack.guest.0";

/// Port that the guest listens on where the channel is vsock.
pub const VSOCK_PORT: u32 = 1024;
