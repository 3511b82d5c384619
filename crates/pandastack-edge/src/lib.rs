//! The edge: what stands between clients and the servers inside sandboxes.
//!
//! ```text
//!   client --HTTP/1, /2, WebSocket--> server --Host, headers--> api (control's router, or nobody)
//!                                        |
//!                                        +--> edge: site -> access -> gate -> door -> pool --> guest's port
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `server`, `head_clock`, `under_way`, `client_stream` | connections, limits per client, how long one may be silent or take nothing, stopping |
//! | `plain` | connections that carry nothing but plain requests to sandboxes: most of them |
//! | `destination` | which requests are for a sandbox |
//! | `names`, `spread` | which sandboxes stand behind an app's name now, and which of them gets a request |
//! | `route`, `control_routes`, `control_servers`, `site` | what is known of a sandbox, kept while its source is away |
//! | `access` | private previews |
//! | `gate` | hold and wake; knows nothing of sandboxes |
//! | `door` | the agreement with the agent about when the guest may be used |
//! | `http1`, `pool`, `exchange`, `tunnel`, `body` | connections to guests, and what goes over them |
//! | `websocket` | upgraded connections that are WebSockets, which end with a close frame |
//! | `headers` | what changes in heads |
//! | `error` | answers of our own |
//! | `access_log`, `log_file` | a line of each request, in files that do not grow without end |
//!
//! Must hold: a transition of ours (sleep, wake, move) fails no request; a guest learns nothing about a client that the
//! client made up; nothing is collected in memory; losing control stops no traffic.
//!
//! Left to others: waking and stopping machines (the agent), keys and records (control), where certificates are kept.

#![forbid(unsafe_code)]

mod access;
mod access_log;
mod body;
mod client_stream;
mod control_routes;
mod control_servers;
mod destination;
mod door;
mod edge;
mod error;
mod exchange;
pub mod gate;
mod head_clock;
mod headers;
mod http1;
pub mod limits;
mod log_file;
mod names;
mod plain;
mod pool;
mod route;
mod server;
mod site;
mod spread;
pub mod tls;
mod tunnel;
mod under_way;
mod websocket;

pub use access_log::AccessLog;
pub use body::ResponseBody;
pub use control_routes::ControlRoutes;
pub use destination::{Destination, Target, destination};
pub use door::{Door, Ticket, Way};
pub use edge::Edge;
pub use error::EdgeError;
pub use headers::Client;
pub use names::{Instances, Named};
pub use pool::{DialError, GuestStream};
pub use route::{Place, Route, RouteSource, RouteUnavailable};
pub use server::{OwnPorts, Server};
pub use tunnel::{Stirring, copy};
