//! Sign-in of people through an OpenID Connect provider.
//!
//! ```text
//!   browser --authorize (PKCE, state, nonce)--> provider --code--> Provider::exchange --> Person
//!   CLI     --device code (RFC 8628)----------> provider --------> Provider::poll_device --> Person
//! ```
//!
//! Must hold:
//! - A [`Person`] comes only from an ID token that a key of the provider signed, for this client, from this
//!   issuer, in time, and in a browser with the nonce of the same attempt.
//! - An email address counts only if the provider says that it is verified.
//! - Endpoints use TLS, except on loopback addresses.
//! - The client secret goes to the provider's token endpoints and nowhere else.
//!
//! Out of scope: authorization, sessions, and HTTP routes.

#![forbid(unsafe_code)]

mod attempt;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod id_token;
mod metadata;
mod person;
mod provider;
mod signature;

pub use attempt::Attempt;
pub use metadata::check_url;
pub use person::Person;
pub use provider::{DeviceCode, DevicePoll, OidcConfig, Provider};

/// Reason why a sign-in failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The provider cannot be reached, or its responses cannot be used.
    #[error("the login provider is not usable: {0}; try again, or ask the operator of this installation")]
    Unavailable(String),
    /// The provider, or a check of its response, refused this attempt.
    #[error("the sign-in was refused: {0}; sign in again")]
    Refused(String),
}

/// Result of a call to the provider.
pub type Result<T> = std::result::Result<T, LoginError>;
