//! The function runtime: connects the platform with a function's handler inside a machine.
//!
//! ```text
//!   control --frames, port 49910--> front --> calls --> runtime_api <--HTTP, 127.0.0.1:9001-- handler's process
//!                                     ^                                                          |
//!                                     +---------------- output <-------- stdout, stderr ---------+
//! ```
//!
//! `pandastack-guest function [--local PORT API_PORT] -- PROGRAM ARGS...` starts the program and serves both sides; with
//! `--local` on loopback only, for a developer's own machine. The program is anything that
//! speaks the AWS Lambda runtime API: our own bootstraps for Python and Node, `awslambdaric`, a Rust or Go binary.
//!
//! Invariants: each call ends with exactly one `End`; a handler that prints without end, never
//! answers or dies costs bounded memory and blocks nothing; output printed before an answer arrives
//! before its `End`. The runtime is an ordinary process of the machine, frozen with the handler in
//! the version's snapshot: it keeps no clock, and nothing in it depends on which copy it runs in.
//!
//! Left to others: who may call (control), when a machine ends (control ends it after a timeout or a crash), restarts
//! (there are none: the next call gets a fresh copy).

mod calls;
mod front;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod handler;
mod http;
mod output;
mod runtime_api;

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use pandastack_function_proto::{PORT, RUNTIME_API_PORT};

use calls::Calls;
use handler::Handler;
use output::Output;

/// Connections that either side may have at once. Beyond it: closed at once.
const CONNECTIONS_MAX: usize = 128;

/// Runs the program behind `--` and serves its calls until it ends and no connection is left.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some((addresses, command)) = parse(arguments) else {
        eprintln!("usage: pandastack-guest function [--local PORT API_PORT] -- PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    match serve(addresses, &command) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("pandastack-guest function: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Addresses to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Addresses {
    calls: SocketAddrV4,
    api: SocketAddrV4,
}

/// Parses the listen addresses and the program.
fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<(Addresses, Vec<OsString>)> {
    let options: Vec<OsString> = arguments.by_ref().take_while(|argument| argument != "--").collect();
    let port = |text: &OsString| text.to_str()?.parse::<u16>().ok();
    let loopback = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let addresses = match options.as_slice() {
        [] => Addresses {
            calls: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT),
            api: loopback(RUNTIME_API_PORT),
        },
        [local, calls, api] if local == "--local" => {
            Addresses { calls: loopback(port(calls)?), api: loopback(port(api)?) }
        }
        _ => return None,
    };
    let command: Vec<OsString> = arguments.collect();
    (!command.is_empty()).then_some((addresses, command))
}

fn serve(addresses: Addresses, command: &[OsString]) -> io::Result<std::convert::Infallible> {
    let context = |what: String| move |error| io::Error::other(format!("cannot {what}: {error}"));
    let Addresses { calls: for_calls, api: for_api } = addresses;
    // Both before the handler: it may connect at once.
    let api = TcpListener::bind(for_api).map_err(context(format!("listen for the handler on {for_api}")))?;
    let port = TcpListener::bind(for_calls).map_err(context(format!("listen for calls on {for_calls}")))?;
    let calls = Arc::new(Calls::default());
    let output = Arc::new(Output::new(Arc::clone(&calls))?);
    let handler = Handler::start(command, for_api, &output);
    let handler = handler.map_err(context("start the handler's program".to_owned()))?;
    let handler = Arc::new(handler);
    {
        let (handler, calls, output) = (Arc::clone(&handler), Arc::clone(&calls), Arc::clone(&output));
        spawn("handler", move || handler.watch(&calls, &output))?;
    }
    {
        let output = Arc::clone(&output);
        spawn("output", move || output.pump())?;
    }
    {
        let (calls, output, handler) = (Arc::clone(&calls), Arc::clone(&output), Arc::clone(&handler));
        spawn("api", move || {
            accept(&api, "api call", move |stream| runtime_api::serve(stream, &calls, &output, &handler));
        })?;
    }
    accept(&port, "call", move |stream| front::serve(stream, &calls, &handler))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Accepts for ever, a thread per connection.
fn accept<F>(listener: &TcpListener, name: &str, serve: F) -> !
where
    F: Fn(std::net::TcpStream) + Send + Sync + 'static,
{
    let (serve, places) = (Arc::new(serve), Arc::new(()));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                eprintln!("pandastack-guest function: accept: {error}");
                // Out of descriptors: others have to end first.
                #[expect(clippy::disallowed_methods, reason = "nothing tells when a descriptor is free")]
                std::thread::sleep(std::time::Duration::from_millis(50));
                continue;
            }
        };
        if Arc::strong_count(&places) > CONNECTIONS_MAX {
            continue;
        }
        let (serve, place) = (Arc::clone(&serve), Arc::clone(&places));
        let started = spawn(name, move || {
            serve(stream);
            drop(place);
        });
        if let Err(error) = started {
            eprintln!("pandastack-guest function: no thread for a connection: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Option<(String, String, usize)> {
        let (addresses, command) = parse(words.iter().map(OsString::from))?;
        Some((addresses.calls.to_string(), addresses.api.to_string(), command.len()))
    }

    #[test]
    fn arguments_select_machine_or_local_listen_addresses() {
        let machine = ("0.0.0.0:49910".to_owned(), "127.0.0.1:9001".to_owned(), 2);
        assert_eq!(parsed(&["--", "python3", "x.py"]), Some(machine));
        let local = ("127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned(), 1);
        assert_eq!(parsed(&["--local", "1", "2", "--", "x"]), Some(local));
        for wrong in [&["--"][..], &[], &["--local", "1", "--", "x"], &["--local", "1", "n", "--", "x"]] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }
}
