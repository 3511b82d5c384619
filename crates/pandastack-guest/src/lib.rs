//! The program that runs as PID 1 inside every machine.
//!
//! The program is `/init` of the initramfs. It loads drivers, mounts the root disk, moves into it, and
//! configures the network. For the rest of the machine's life it serves the host over a virtio port:
//! processes, files, the identity gate. It is frozen into snapshots for years, so it is small, static, and
//! speaks a versioned protocol (`pandastack-guest-proto`).
//!
//! Invariant: nothing that arrives over the channel, from the disk or from a process makes it panic
//! or block; as PID 1 it cannot be restarted.
//!
//! With `--serve SOCKET` the program runs as an ordinary process on a unix socket instead, without touching
//! the machine around it: its tests run it so. With `function` it is the runtime of a function's handler.
//!
//! System calls go through `nix`. `libc` is for calls that `nix` does not have (`clone3`, pidfds, interfaces
//! and routes by `ioctl`), and for code between a clone and its `exec`, where nothing may allocate.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod boot;
mod channel;
mod console;
mod environment;
mod files;
mod function;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod identity;
mod machine;
mod poller;
mod power;
mod process;
mod protect;
mod serve;
mod server;

mod tcp_table;
mod volume;
mod watch;
mod worker;

use std::process::ExitCode;

use crate::serve::ServeOptions;

const USAGE: &str = "usage: pandastack-guest --serve SOCKET [--root DIR] [--cgroup DIR]\n\
                     usage: pandastack-guest function [--local PORT API_PORT] -- PROGRAM [ARGUMENT...]\n\
                     (without arguments it is the init program of a machine)";

/// Runs the program in the mode that its arguments and process id select.
pub fn run() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if std::process::id() != 1 && arguments.next().is_some_and(|first| first == "function") {
        return function::run(arguments);
    }
    protect::block_signals();
    if std::process::id() == 1 {
        // Never returns: ends in power-off, or in a console message and a halt.
        return boot::run();
    }
    let Some(options) = ServeOptions::parse(std::env::args_os().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match serve::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pandastack-guest: cannot serve on {}: {error}", options.socket.display());
            ExitCode::FAILURE
        }
    }
}
