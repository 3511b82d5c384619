//! A Model Context Protocol (MCP) server that offers sandboxes as tools.
//!
//! The server is a client of the public API: every tool makes one or two calls with the caller's API key.
//!
//! | transport | API key |
//! |---|---|
//! | standard input and output ([`serve_stdio`]) | from the environment, as for every other command |
//! | HTTP ([`serve_http`]) | from each request; a request without one is rejected |
//!
//! Invariants:
//! - Results fit a model's context ([`limits`]).
//! - A failure is a message that the model can act on, not a broken connection.

#![forbid(unsafe_code)]

mod code;
mod files;
mod http;
pub mod limits;
mod sandboxes;
mod tool_result;

pub use self::http::serve_http;

use std::pin::Pin;

use pandastack_client::{Client, ClientError, Config};
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::model::{Implementation, ServerCapabilities, ServerConfig};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, ServiceExt as _, tool_handler};

/// Instructions for models.
const INSTRUCTIONS: &str = "Each sandbox is an isolated Linux virtual machine that starts in a fraction of a \
    second. Create one, run commands and write files in it, and delete it when you are done; it expires after its \
    time to live. Fork a sandbox to try several approaches from the same state, including memory and running \
    processes. To show a web server that runs in a sandbox, get the preview URL of its port.";

/// The MCP tools.
#[derive(Clone)]
pub struct Tools {
    access: Access,
    tool_router: ToolRouter<Self>,
}

/// API key to use for calls.
#[derive(Clone)]
enum Access {
    /// One key for all calls.
    Shared(Client),
    /// The key of each request.
    PerRequest { api_url: String },
}

impl Tools {
    fn new(access: Access) -> Self {
        Self { access, tool_router: Self::sandbox_tools() + Self::code_tools() + Self::file_tools() }
    }

    /// The API client for a request.
    fn client(&self, context: &RequestContext<RoleServer>) -> Result<Client, ClientError> {
        match &self.access {
            Access::Shared(client) => Ok(client.clone()),
            Access::PerRequest { api_url } => {
                let parts = context.extensions.get::<::http::request::Parts>();
                let token = parts.and_then(|parts| http::bearer(&parts.headers)).ok_or(ClientError::NoKey)?;
                Client::new(Config { api_url: api_url.clone(), token: Some(token) })
            }
        }
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_instructions(INSTRUCTIONS);
        info.server_info = Implementation::new("pandastack", env!("CARGO_PKG_VERSION"));
        info
    }
}

/// Serves one client over standard input and output, until it closes them.
///
/// Boxed, so that the server is compiled in this crate and not in the one that awaits it.
pub fn serve_stdio(client: Client) -> Pin<Box<dyn Future<Output = anyhow::Result<()>>>> {
    Box::pin(async {
        let running = Tools::new(Access::Shared(client)).serve(rmcp::transport::stdio()).await?;
        running.waiting().await?;
        Ok(())
    })
}
