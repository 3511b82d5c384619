//! Backups of a real server, restored by a stock one.

#![allow(clippy::unwrap_used)]

mod bucket;
mod gap;
mod instants;
mod loss;
mod server;
mod sql;
mod stores;
