//! Sandboxes as tools of the Model Context Protocol: an agent makes machines, runs what it wrote, and branches them.
//!
//! A client of the public API and nothing more: every tool is one or two calls with the caller's own key.
//!
//! | transport | whose key |
//! |---|---|
//! | standard input and output ([`serve_stdio`]) | that of the environment of the process, as for every other command |
//! | HTTP ([`serve_http`]) | the one that each request brings; a request without one is refused, so that listening grants nothing |
//!
//! What must hold: whatever comes back fits a model's context ([`limits`]), and a failure is a sentence that the model can
//! act on, never a broken connection.

#![forbid(unsafe_code)]

mod answer;
mod files;
mod http;
pub mod limits;
mod sandboxes;

pub use self::http::serve_http;

use pandastack_client::{Client, ClientError, Config};
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::model::{Implementation, ServerCapabilities, ServerConfig};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, ServiceExt as _, tool_handler};

/// What models are told about the whole.
const INSTRUCTIONS: &str = "Each sandbox is a small Linux machine of its own, with its own kernel, made in a fraction of a \
    second. Create one, run commands and write files in it, and delete it when done; it is deleted by itself after its \
    time to live. Fork a sandbox to try several ways from the same state, memory and running processes included. To show a \
    web server that listens in a sandbox, ask for the preview URL of its port.";

/// The tools.
#[derive(Clone)]
pub struct Tools {
    access: Access,
    tool_router: ToolRouter<Self>,
}

/// With whose key calls are made.
#[derive(Clone)]
enum Access {
    /// One for everything.
    Own(Client),
    /// That of the request.
    Callers { api_url: String },
}

impl Tools {
    fn new(access: Access) -> Self {
        Self { access, tool_router: Self::sandbox_tools() + Self::file_tools() }
    }

    /// The client to make this request's calls with.
    fn client(&self, context: &RequestContext<RoleServer>) -> Result<Client, ClientError> {
        match &self.access {
            Access::Own(client) => Ok(client.clone()),
            Access::Callers { api_url } => {
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

/// Serves one client over standard input and output until it closes them.
pub async fn serve_stdio(client: Client) -> anyhow::Result<()> {
    let running = Tools::new(Access::Own(client)).serve(rmcp::transport::stdio()).await?;
    running.waiting().await?;
    Ok(())
}
