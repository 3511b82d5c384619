//! Connections that carry only plain requests to sandboxes, which is the common case.
//!
//! They are served without the HTTP library, whose generality costs more processor time than the
//! bar leaves (`bench/README.md`, Edge). Any other request hands the connection to the library,
//! from the first byte of that request.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::header::CONNECTION;
use http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::app_route::{AppRoute, Instances};
use crate::body::RequestBody;
use crate::client_stream::WriteClock;
use crate::destination::{Destination, Target, destination};
use crate::headers::Client;
use crate::http1::{Downstream, NextRequest, PlainRequest, RewoundStream};
use crate::server::Server;

/// Serves until the connection ends or another protocol starts; then returns the connection.
pub(crate) async fn serve<S>(
    server: &Server,
    stream: S,
    writes: &WriteClock,
    client: &Client,
    stop: &CancellationToken,
) -> Option<RewoundStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Downstream::new(stream);
    let wait = server.head_wait;
    let timer = pin!(tokio::time::sleep(wait));
    let stopped = pin!(stop.cancelled());
    let mut waiting = RequestWait { timer, stopped, writes, send_wait: server.send_wait };
    loop {
        let due = Instant::now() + wait;
        let asked = match poll_fn(|context| waiting.poll_next(&mut connection, due, context)).await {
            NextRequest::Plain(asked) => asked,
            NextRequest::Other => return Some(connection.give_up(None)),
            NextRequest::Closed => return None,
        };
        let Some(to) = find(server, &asked.parts).await else { return Some(connection.give_up(Some(asked))) };
        let mut form = asked.form();
        let PlainRequest { mut parts, body, .. } = asked;
        let body = RequestBody::from(body);
        let response = match &to {
            PlainTarget::Sandbox(target) => {
                let answer = pin!(server.edge.serve(target, &mut parts, body, client));
                connection.unless_disconnected(answer).await?
            }
            PlainTarget::App(app) => {
                let answer = Box::pin(server.edge.serve_app(app, &mut parts, body, client));
                connection.unless_disconnected(pin!(answer)).await?
            }
        };
        form.is_last |= stop.is_cancelled() || response.headers().contains_key(CONNECTION);
        connection.begin(response, form);
        if !poll_fn(|context| waiting.poll_sent(&mut connection, context)).await {
            return None;
        }
        if form.is_last {
            poll_fn(|context| waiting.poll_close(&mut connection, context)).await;
            return None;
        }
    }
}

/// The target of a plain request.
enum PlainTarget {
    Sandbox(Target),
    App(Instances),
}

async fn find(server: &Server, parts: &Parts) -> Option<PlainTarget> {
    match destination(&parts.uri, &parts.headers) {
        Destination::Sandbox(target) => {
            let is_own = server.own_ports.as_ref().is_some_and(|own| own.ports.contains(&target.port));
            (!is_own).then_some(PlainTarget::Sandbox(target))
        }
        // The path that serves the API handles every other result.
        Destination::Named(name) => match Box::pin(server.edge.app_route(&name)).await {
            Ok(Some(AppRoute::Serving(app))) => Some(PlainTarget::App(app)),
            _ => None,
        },
        Destination::Api | Destination::Malformed(_) => None,
    }
}

/// Wakes a connection that waits: for a request, or for a client that takes nothing of an answer.
/// One timer serves all of them: deadlines are checked when it fires.
struct RequestWait<'a, 't> {
    timer: Pin<&'a mut Sleep>,
    stopped: Pin<&'a mut WaitForCancellationFuture<'t>>,
    writes: &'a WriteClock,
    send_wait: Duration,
}

impl RequestWait<'_, '_> {
    fn poll_next<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        connection: &mut Downstream<S>,
        due: Instant,
        context: &mut Context<'_>,
    ) -> Poll<NextRequest> {
        if let Poll::Ready(next) = connection.poll_next(context) {
            return Poll::Ready(next);
        }
        // A partially received request is still answered.
        let is_stopped = connection.is_idle() && self.stopped.as_mut().poll(context).is_ready();
        if is_stopped || self.is_late(due, context) {
            Poll::Ready(NextRequest::Closed)
        } else {
            Poll::Pending
        }
    }

    fn poll_sent<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        connection: &mut Downstream<S>,
        context: &mut Context<'_>,
    ) -> Poll<bool> {
        match connection.poll_sent(context) {
            Poll::Pending if self.is_stuck(context) => Poll::Ready(false),
            sent => sent,
        }
    }

    fn poll_close<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        connection: &mut Downstream<S>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        match connection.poll_close(context) {
            Poll::Pending if self.is_stuck(context) => Poll::Ready(()),
            closed => closed,
        }
    }

    /// Returns whether the client has taken nothing for too long.
    fn is_stuck(&mut self, context: &mut Context<'_>) -> bool {
        let since = self.writes.stuck_since();
        since.is_some_and(|since| self.is_late(since + self.send_wait, context))
    }

    fn is_late(&mut self, due: Instant, context: &mut Context<'_>) -> bool {
        // The timer may still be set for an earlier wait.
        if self.timer.deadline() > tokio::time::Instant::from(due) {
            self.timer.as_mut().reset(due.into());
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if due <= Instant::now() {
                return true;
            }
            self.timer.as_mut().reset(due.into());
        }
        false
    }
}
