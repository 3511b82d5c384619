//! The control servers that an agent reports to; any of them will do.

use std::sync::OnceLock;
use std::time::Duration;

use jiff::Timestamp;
use pandastack_fleet::Control;
use pandastack_types::link::{Direction, LINK_HEADER};
use reqwest::{Client, ClientBuilder, Method, RequestBuilder};

use crate::host::Host;
use crate::link::LinkCredentials;

/// Longest time for control to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A control server.
pub(crate) struct ControlServer {
    /// Address as configured.
    pub name: String,
    with_secret: OnceLock<(Client, String)>,
    with_certificate: OnceLock<(Client, String)>,
}

impl ControlServer {
    /// Control servers from the configuration, at least one.
    pub(crate) fn all(host: &Host) -> Vec<Self> {
        let server = |name: &str| Self {
            name: name.trim().to_owned(),
            with_secret: OnceLock::new(),
            with_certificate: OnceLock::new(),
        };
        host.config.control.split(',').map(server).collect()
    }

    /// Whether the server is on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        !self.name.starts_with("unix:")
    }

    fn client(&self, credentials: &LinkCredentials) -> &(Client, String) {
        let made = |builder: ClientBuilder, base: String| {
            (builder.timeout(ANSWER_MAX).build().unwrap_or_default(), base)
        };
        match (credentials, self.name.strip_prefix("unix:")) {
            (LinkCredentials::Certificate(tls, _), None) => self.with_certificate.get_or_init(|| {
                let builder = Client::builder().http1_only().no_proxy();
                let builder = match tls.to_control() {
                    Ok(config) => builder.tls_backend_preconfigured(config),
                    // Makes the build fail.
                    Err(error) => builder.tls_backend_preconfigured(error),
                };
                made(builder, Control::secure(&self.name))
            }),
            (_, path) => self.with_secret.get_or_init(|| {
                let builder = pandastack_http::builder_for(&self.name);
                match path {
                    Some(path) => made(builder.unix_socket(path), "http://control".to_owned()),
                    None => made(builder, self.name.trim_end_matches('/').to_owned()),
                }
            }),
        }
    }

    /// A request in the name of this host.
    pub(crate) fn call(&self, host: &Host, method: Method, path: &str) -> RequestBuilder {
        let credentials = host.link.credentials();
        let (client, base) = self.client(&credentials);
        let request = client.request(method.clone(), format!("{base}{path}"));
        match credentials {
            LinkCredentials::Certificate(..) => request,
            LinkCredentials::Secret(secret) => {
                let (me, now) = (&host.config.host, Timestamp::now().as_second());
                let signature = secret.sign(Direction::AgentToControl, me, method.as_str(), path, now);
                request.header(LINK_HEADER, signature)
            }
        }
    }
}
