//! One request to a guest and its answer.
//!
//! A request is repeated only if the guest cannot have seen it, or if it may be repeated by its nature (RFC 9110, 9.2.2)
//! and went to a connection that the guest was free to close.

use std::pin::pin;

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::task::TaskTracker;

use crate::body::{BodyTooLarge, GuestBody, RequestBody};
use crate::door::Ticket;
use crate::headers::strip_hop_by_hop;
use crate::pool::{DialError, Upstream, connect, connect_shared};
use crate::trouble::Trouble;
use crate::tunnel::{Stirring, copy};

/// Bytes held in each direction of an upgraded connection.
const UPGRADED_BUFFER_BYTES: usize = 8 * 1024;

/// What a request is part of.
pub(crate) struct Exchange {
    pub(crate) ticket: Ticket,
    pub(crate) port: u16,
}

pub(crate) enum ExchangeError {
    Dial(DialError),
    Other(Trouble),
}

impl From<DialError> for ExchangeError {
    fn from(error: DialError) -> Self {
        Self::Dial(error)
    }
}

type Answer = Result<Response<GuestBody>, ExchangeError>;

impl Exchange {
    /// Sends a request whose head is ready for the guest.
    pub(crate) async fn send(mut self, mut parts: Parts, body: RequestBody) -> Answer {
        let is_grpc = parts.version == Version::HTTP_2 && is_grpc(&parts);
        parts.extensions.clear();
        if is_grpc {
            return self.send_shared(parts, body).await;
        }
        to_origin_form(&mut parts);
        let door = std::sync::Arc::clone(self.ticket.door());
        let mut upstream = match door.pools.take(self.port) {
            Some(upstream) => upstream,
            None => connect(&door, self.port).await?,
        };
        let repeatable =
            upstream.reused && parts.method.is_idempotent() && matches!(body, RequestBody::Empty);
        let spare = repeatable.then(|| Request::from_parts(parts.clone(), RequestBody::Empty));
        let first = self.drive(&mut upstream, Request::from_parts(parts, body)).await?;
        let response = match first {
            Ok(response) => response,
            Err(mut failed) => {
                let again = failed.take_message().or(spare);
                let Some(request) = again.filter(|_| upstream.reused) else {
                    return Err(ExchangeError::Other(trouble_of(&failed.into_error())));
                };
                upstream = connect(&door, self.port).await?;
                let second = self.drive(&mut upstream, request).await?;
                second.map_err(|failed| ExchangeError::Other(trouble_of(&failed.into_error())))?
            }
        };
        self.ticket.answered();
        Ok(self.finish(response, Some(upstream)))
    }

    /// Sends on a connection that this very task drives, until the answer begins or the door is cut.
    async fn drive(
        &self,
        upstream: &mut Upstream,
        request: Request<RequestBody>,
    ) -> Result<Result<Response<Incoming>, TrySendError<Request<RequestBody>>>, ExchangeError> {
        let mut answer = pin!(upstream.sender.try_send_request(request));
        let (connection, ended) = (&mut upstream.connection, &mut upstream.ended);
        let mut connection = pin!(connection);
        let answered = std::future::poll_fn(|context| {
            if !*ended && connection.as_mut().poll(context).is_ready() {
                *ended = true;
            }
            answer.as_mut().poll(context)
        });
        tokio::select! {
            biased;
            answered = answered => Ok(answered),
            () = self.ticket.door().cut.cancelled() => Err(ExchangeError::Other(stopped())),
        }
    }

    async fn send_shared(mut self, mut parts: Parts, body: RequestBody) -> Answer {
        let door = std::sync::Arc::clone(self.ticket.door());
        // An absolute form is how HTTP/2 carries scheme and authority.
        let host = parts.headers.remove(header::HOST);
        let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = format!("http://{host}{path}").parse().map_err(malformed)?;
        let mut sender = connect_shared(&door, self.port).await?;
        let broken = |error: hyper::Error| ExchangeError::Other(trouble_of(&error));
        sender.ready().await.map_err(broken)?;
        let response = tokio::select! {
            response = sender.send_request(Request::from_parts(parts, body)) => response.map_err(broken)?,
            () = door.cut.cancelled() => return Err(ExchangeError::Other(stopped())),
        };
        self.ticket.answered();
        Ok(self.finish(response, None))
    }

