//! The edge: a proxy between clients and the servers inside sandboxes.
//!
//! ```text
//!   client --HTTP/1, /2, WebSocket--> server --Host, headers--> api (control's router, or none)
//!                                        |
//!                                        +--> edge: site -> access -> gate -> grant -> pool --> guest's port
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `server`, `client_connections` | client connections and their limits; shutdown |
//! | `head_clock`, `in_flight`, `client_stream` | timeouts for silent and stalled clients |
//! | `plain` | connections with only plain requests to sandboxes, which is most |
//! | `destination` | which requests are for a sandbox |
//! | `app_route`, `names`, `spread` | the sandboxes that serve an app, and load balancing |
//! | `route`, `control_routes`, `control_servers`, `site`, `sites` | routes of sandboxes, cached
//! while control is down |
//! | `access` | private previews |
//! | `gate` | holding requests and waking; independent of sandboxes |
//! | `grant` | the agreement with the agent about when the guest may be used |
//! | `connector`, `guest_stream`, `pool` | connections to guests |
//! | `http1`, `exchange`, `tunnel`, `body` | requests, responses and tunnels over them |
//! | `websocket` | upgraded connections that are WebSockets, which end with a close frame |
//! | `headers`, `cookies` | changes to headers |
//! | `error` | error responses of the edge itself |
//! | `access_log`, `log_file` | a line per request, in rotated files |
//!
//! Must hold: a transition by the platform (sleep, wake, move) fails no request; client information
//! sent to a guest is never client-supplied; bodies are not buffered in memory; losing control
//! stops no traffic.
//!
//! Out of scope: waking and stopping machines (the agent), keys and records (control), storage of
//! certificates.

#![forbid(unsafe_code)]

mod access;
mod access_log;
mod app_route;
mod body;
mod client_connections;
mod client_stream;
mod connector;
mod control_routes;
mod control_servers;
mod cookies;
mod destination;
mod edge;
mod error;
mod exchange;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod gate;
mod grant;
mod guest_stream;
mod head_clock;
mod headers;
mod http1;
mod in_flight;
pub mod limits;
mod log_file;
mod names;
mod plain;
mod pool;
mod route;
mod server;
mod site;
mod sites;
mod spread;
mod stall;
pub mod tls;
mod tunnel;
mod websocket;

pub use access_log::AccessLog;
pub use app_route::{AppRoute, Instances};
pub use body::ResponseBody;
pub use control_routes::ControlRoutes;
pub use control_servers::EdgeCredentials;
pub use cookies::confine as confine_cookies;
pub use destination::{Destination, Target, destination};
pub use edge::Edge;
pub use error::EdgeError;
pub use grant::{Permit, TrafficGrant};
pub use guest_stream::GuestStream;
pub use headers::{Client, strip_keys};
pub use route::{Location, Route, RouteSource, RouteUnavailable};
pub use server::{OwnPorts, Server};
pub use tunnel::{GuestTunnel, copy};
