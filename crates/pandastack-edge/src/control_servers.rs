//! The control servers of an edge. They share one record, so any of them can answer: requests go to
//! the one that answered last, and to the next one if it does not respond.
//!
//! An edge with a certificate uses mutual TLS. One with the join secret signs its requests, like an agent's
//! reports.

use std::time::Duration;

use pandastack_fleet::{Control, HostTls};
use pandastack_types::HostId;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::route::RouteUnavailable;

/// Time for a server to accept a connection, and by default to start its response.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Proof of an edge's identity.
#[derive(Debug, Clone)]
pub enum EdgeCredentials {
    /// The join secret.
    Secret(LinkKey),
    /// A certificate.
    Certificate(HostTls),
}

/// Servers, and whose turn it is.
pub(crate) struct ControlServers {
    /// At least one.
    servers: Vec<ControlServer>,
    turn: watch::Sender<usize>,
    name: HostId,
    credentials: EdgeCredentials,
}

struct ControlServer {
    name: String,
    http: reqwest::Client,
    base: String,
}

impl ControlServers {
    /// The servers at `unix:/path` or `https://address:port`, separated by commas.
    pub(crate) fn new(addresses: &str, name: HostId, credentials: EdgeCredentials) -> reqwest::Result<Self> {
        let servers = addresses.split(',').map(|address| ControlServer::new(address.trim(), &credentials));
        let servers = servers.collect::<reqwest::Result<_>>()?;
        Ok(Self { servers, turn: watch::Sender::new(0), name, credentials })
    }

    /// The join secret, if this edge has it.
    pub(crate) fn secret(&self) -> Option<&LinkKey> {
        match &self.credentials {
            EdgeCredentials::Secret(secret) => Some(secret),
            EdgeCredentials::Certificate(_) => None,
        }
    }

    /// Tries each server at most once. `None` if the resource does not exist.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        wait: Duration,
    ) -> Result<Option<T>, RouteUnavailable> {
        let mut failed = RouteUnavailable("no control server is configured".to_owned());
        for _ in &self.servers {
            let turn = *self.turn.borrow();
            match self.request_json(turn, path, wait).await {
                Ok(answer) => return Ok(answer),
                Err(error) => failed = error,
            }
            self.fail_over(turn);
        }
        Err(failed)
    }

    async fn request_json<T: DeserializeOwned>(
        &self,
        turn: usize,
        path: &str,
        wait: Duration,
    ) -> Result<Option<T>, RouteUnavailable> {
        let answer = self.request(turn, path).timeout(wait).send().await;
        let answer = answer.map_err(|error| self.failed(turn, &error))?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let answer = answer.error_for_status().map_err(|error| self.failed(turn, &error))?;
        answer.json().await.map(Some).map_err(|error| self.failed(turn, &error))
    }

    /// Opens a stream at the server whose turn it is.
    pub(crate) async fn open(&self, path: &str) -> Result<ControlStream, RouteUnavailable> {
        let moved = self.turn.subscribe();
        let turn = *moved.borrow();
        let opening = tokio::time::timeout(ANSWER_WAIT, self.request(turn, path).send()).await;
        let late = |_| {
            RouteUnavailable(format!("the control server at {} is not responding", self.servers[turn].name))
        };
        let answer = opening.map_err(late)?.and_then(reqwest::Response::error_for_status);
        let answer = answer.map_err(|error| self.failed(turn, &error))?;
        Ok(ControlStream { answer, moved })
    }

    /// Index of the server that is tried first.
    pub(crate) fn current(&self) -> usize {
        *self.turn.borrow()
    }

    /// Switches to the next server, because `from` did not answer, unless another request already
    /// did. Returns whether all servers have been tried.
    pub(crate) fn fail_over(&self, from: usize) -> bool {
        let next = (from + 1) % self.servers.len();
        self.turn.send_if_modified(|turn| {
            let moves = *turn == from && next != from;
            if moves {
                *turn = next;
                tracing::info!(control = self.servers[next].name, "switching to another control server");
            }
            moves
        });
        next == 0
    }

    fn request(&self, turn: usize, path: &str) -> reqwest::RequestBuilder {
        let server = &self.servers[turn];
        let request = server.http.get(format!("{}{path}", server.base));
        let Some(secret) = self.secret() else { return request };
        let now = jiff::Timestamp::now().as_second();
        request.header(LINK_HEADER, secret.sign(Direction::AgentToControl, &self.name, "GET", path, now))
    }

    fn failed(&self, turn: usize, error: &reqwest::Error) -> RouteUnavailable {
        RouteUnavailable(format!("the control server at {} failed: {error}", self.servers[turn].name))
    }
}

/// A stream from a control server.
pub(crate) struct ControlStream {
    pub(crate) answer: reqwest::Response,
    /// Changes on failover to another server: data of this one may be outdated.
    pub(crate) moved: watch::Receiver<usize>,
}

impl ControlServer {
    fn new(address: &str, credentials: &EdgeCredentials) -> reqwest::Result<Self> {
        let (builder, base) = match (credentials, address.strip_prefix("unix:")) {
            (_, Some(path)) => {
                (pandastack_http::builder_for(address).unix_socket(path), "http://control".to_owned())
            }
            (EdgeCredentials::Secret(_), None) => {
                (pandastack_http::builder_for(address), address.trim_end_matches('/').to_owned())
            }
            (EdgeCredentials::Certificate(tls), None) => {
                let builder = reqwest::Client::builder().http1_only();
                let builder = match tls.to_control() {
                    Ok(config) => builder.tls_backend_preconfigured(config),
                    // Makes the build fail below.
                    Err(error) => builder.tls_backend_preconfigured(error),
                };
                (builder, Control::secure(address))
            }
        };
        let http = builder.connect_timeout(ANSWER_WAIT).no_proxy().build()?;
        Ok(Self { name: address.to_owned(), http, base })
    }
}
