//! Names and numbers of a slot's table that its rules and its users agree on.

/// The table of a slot.
pub(super) const SLOT_TABLE: &str = "slot";

/// Port of a slot's proxy, inside its namespace, in which nothing else listens.
pub(crate) const PROXY_PORT: u16 = 3129;

/// Log group of packets that a policy refused.
pub(crate) const DENIED_GROUP: u16 = 1;

/// The chain for refused packets: it logs and rejects them.
pub(super) const DENY: &str = "deny";
