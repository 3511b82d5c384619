//! The function runtime: what stands between the platform and a function's handler inside a machine.
//!
//! ```text
//!   control --frames, port 49910--> front --> calls --> runtime_api <--HTTP, 127.0.0.1:9001-- handler's process
//!                                     ^                                                          |
//!                                     +---------------- output <-------- stdout, stderr ---------+
//! ```
//!
//! `pandastack-guest function -- PROGRAM ARGS...` starts the program and serves both sides. The program is anything that
//! speaks the AWS Lambda runtime API: our own bootstraps for Python and Node, `awslambdaric`, a Rust or Go binary.
//!
//! What must hold: each call ends with exactly one `End`; a handler that prints without end, never answers or dies costs
//! memory that is bounded and blocks nothing; what was printed before an answer arrives before its `End`. The runtime is an
//! ordinary process of the machine, frozen with the handler in the version's snapshot: it keeps no clock, and nothing in
//! it depends on which copy it runs in.
//!
//! Left to others: who may call (control), when a machine ends (control ends it after a timeout or a crash), restarts
//! (there are none: the next call gets a fresh copy).

mod calls;
mod front;
mod handler;
mod http;
mod output;
mod runtime_api;

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use pandastack_function_proto::{PORT, RUNTIME_API_PORT};

use calls::Calls;
use handler::Handler;
use output::Output;

/// Connections that either side may have at once. Beyond it: closed at once.
const CONNECTIONS_MAX: usize = 128;

/// Runs the program behind `--` and serves its calls until it ends and nobody is connected.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let command: Vec<OsString> = arguments.skip_while(|argument| argument != "--").skip(1).collect();
    if command.is_empty() {
        eprintln!("usage: pandastack-guest function -- PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    }
    match serve(&command) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("pandastack-guest function: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(command: &[OsString]) -> io::Result<std::convert::Infallible> {
    let context = |what: &'static str| move |error| io::Error::other(format!("cannot {what}: {error}"));
    // Both before the handler: it may connect at once.
    let api = TcpListener::bind((Ipv4Addr::LOCALHOST, RUNTIME_API_PORT));
    let api = api.map_err(context("listen for the handler on 127.0.0.1:9001"))?;
    let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT));
    let port = port.map_err(context("listen for calls on port 49910"))?;
    let calls = Arc::new(Calls::default());
    let output = Arc::new(Output::new(Arc::clone(&calls))?);
    let handler = Handler::start(command, &output).map_err(context("start the handler's program"))?;
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
