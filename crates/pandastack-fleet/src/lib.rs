//! Certificates of hosts, and the mutual TLS between control, agents and edges that they make possible.
//!
//! ```text
//!   operator --token--> host --token, request for a certificate--> control (Authority)
//!   control <==== mutual TLS ====> agents <==== mutual TLS ====> edges
//! ```
//!
//! Must hold:
//! - the key of a host never leaves it, and the authority's key never leaves control;
//! - a host is who its certificate says it is ([`HostIdentity`]): role, id and membership;
//! - a connection of a host that is not a member (any more) is refused or cut ([`Memberships`]), however long
//!   its certificate is valid. Sessions are never resumed, so every connection is checked;
//! - a host that joins knows the authority by its fingerprint, which is part of the join token, before it
//!   sends the token.
//!
//! Left to others: who may make tokens, where memberships are stored, and what a role may do.
//!
//! [`HostIdentity`]: pandastack_types::host_identity::HostIdentity

#![forbid(unsafe_code)]

mod authority;
mod credentials;
mod cut;
mod dialer;
mod error;
mod join;
mod listener;
mod membership;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod verify;

pub use authority::{Authority, SigningRequest};
pub use credentials::{CredentialFile, Credentials, KeyRequest};
pub use cut::LinkStream;
pub use dialer::{Dialer, HostDialer};
pub use error::FleetError;
pub use join::{Control, join, join_with_secret, keep_current};
pub use listener::{LinkListener, LinkPolicy, Peer};
pub use membership::{Admitted, Memberships};
pub use tls::HostTls;
pub use token::{Fingerprint, JoinToken};
