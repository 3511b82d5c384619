//! `pandastack mcp`: sandboxes as tools for agents.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, Config};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{block_on, with_client};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Serve over HTTP at `/mcp` of this address instead of standard input and output. Requests bring their own API key
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Another name under which HTTP clients ask for this server; those of the loopback are always known
    #[arg(long = "host", value_name = "NAME", requires = "http")]
    hosts: Vec<String>,
}

/// Carries it out.
pub fn run(args: Args) -> Result<ExitCode> {
    match args.http {
        None => with_client(|client: Client| async move {
            pandastack_mcp::serve_stdio(client).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Some(address) => block_on(serve(address, args.hosts)),
    }
}

async fn serve(address: SocketAddr, hosts: Vec<String>) -> Result<ExitCode> {
    let api_url = Config::from_environment()?.api_url;
    let listener = TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
    eprintln!("tools for agents at http://{}/mcp, for the API at {api_url}", listener.local_addr()?);
    let shutdown = CancellationToken::new();
    let interrupted = shutdown.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.cancel();
        }
    });
    pandastack_mcp::serve_http(listener, api_url, &hosts, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}
