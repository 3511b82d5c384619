//! Limits on what guests may have in flight, and what happens beyond them.

use std::time::Duration;

/// Refusals queued for the reader. Further ones are dropped: the reader counts only the ones it
/// receives.
pub const DENIALS_WAITING_MAX: usize = 1024;

/// Queries of one guest in flight. Further ones are dropped, as a full server would do; resolvers
/// retry.
pub(super) const QUERIES_PER_SLOT_MAX: usize = 64;

/// TCP connections of one guest to the resolver. Further ones are closed at once.
pub(super) const NAME_CONNECTIONS_PER_SLOT_MAX: usize = 16;

/// Connections of one guest through its proxy. Further ones are closed at once.
pub(super) const PROXIED_PER_SLOT_MAX: usize = 1024;

/// Connections of one guest to databases. Further ones are closed at once.
pub const DATABASE_CONNECTIONS_PER_SLOT_MAX: usize = 100;

/// Connections of all guests to databases. Further ones are closed at once.
pub const DATABASE_CONNECTIONS_MAX: usize = 4096;

/// Pause after a failed accept: when descriptors run out, no event reports free ones.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
