//! The way of a request through the edge: find, check, hold, send, log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{Method, Request, Response, header};
use hyper::body::Incoming;
use pandastack_agent_client::Call;
use pandastack_types::SandboxId;
use pandastack_types::api::PortList;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{self, Verdict};
use crate::access_log::{AccessLog, Entry};
use crate::body::{RequestBody, ResponseBody};
use crate::destination::Target;
use crate::door::Ticket;
use crate::exchange::{Exchange, ExchangeError};
use crate::headers::{Client, is_ambiguous, to_guest, upgrade_of};
use crate::limits::{BODY_BYTES_MAX, STOP_WAIT};
use crate::names::{Named, Names};
use crate::pool::{DialError, GuestStream, dial};
use crate::route::{Place, Route, RouteSource};
use crate::site::{Site, Sites};
use crate::trouble::Trouble;
use crate::tunnel::Stirring;

/// How long the question what a sandbox listens on may take; without an answer the page says less.
const PORTS_WAIT: Duration = Duration::from_secs(2);

/// An edge. Shared by all connections of all listeners.
pub struct Edge {
    source: Arc<dyn RouteSource>,
    sites: Sites,
    names: Names,
    log: Arc<AccessLog>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Edge {
    /// An edge with its routes from `source`.
    pub fn new(source: Arc<dyn RouteSource>, log: AccessLog) -> Arc<Self> {
        let edge = Arc::new(Self {
            source,
            sites: Sites::default(),
            names: Names::default(),
            log: Arc::new(log),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        let (log, stop) = (Arc::clone(&edge.log), edge.stop.clone());
        edge.tasks.spawn(async move { log.keep_flushed(stop).await });
        edge
    }

    /// Counters in the Prometheus text format.
    pub fn metrics(&self) -> String {
        self.log.render()
    }

    /// The route of one sandbox, or of all, may have changed: it is read again before its next use.
    pub fn forget_route(&self, sandbox: Option<&SandboxId>) {
        self.sites.doubt(sandbox);
    }

    /// What stands behind some name may have changed: all are asked for again before their next use.
    pub fn forget_names(&self) {
        self.names.doubt();
    }

    /// What stands behind a host name now; `None` when it is no app's.
    pub async fn named(&self, name: &str) -> Result<Option<Named>, Trouble> {
        let found = self.names.find(name, self.source.as_ref()).await;
        found.map_err(|error| Trouble::Unavailable(error.to_string()))
    }

    /// Ends doors, tunnels and the log. Requests under way were waited for by the server.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_WAIT, self.tasks.wait()).await.is_err() {
            tracing::info!("stopped with tunnels open");
        }
        self.log.flush();
    }

    /// Serves one request to a sandbox.
    pub async fn serve(
        &self,
        target: Target,
        request: Request<Incoming>,
        client: &Client,
    ) -> Response<ResponseBody> {
        let began = Instant::now();
        let (parts, body) = request.into_parts();
        let (site, route) = match self.sites.find(&target.sandbox, self.source.as_ref()).await {
            Ok(found) => found,
            Err(trouble) => return trouble.answer(Some(&target), &parts.headers),
        };
        let mut entry = Entry {
            log: Arc::clone(&self.log),
            site: Arc::clone(&site),
            port: target.port,
            client: client.address,
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            status: 0,
            bytes: 0,
            began,
        };
        // Kept for our own answers only: their form depends on what the client reads.
        let accept = parts.headers.get(header::ACCEPT).cloned();
        match self.pass(&site, &route, &target, parts, body, client).await {
            Ok(mut response) => {
                entry.status = response.status().as_u16();
                if let ResponseBody::Guest(body) = response.body_mut() {
                    body.log_at_end(entry);
                }
                response
            }
            Err(trouble) => {
                let headers = accept.map(|accept| (header::ACCEPT, accept)).into_iter().collect();
                let response = trouble.answer(Some(&target), &headers);
                entry.status = response.status().as_u16();
                response
            }
        }
    }

    async fn pass(
        &self,
        site: &Site,
        route: &Route,
        target: &Target,
        mut parts: Parts,
        body: Incoming,
        client: &Client,
    ) -> Result<Response<ResponseBody>, Trouble> {
        check_head(&parts)?;
        let now = jiff::Timestamp::now().as_second();
        match access::check(&mut parts, route, target.port, client.secure, now)? {
            Verdict::Pass => {}
            Verdict::Redirect(response) => return Ok(*response),
        }
        let upgrade = upgrade_of(&parts);
        to_guest(&mut parts, client);
        let ticket = site.enter(route, &self.tasks, &self.stop).await?;
        let exchange = Exchange { ticket, port: target.port };
        let answer = match upgrade {
            Some(protocol) => {
                let on_upgrade = hyper::upgrade::on(Request::from_parts(parts.clone(), ()));
                exchange.upgrade(parts, protocol, on_upgrade, &self.tasks).await
            }
            None => exchange.send(parts, RequestBody::of(body)).await,
        };
        match answer {
            Ok(response) => Ok(response.map(|body| ResponseBody::Guest(Box::new(body)))),
            Err(ExchangeError::Other(trouble)) => Err(trouble),
            Err(ExchangeError::Dial(error)) => Err(self.explain(error, route, target).await),
        }
    }

    /// Opens a stream to a port of a sandbox, waking it if it sleeps.
    pub async fn tunnel(&self, sandbox: &SandboxId, port: u16) -> Result<Stirring<GuestStream>, Trouble> {
        let (stream, ticket) = self.connect(sandbox, port).await?;
        Ok(Stirring::new(stream, ticket))
    }

    /// The same for protocols that know when work is under way: see [`Ticket::set_busy`].
    pub async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<(GuestStream, Ticket), Trouble> {
        let (site, route) = self.sites.find(sandbox, self.source.as_ref()).await?;
        let ticket: Ticket = site.enter(&route, &self.tasks, &self.stop).await?;
        match dial(&ticket.door().way, port).await {
            Ok(stream) => Ok((stream, ticket)),
            Err(error) => {
                let target = Target { sandbox: sandbox.clone(), port, by_header: false };
                Err(self.explain(error, &route, &target).await)
            }
        }
    }

    /// Says what a sandbox listens on instead, if that explains it.
    async fn explain(&self, error: DialError, route: &Route, target: &Target) -> Trouble {
        match error {
            DialError::Late => return Trouble::Silent,
            DialError::Failed(why) => return Trouble::Unavailable(why),
            DialError::Closed => {}
        }
        let Place::Sandbox { agent, incarnation } = &route.to else { return Trouble::PortClosed };
        let path = format!("/sandboxes/{}/ports", target.sandbox);
        let call =
            Call { method: Method::GET, path: &path, incarnation: Some(*incarnation), wait: PORTS_WAIT };
        let listening = match agent.call::<PortList>(call, None::<&()>).await {
            Ok(list) => list.ports.into_iter().find(|port| port.port == target.port),
            Err(_) => None,
        };
        listening.map_or(Trouble::PortClosed, |port| Trouble::InsideOnly(port.address))
    }
}

fn check_head(parts: &Parts) -> Result<(), Trouble> {
    if parts.method == Method::CONNECT {
        return Err(Trouble::Malformed("previews do not take CONNECT".to_owned()));
    }
    if is_ambiguous(&parts.headers) {
        return Err(Trouble::Malformed(
            "the request names its length or its host more than once; send each once".to_owned(),
        ));
    }
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(Trouble::TooLarge);
    }
    Ok(())
}
