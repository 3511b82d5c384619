//! The edge in front of real servers on loopback.

#![allow(clippy::unwrap_used)]

mod attacks;
mod control;
mod harness;
mod instances;
mod plain;
mod protocols;
mod tls;
mod websockets;
