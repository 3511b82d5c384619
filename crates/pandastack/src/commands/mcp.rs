//! `pandastack mcp`: serves sandboxes as MCP tools.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, Config};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::runtime::{block_on, with_client};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Serve over HTTP on this address at `/mcp`, instead of stdio; each request must carry an API key
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Host name to accept in HTTP requests, in addition to loopback names; can be repeated
    #[arg(long = "accept-host", alias = "host", value_name = "NAME", requires = "http")]
    hosts: Vec<String>,
}

/// Runs the command.
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
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    eprintln!("serving MCP at http://{}/mcp for the API at {api_url}", listener.local_addr()?);
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
