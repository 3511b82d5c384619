//! The QEMU engine: hardware virtualization where KVM works, software emulation anywhere else.
//!
//! Under emulation a create is a **fork of a warm, stopped emulator process**: guest memory copy-on-write and the
//! translation cache warm, in milliseconds. `pandastack-qemu-shim`, preloaded into an unmodified emulator, makes that
//! possible; this crate carries the library inside itself, starts processes with it and speaks to both.
//!
//! ```text
//!   QemuEngine --start--> process (own session, empty namespaces, locked in) <--fork-- QemuMachine
//!       |                    |  qmp.sock    control protocol of the emulator    (qmp)
//!       +---adopt----------> |  shim.sock   control protocol of the library     (shim_client)
//!                            |  guest.sock  stream to the guest program
//! ```
//!
//! Invariants:
//! - Guest memory is a private mapping of a file that is open for reading only: no machine can change what others share.
//! - A process is locked in (user, empty root, system call filter) before it reads anything a guest could have written;
//!   forks of a zygote are locked in before their first instruction.
//! - Nothing is waited for by looking again: sockets exist before processes, ends are events of a pidfd, states end with
//!   their pipe.
//!
//! Left to others: cloning disks and memory files, network namespaces, cgroups, keeping records.

mod accelerator;
mod command_line;
mod config;
mod endpoints;
mod engine;
mod filter;
mod fork;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod host;
mod library;
mod limits;
mod machine;
mod migration;
mod probe;
mod qmp;
mod qmp_lines;
mod save;
mod shared_namespaces;
mod shim_client;
mod spawn;
mod start;
mod starvation;
mod tap;
mod tsc;
mod volume;

pub use config::QemuConfig;
pub use engine::QemuEngine;
