//! `pandastack forward`: a port of this machine that leads to a port of a sandbox.
//!
//! Every connection is one stream through the server. A sandbox that sleeps wakes with the first one. A connection that
//! fails is closed and said so; the command goes on.

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

use super::sandbox::resolve;
use crate::failure::Failure;
use crate::output::Output;

/// Connections of one command at a time. More wait until one ends.
const CONNECTIONS_MAX: usize = 256;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id
    id: String,
    /// LOCAL:REMOTE, or one number for both; may be given several times
    #[arg(required = true, value_name = "LOCAL:REMOTE")]
    ports: Vec<String>,
    /// Address of this machine to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    address: std::net::IpAddr,
}

/// Carries it out.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    super::with_client(|client| async move {
        let pairs = args.ports.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
        let id = resolve(&client, &args.id).await?;
        let forward = Arc::new(Forward { client, id, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) });
        let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
        let mut listeners = JoinSet::new();
        for (local, remote) in pairs {
            let address = SocketAddr::new(args.address, local);
            let listener = TcpListener::bind(address).await.map_err(|error| {
                let failure = Failure::new(format!("cannot listen on {address}: {error}"));
                failure.hint("choose another local port: `pandastack forward ID LOCAL:REMOTE`")
            })?;
            let address = listener.local_addr().context("the listener's address")?;
            output.line(&format!("{address} -> {}:{remote}", forward.id))?;
            listeners.spawn(Arc::clone(&forward).serve(listener, remote));
        }
        interrupt.recv().await;
        Ok(ExitCode::SUCCESS)
    })
}

struct Forward {
    client: Client,
    id: SandboxId,
    places: Arc<Semaphore>,
}

impl Forward {
    async fn serve(self: Arc<Self>, listener: TcpListener, remote: u16) {
        let mut connections = JoinSet::new();
        // A closed semaphore or listener ends the loop; neither happens while the command runs.
        while let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
            let Ok((stream, peer)) = listener.accept().await else { return };
            let forward = Arc::clone(&self);
            connections.spawn(async move {
                if let Err(error) = forward.carry(stream, remote).await {
                    eprintln!("{peer}: {error:#}");
                }
                drop(place);
            });
            while connections.try_join_next().is_some() {}
        }
    }

    async fn carry(&self, mut stream: TcpStream, remote: u16) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut guest = self.client.tunnel(&self.id, remote).await?;
        // How a connection ends is between its two ends.
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut guest).await;
        Ok(())
    }
}

fn parse(text: &str) -> Result<(u16, u16)> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    match (local.parse(), remote.parse()) {
        (Ok(local), Ok(remote)) if remote > 0 => Ok((local, remote)),
        _ => Err(Failure::new(format!("`{text}` is not a pair of ports"))
            .hint("write LOCAL:REMOTE, such as 5432:5432; a local port of 0 takes any free one")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_in_pairs_or_alone() {
        assert_eq!(parse("15432:5432").unwrap(), (15432, 5432));
        assert_eq!(parse("8000").unwrap(), (8000, 8000));
        assert_eq!(parse("0:8000").unwrap(), (0, 8000));
        for bad in ["", "a", "1:", ":1", "1:0", "70000:1", "1:2:3"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
