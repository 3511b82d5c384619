//! The control servers that an agent reports to; any of them will do.

use std::time::Duration;

use jiff::Timestamp;
use pandastack_types::link::{Direction, LINK_HEADER};
use reqwest::{Method, RequestBuilder};

use crate::config::AgentConfig;

/// Longest time for control to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A control server.
pub(crate) struct ControlServer {
    /// Address as configured.
    pub name: String,
    client: reqwest::Client,
    base: String,
}

impl ControlServer {
    /// Control servers from the configuration, at least one.
    pub(crate) fn all(config: &AgentConfig) -> Vec<Self> {
        let server = |name: &str| {
            let builder = pandastack_http::builder_for(name).timeout(ANSWER_MAX);
            let (builder, base) = match name.strip_prefix("unix:") {
                Some(path) => (builder.unix_socket(path), "http://control".to_owned()),
                None => (builder, name.trim_end_matches('/').to_owned()),
            };
            Self { name: name.to_owned(), client: builder.build().unwrap_or_default(), base }
        };
        config.control.split(',').map(|name| server(name.trim())).collect()
    }

    /// A signed request.
    pub(crate) fn call(&self, config: &AgentConfig, method: Method, path: &str) -> RequestBuilder {
        let now = Timestamp::now().as_second();
        let signature = config.link.sign(Direction::AgentToControl, &config.host, method.as_str(), path, now);
        self.client.request(method, format!("{}{path}", self.base)).header(LINK_HEADER, signature)
    }
}
