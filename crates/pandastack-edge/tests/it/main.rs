//! The edge in front of real servers on loopback.

mod attacks;
mod harness;
mod protocols;
