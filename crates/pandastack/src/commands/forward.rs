//! `pandastack forward`: forwards local ports to a sandbox.
//!
//! Each connection is one stream through the server. The first connection wakes a hibernated
//! sandbox. A failed connection is closed and reported; the command keeps running.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::SandboxId;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::runtime::with_client;
use super::sandbox::resolve::resolve;
use crate::failure::Failure;
use crate::output::Output;

/// Maximum concurrent connections. Further ones wait.
const CONNECTIONS_MAX: usize = 256;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Local and sandbox port, or one number for both; can be repeated
    #[arg(required = true, value_name = "LOCAL:REMOTE")]
    ports: Vec<String>,
    /// Local address to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    address: std::net::IpAddr,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        let pairs = args.ports.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
        let id = resolve(&client, &args.id).await?;
        let forwarder =
            Arc::new(Forwarder { client, id, permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)) });
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
        let mut listeners = JoinSet::new();
        for (local, remote) in pairs {
            let address = SocketAddr::new(args.address, local);
            let listener = TcpListener::bind(address).await.map_err(|error| {
                let failure = Failure::new(format!("cannot listen on {address}: {error}"));
                failure.hint("choose another local port, as in `pandastack forward ID 8081:8080`")
            })?;
            let address = listener.local_addr().context("cannot read the local address")?;
            output.line(&format!("{address} -> {}:{remote}", forwarder.id))?;
            listeners.spawn(Arc::clone(&forwarder).serve(listener, remote));
        }
        interrupt.recv().await;
        Ok(ExitCode::SUCCESS)
    })
}

struct Forwarder {
    client: Client,
    id: SandboxId,
    permits: Arc<Semaphore>,
}

impl Forwarder {
    async fn serve(self: Arc<Self>, listener: TcpListener, remote: u16) {
        let mut connections = JoinSet::new();
        // The semaphore is never closed while the command runs.
        while let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await {
            let Ok((stream, peer)) = listener.accept().await else { return };
            let forwarder = Arc::clone(&self);
            connections.spawn(async move {
                if let Err(error) = forwarder.proxy(stream, remote).await {
                    eprintln!("{peer}: {error:#}");
                }
                drop(permit);
            });
            while connections.try_join_next().is_some() {}
        }
    }

    async fn proxy(&self, mut stream: TcpStream, remote: u16) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut guest = self.client.tunnel(&self.id, remote).await?;
        // The two ends see how the connection ends.
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut guest).await;
        Ok(())
    }
}

fn parse(text: &str) -> Result<(u16, u16)> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    match (local.parse(), remote.parse()) {
        (Ok(local), Ok(remote)) if remote > 0 => Ok((local, remote)),
        _ => Err(Failure::new(format!("invalid ports `{text}`"))
            .hint("use LOCAL:REMOTE, such as 8081:8080; local port 0 picks a free port")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_mappings_are_pairs_or_single_ports() {
        assert_eq!(parse("15432:5432").unwrap(), (15432, 5432));
        assert_eq!(parse("8000").unwrap(), (8000, 8000));
        assert_eq!(parse("0:8000").unwrap(), (0, 8000));
        for bad in ["", "a", "1:", ":1", "1:0", "70000:1", "1:2:3"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
