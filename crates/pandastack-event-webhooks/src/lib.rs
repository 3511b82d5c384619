//! Webhooks: URLs of a workspace that receive its events, such as `sandbox.failed`.
//!
//! ```text
//!   a transition, a deployment ... --one transaction--> event + deliveries (pandastack-store)
//!                                                              |
//!      routes --> store                                  sender.run: claim --> sign --> POST --> record
//!                                                              ^                                   |
//!                                                              +------ due again, with back-off ---+
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `routes` | the API under `/v1/webhooks` |
//! | `service` | the state, and what the API changes |
//! | `sender` | when deliveries are attempted, and how many at once. Only the leader sends |
//! | `retry` | what an attempt's result means for the delivery and its webhook. Pure |
//! | `signature` | secrets and signatures, as Standard Webhooks defines them. Pure |
//!
//! Must hold: an event that was committed reaches every webhook that asked for it, at least once, unless the
//! webhook is disabled or its receiver refuses it for a day; no workspace takes more than its share of the
//! attempts; events of a workspace reach only its own webhooks.

#![forbid(unsafe_code)]

mod retry;
pub mod routes;
mod sender;
mod service;
mod signature;

pub use sender::run;
pub use service::EventWebhooks;