    fn finish(self, response: Response<Incoming>, upstream: Option<Box<Upstream>>) -> Response<GuestBody> {
        let (mut parts, incoming) = response.into_parts();
        strip_hop_by_hop(&mut parts.headers);
        parts.extensions.clear();
        parts.version = Version::HTTP_11;
        Response::from_parts(parts, GuestBody::new(incoming, upstream, self.port, self.ticket))
    }

    /// Sends a request that may go on as another protocol. `client` is the other end of it.
    pub(crate) async fn upgrade(
        mut self,
        mut parts: Parts,
        protocol: HeaderValue,
        client: OnUpgrade,
        tasks: &TaskTracker,
    ) -> Answer {
        let door = std::sync::Arc::clone(self.ticket.door());
        to_origin_form(&mut parts);
        parts.extensions.clear();
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
        let Upstream { mut sender, connection, .. } = *connect(&door, self.port).await?;
        let cut = door.cut.clone();
        tasks.spawn(async move {
            tokio::select! {
                _ = connection.with_upgrades() => {}
                () = cut.cancelled() => {}
            }
        });
        let sent = sender.send_request(Request::from_parts(parts, RequestBody::Empty)).await;
        let mut response = sent.map_err(|error| ExchangeError::Other(trouble_of(&error)))?;
        self.ticket.answered();
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.finish(response, None));
        }
        let guest = hyper::upgrade::on(&mut response);
        let protocol = response.headers().get(header::UPGRADE).cloned();
        let (mut head, incoming) = response.into_parts();
        strip_hop_by_hop(&mut head.headers);
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        if let Some(protocol) = protocol {
            head.headers.insert(header::UPGRADE, protocol);
        }
        // The answer's body is empty; the tunnel has a ticket of its own, which it holds to its end.
        let ticket = door.enter().map_err(|_| ExchangeError::Other(stopped()))?;
        let cut = door.cut.clone();
        tasks.spawn(async move {
            let streams = async {
                let (client, guest) = tokio::try_join!(client, guest)?;
                let guest = Stirring::new(TokioIo::new(guest), ticket);
                copy(TokioIo::new(client), guest, UPGRADED_BUFFER_BYTES).await;
                Ok::<_, hyper::Error>(())
            };
            tokio::select! {
                ended = streams => drop(ended.inspect_err(|error| tracing::debug!(%error, "no upgrade"))),
                () = cut.cancelled() => {}
            }
        });
        head.extensions.clear();
        Ok(Response::from_parts(head, GuestBody::new(incoming, None, self.port, self.ticket)))
    }
}

fn is_grpc(parts: &Parts) -> bool {
    let kind = parts.headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn to_origin_form(parts: &mut Parts) {
    parts.version = Version::HTTP_11;
    if parts.uri.authority().is_none() {
        return;
    }
    let path = std::mem::take(&mut parts.uri).into_parts().path_and_query;
    let mut origin = http::uri::Parts::default();
    origin.path_and_query = path;
    // `OPTIONS *` and an empty path are the only forms without one.
    let fallback =
        if parts.method == Method::OPTIONS { Uri::from_static("*") } else { Uri::from_static("/") };
    parts.uri = Uri::from_parts(origin).unwrap_or(fallback);
}

fn malformed(_: http::uri::InvalidUri) -> ExchangeError {
    ExchangeError::Other(Trouble::Malformed("the address is malformed".to_owned()))
}

fn stopped() -> Trouble {
    Trouble::Busy("the sandbox was stopped before it answered; try again".to_owned())
}

fn trouble_of(error: &hyper::Error) -> Trouble {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if inner.is::<BodyTooLarge>() {
            return Trouble::TooLarge;
        }
        cause = inner.source();
    }
    tracing::debug!(%error, "a guest broke off");
    Trouble::Broken
}
