//! The PostgreSQL wire protocol at the edge.
//!
//! ```text
//!   psql, drivers --TLS--> server -> startup -> endpoint -> Databases::connect -> relay <--> PostgreSQL or PgBouncer
//!   fetch-only clients --POST /sql, /v2--> broker, websocket -> login -> the same
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `startup` | packets before a session: TLS, cancel, parameters |
//! | `endpoint` | the database that a client names |
//! | `wire` | message boundaries; errors in protocol form |
//! | `server` | listening, TLS, limits of connections |
//! | `inside` | sessions of machines of the platform, without TLS |
//! | `startup_retry` | sessions whose server accepts none at the moment |
//! | `relay` | bytes of a session, and whether a query is in progress |
//! | `errors` | the platform's additions to errors of servers |
//! | `cancel` | tokens that replace a backend's own |
//! | `login` | the client side: opening a session with a password |
//! | `query`, `keyword`, `value` | statements and results as text; JSON |
//! | `neon`, `websocket` | HTTP and WebSocket as `@neondatabase/serverless` speaks them |
//!
//! Must hold: a client is held while its database wakes or its server starts, never refused for
//! that; after the login only single errors are buffered in memory; every client error is answered
//! in the protocol's own form, with the next step; no password is logged or stored.
//!
//! Out of scope: finding and reaching databases ([`Databases`]), certificates, API keys.

#![forbid(unsafe_code)]

mod backend;
mod cancel;
mod endpoint;
mod errors;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod inside;
mod keyword;
pub mod limits;
mod login;
mod neon;
mod query;
mod relay;
mod server;
mod startup;
mod startup_retry;
#[cfg(test)]
mod tests;
mod value;
mod websocket;
mod wire;

pub use backend::{Backend, ByteStream, ConnectError, Databases, InUse};
pub use endpoint::{Endpoint, Listener};
pub use inside::InsideServer;
pub use login::{Credentials, LoginError, Session, scram_verifier};
pub use neon::router as http_router;
pub use query::{Bounds, Column, Outcome, RunError, SqlError, Statement, Transaction, row};
pub use server::{ALPN, Server};
pub use value::{json_of, parameter, type_name};
