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

/// What is left of a request that got no answer.
pub(crate) enum Rest {
    /// All of it: the guest saw nothing. Its body.
    Unsent(RequestBody),
    /// The guest may have seen it, but it has no body and may be sent again by its nature.
    Repeatable,
    /// It cannot be sent again.
    Nothing,
}

/// A request that got no answer.
pub(crate) struct Setback {
    pub(crate) error: ExchangeError,
    pub(crate) rest: Rest,
}

impl Setback {
    pub(crate) fn unsent(error: impl Into<ExchangeError>, body: RequestBody) -> Self {
        Self { error: error.into(), rest: Rest::Unsent(body) }
    }

    fn sent(error: impl Into<ExchangeError>, is_repeatable: bool) -> Self {
        Self { error: error.into(), rest: if is_repeatable { Rest::Repeatable } else { Rest::Nothing } }
    }

    /// After a connection that broke; it may give back what it did not send.
    fn broken(mut failed: TrySendError<Request<RequestBody>>, is_repeatable: bool) -> Self {
        let unsent = failed.take_message();
        let trouble = trouble_of(&failed.into_error());
        match unsent {
            Some(request) => Self::unsent(trouble, request.into_body()),
            None => Self::sent(trouble, is_repeatable),
        }
    }
}

/// For what is final: neither the request nor its body is of use to another machine.
impl From<Trouble> for Setback {
    fn from(trouble: Trouble) -> Self {
        Self::sent(trouble, false)
    }
}

impl From<Trouble> for ExchangeError {
    fn from(trouble: Trouble) -> Self {
        Self::Other(trouble)
    }
}

impl From<DialError> for ExchangeError {
    fn from(error: DialError) -> Self {
        Self::Dial(error)
    }
}

type Answer = Result<Response<GuestBody>, Setback>;

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
            None => match connect(&door, self.port).await {
                Ok(upstream) => upstream,
                Err(error) => return Err(Setback::unsent(error, body)),
            },
        };
        let repeatable = parts.method.is_idempotent() && matches!(body, RequestBody::Empty);
        let spare =
            (upstream.reused && repeatable).then(|| Request::from_parts(parts.clone(), RequestBody::Empty));
        let cut = |trouble: Trouble| Setback::sent(trouble, repeatable);
        let first = self.drive(&mut upstream, Request::from_parts(parts, body)).await.map_err(cut)?;
        let response = match first {
            Ok(response) => response,
            Err(failed) if !upstream.reused => return Err(Setback::broken(failed, repeatable)),
            Err(mut failed) => {
                let unsent = failed.take_message();
                let was_sent = unsent.is_none();
                let Some(request) = unsent.or(spare) else {
                    return Err(Setback::broken(failed, repeatable));
                };
                upstream = match connect(&door, self.port).await {
                    Ok(upstream) => upstream,
                    Err(error) if was_sent => return Err(Setback::sent(error, repeatable)),
                    Err(error) => return Err(Setback::unsent(error, request.into_body())),
                };
                let second = self.drive(&mut upstream, request).await.map_err(cut)?;
                second.map_err(|failed| Setback::broken(failed, repeatable))?
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
    ) -> Result<Result<Response<Incoming>, TrySendError<Request<RequestBody>>>, Trouble> {
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
            () = self.ticket.door().cut.cancelled() => Err(stopped()),
        }
    }

    async fn send_shared(mut self, mut parts: Parts, body: RequestBody) -> Answer {
        let door = std::sync::Arc::clone(self.ticket.door());
        // An absolute form is how HTTP/2 carries scheme and authority.
        let host = parts.headers.remove(header::HOST);
        let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = format!("http://{host}{path}").parse().map_err(malformed)?;
        let mut sender = match connect_shared(&door, self.port).await {
            Ok(sender) => sender,
            Err(error) => return Err(Setback::unsent(error, body)),
        };
        let broken = |error: hyper::Error| Setback::from(trouble_of(&error));
        sender.ready().await.map_err(broken)?;
        let response = tokio::select! {
            response = sender.send_request(Request::from_parts(parts, body)) => response.map_err(broken)?,
            () = door.cut.cancelled() => return Err(stopped().into()),
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
        let connected = connect(&door, self.port).await;
        let connected = connected.map_err(|error| Setback::unsent(error, RequestBody::Empty))?;
        let Upstream { mut sender, connection, .. } = *connected;
        let cut = door.cut.clone();
        tasks.spawn(async move {
            tokio::select! {
                _ = connection.with_upgrades() => {}
                () = cut.cancelled() => {}
            }
        });
        let sent = sender.send_request(Request::from_parts(parts, RequestBody::Empty)).await;
        let mut response = sent.map_err(|error| Setback::from(trouble_of(&error)))?;
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
        let ticket = door.enter().map_err(|_| Setback::from(stopped()))?;
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

fn malformed(_: http::uri::InvalidUri) -> Trouble {
    Trouble::Malformed("the address is malformed".to_owned())
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
