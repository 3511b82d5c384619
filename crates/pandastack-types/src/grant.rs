//! Traffic grants: the protocol by which an agent permits an edge to send requests to a guest.
//!
//! An edge that wants to send requests to a sandbox asks its agent for a grant (`POST
//! /agent/v1/sandboxes/{id}/door`, upgraded to [`UPGRADE`]). The agent wakes a sleeping sandbox, or
//! with `?wake=false` refuses with `conflict`, then answers with the guest's address in
//! [`ADDRESS_HEADER`]. While the stream is open the edge may use that address without another
//! request. Each message is one byte:
//!
//! ```text
//!   edge                                   agent
//!    |  BUSY, IDLE: whether requests run    |   an idle sandbox may go to sleep
//!    |<------------------------------ HOLD  |   before it sleeps, stops or goes: no new requests
//!    |  DRAINED ---------------------------->   none is in progress any more (or DRAIN_SECONDS passed)
//!    |<----------------------------- close  |   the next request asks for a new grant
//! ```
//!
//! Must hold: an edge that lost the stream asks for a new grant before it sends another request; an agent that sent HOLD
//! stops the guest only after DRAINED, the end of the stream, or [`HOLD_SECONDS`].

/// Protocol of a grant's stream. The name is older than the term, and stays so that versions can be mixed.
pub const UPGRADE: &str = "pandastack-door";
/// Protocol of a stream to a port of a guest: `POST /agent/v1/sandboxes/{id}/tunnel?port=N`, bytes both ways.
pub const TUNNEL_UPGRADE: &str = "pandastack-tunnel";
/// Header of the answer with the guest's address on its host.
pub const ADDRESS_HEADER: &str = "x-pandastack-guest-address";

/// Edge: requests are in progress.
pub const BUSY: u8 = b'B';
/// Edge: no request is in progress and no byte moved recently.
pub const IDLE: u8 = b'I';
/// Agent: begin no further requests.
pub const HOLD: u8 = b'H';
/// Edge: every request ended.
pub const DRAINED: u8 = b'D';

/// Time for requests in progress to end after HOLD; then the edge cuts them.
pub const DRAIN_SECONDS: u64 = 10;
/// Time that an agent waits for DRAINED before it continues without.
pub const HOLD_SECONDS: u64 = DRAIN_SECONDS + 2;
/// Grants of one sandbox at a time, one per edge. Beyond it: 503 `no_capacity`.
pub const GRANTS_MAX: usize = 64;
