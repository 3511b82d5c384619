//! A preloaded library that forks the process of an unmodified emulator into independent machines.
//!
//! A forked emulator keeps guest memory copy-on-write and, without virtualization hardware, its translation cache warm:
//! a copy answers in milliseconds where a restored process first translates the guest's kernel again.
//!
//! Two faces:
//! - [`protocol`] is the wire format of the control socket, shared with the engine that asks for forks.
//! - Everything else is the library itself. Its symbols (`open`, `mmap`, ...) are exported, and its constructor runs,
//!   only in the build with `--cfg pandastack_preload`; a program that links this crate for the protocol gets none of it.
//!
//! ```text
//!  engine                     control thread (ours)                 threads of the emulator
//!    | -- fork, descriptors --> |                                        |
//!    |                          | -- signal each thread ---------------> | note frame, wait on futex  (park)
//!    |                          | every thread inside a wait? else release and try again
//!    |                          | classify every descriptor, refuse unknown kinds               (descriptors)
//!    |                          | clone() x N --> child: replace descriptors, verify, lock in    (child)
//!    |                          |                 recreate threads from their frames             (threads)
//!    |                          | -- release --------------------------> | go on
//!    | <-- pids, pidfds ------- |                 (the children's first answers show how they fare)
//! ```
//!
//! Invariants:
//! - Between park and release, and in a child until its threads are back, nothing allocates, locks or touches the
//!   standard library: a parked thread may hold any lock. This is why the crate is `no_std` and issues its own system
//!   calls.
//! - A park that does not succeed in time is released; the emulator continues as if nothing had happened.
//! - No open file description with state is shared between parent and child. A descriptor of unknown kind means no fork.
//! - A child that detects an inconsistency logs it and exits.
//!
//! Left to the engine: stopping the machine first, making the child's disk, sockets and tap, choosing user and filter,
//! reaping (children are siblings of their parent, so the parent's own parent reaps them).

#![no_std]
#![cfg_attr(not(pandastack_preload), allow(dead_code))]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "the shim saves and restores x86-64 Linux signal frames; port park.rs, threads.rs and sys.rs first"
);

// Supplies the panic handler of the library build. Nothing else of it is used.
extern crate std;

pub mod protocol;

mod child;
mod confine;
mod control;
mod descriptors;
mod exclusive;
mod interpose;
mod park;
mod scan;
mod sys;
mod threads;
