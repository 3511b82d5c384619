//! Slots on a real kernel, attacked from the guest's side of the tap.
//!
//! Every test runs in network namespaces of its own: one stands in for the host, one for the internet behind it. The
//! guest is a few lines of Ethernet, IP and UDP on the tap's descriptor, since that descriptor is the network card.
#![allow(clippy::unwrap_used)]

mod guest;
mod isolation;
mod lab;
mod lifecycle;
mod limits;
mod names;
mod resolved;
