//! Processes of sandboxes, as the API shows them.
//!
//! The guest owns processes and keeps their last output by offset. This module starts them
//! ([`start`]), follows them across disconnects and sleep ([`feed`]), and turns their output and
//! exit into server-sent events ([`events`]) and WebSocket messages ([`socket`],
//! [`terminal_socket`]).
//!
//! Invariants: a follower gets every byte once, in order, or a gap event for lost bytes. Following
//! neither wakes a sandbox that was put to sleep nor ends because of it. A process ends only by
//! itself, by a signal or by its timeout, never because a follower left.

pub(crate) mod events;
pub(crate) mod feed;
mod input;
pub(crate) mod limits;
mod lookup;
pub(crate) mod socket;
mod start;
mod terminal_socket;
mod view;

pub(crate) use events::{OutputEvents, Style};
pub(crate) use feed::{Feed, Offsets};
pub(crate) use limits::terminal_size;
pub(crate) use lookup::{list, named, process_info, show, wait};
pub(crate) use start::Start;
pub(crate) use terminal_socket::TerminalSocket;
