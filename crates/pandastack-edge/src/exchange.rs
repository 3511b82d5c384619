//! One request to a guest and its answer.
//!
//! A request is repeated only if the guest cannot have seen it, or if it is idempotent (RFC 9110,
//! 9.2.2) and either went to a reused connection that the guest may have closed, or was cut off by
//! a stop of the sandbox.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use pandastack_types::chain;
use tokio::io::AsyncWriteExt;
use tokio_util::task::TaskTracker;

use crate::body::{BodyStalled, BodyTooLarge, GuestBody, RequestBody, Source};
use crate::connector::DialError;
use crate::error::EdgeError;
use crate::grant::Permit;
use crate::headers::{Client, client_host, forget_extensions, strip_hop_by_hop};
use crate::http1::UpstreamError;
use crate::pool::{IDLE_KEPT, IDLE_SURE, Upstream, connect};
use crate::tunnel::{ActivityStream, UPGRADED_BUFFER_BYTES, copy};
use crate::websocket::Relay;

/// The context of one request.
pub(crate) struct Exchange<'a> {
    pub(crate) permit: Permit,
    pub(crate) port: u16,
    /// Client that the headers describe to the guest.
    pub(crate) client: &'a Client,
}

/// Reason why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error(transparent)]
    Dial(DialError),
    /// The sandbox was stopped before it answered.
    #[error("the sandbox was stopped before it answered")]
    Cut,
    #[error(transparent)]
    Other(EdgeError),
}

/// How a failed request can be sent again, if at all.
pub(crate) enum Resend {
    /// The whole request can be: the guest saw none of it. Holds the body.
    Unsent(RequestBody),
    /// The guest may have seen the request, but its method is idempotent and it has no body.
    Repeatable,
    /// The request cannot be sent again.
    Nothing,
}

impl std::fmt::Debug for Resend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Resend::Unsent(_) => "Unsent",
            Resend::Repeatable => "Repeatable",
            Resend::Nothing => "Nothing",
        })
    }
}

/// A request without a response.
#[derive(Debug, thiserror::Error)]
#[error("a request got no response")]
pub(crate) struct FailedExchange {
    #[source]
    pub(crate) error: ExchangeError,
    pub(crate) rest: Resend,
}

impl FailedExchange {
    pub(crate) fn unsent(error: impl Into<ExchangeError>, body: RequestBody) -> Self {
        Self { error: error.into(), rest: Resend::Unsent(body) }
    }

    fn sent(error: impl Into<ExchangeError>, is_repeatable: bool) -> Self {
        Self { error: error.into(), rest: if is_repeatable { Resend::Repeatable } else { Resend::Nothing } }
    }
}

/// A final error: the request is not sent to another machine.
impl From<EdgeError> for FailedExchange {
    fn from(error: EdgeError) -> Self {
        Self::sent(error, false)
    }
}

impl From<EdgeError> for ExchangeError {
    fn from(error: EdgeError) -> Self {
        Self::Other(error)
    }
}

impl From<DialError> for ExchangeError {
    fn from(error: DialError) -> Self {
        Self::Dial(error)
    }
}

type Answer = Result<Response<GuestBody>, FailedExchange>;

impl Exchange<'_> {
    /// Sends a request whose head is ready for the guest.
    pub(crate) async fn send(mut self, parts: &mut Parts, body: RequestBody) -> Answer {
        let is_grpc = parts.version == Version::HTTP_2 && is_grpc(parts);
        forget_extensions(parts);
        // Boxed, like connecting below: rare, and large compared with a usual request's future.
        if is_grpc {
            return Box::pin(self.send_shared(parts, body)).await;
        }
        to_origin_form(parts);
        let is_repeatable = parts.method.is_idempotent() && matches!(body, RequestBody::Empty);
        let idle_max = if is_repeatable { IDLE_KEPT } else { IDLE_SURE };
        let mut upstream = match self.permit.grant().pools.take(self.port, idle_max) {
            Some(upstream) => upstream,
            None => match Box::pin(connect(&self.permit.grant().connector, self.port)).await {
                Ok(upstream) => upstream,
                Err(error) => return Err(FailedExchange::unsent(error, body)),
            },
        };
        upstream.begin(parts, self.client, body);
        let mut answer = self.answer(&mut upstream).await;
        if let Err(NoResponse::Failed(UpstreamError::Closed)) = answer
            && is_repeatable
            && upstream.is_reused
        {
            let connected = Box::pin(connect(&self.permit.grant().connector, self.port)).await;
            upstream = connected.map_err(|error| FailedExchange::sent(error, is_repeatable))?;
            upstream.begin(parts, self.client, RequestBody::Empty);
            answer = self.answer(&mut upstream).await;
        }
        let response = answer.map_err(|silence| FailedExchange::sent(silence.error(), is_repeatable))?;
        // A guest that answers before it has the whole request is in a dialog with its client,
        // which may be slow.
        if let Some(body) = upstream.body_mut() {
            body.wait_for_ever();
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            tracing::debug!("a guest switched protocols without a request");
            return Err(EdgeError::Broken.into());
        }
        self.permit.answered();
        Ok(self.finish(response, Source::Upstream(upstream)))
    }

    /// Sends, in this very task, until the answer begins or the grant is cut.
    async fn answer(&self, upstream: &mut Upstream) -> Result<Response<()>, NoResponse> {
        tokio::select! {
            biased;
            answered = poll_fn(|context| upstream.poll_answer(context)) => answered.map_err(NoResponse::Failed),
            () = self.permit.grant().cut.cancelled() => Err(NoResponse::Cut),
        }
    }

    async fn send_shared(mut self, parts: &mut Parts, mut body: RequestBody) -> Answer {
        // Silence within a call is up to the caller; pings detect a vanished one.
        body.wait_for_ever();
        let grant = Arc::clone(self.permit.grant());
        // An absolute form is how HTTP/2 carries scheme and authority.
        if let Some(host) = client_host(parts).cloned() {
            self.client.insert_headers(&host, &mut parts.headers);
        }
        let host = parts.headers.remove(header::HOST);
        let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("http://{host}{path}").parse().map_err(malformed)?;
        let mut sender = match grant.pools.connect_shared(&grant.connector, self.port, &grant.cut).await {
            Ok(sender) => sender,
            Err(error) => return Err(FailedExchange::unsent(error, body)),
        };
        let broken = |error: hyper::Error| FailedExchange::from(edge_error(&error));
        sender.ready().await.map_err(broken)?;
        let mut request = Request::new(body);
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri;
        std::mem::swap(request.method_mut(), &mut parts.method);
        std::mem::swap(request.headers_mut(), &mut parts.headers);
        let response = tokio::select! {
            response = sender.send_request(request) => response.map_err(broken)?,
            () = grant.cut.cancelled() => return Err(stopped().into()),
        };
        self.permit.answered();
        let (mut head, incoming) = response.into_parts();
        head.extensions.clear();
        head.version = Version::HTTP_11;
        Ok(self.finish(Response::from_parts(head, ()), Source::Shared(incoming)))
    }

    fn finish(self, mut response: Response<()>, source: Source) -> Response<GuestBody> {
        strip_hop_by_hop(response.headers_mut());
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        response.map(|()| GuestBody::new(source, self.port, self.permit, is_events))
    }

    /// Sends a request that may continue as another protocol. `client` is the other end of it.
    pub(crate) async fn upgrade(
        mut self,
        parts: &mut Parts,
        protocol: HeaderValue,
        client: OnUpgrade,
        tasks: &TaskTracker,
    ) -> Answer {
        to_origin_form(parts);
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
        let connected = connect(&self.permit.grant().connector, self.port).await;
        let mut upstream = connected.map_err(|error| FailedExchange::unsent(error, RequestBody::Empty))?;
        upstream.begin(parts, self.client, RequestBody::Empty);
        let answer = self.answer(&mut upstream).await;
        let mut response = answer.map_err(|silence| FailedExchange::sent(silence.error(), false))?;
        self.permit.answered();
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.finish(response, Source::Upstream(upstream)));
        }
        let protocol = response.headers_mut().remove(header::UPGRADE);
        // The answer's body is empty; the tunnel has a permit of its own, which it holds to its end.
        let is_websocket = is_websocket(protocol.as_ref());
        tasks.spawn(tunnel(client, upstream, self.permit.duplicate(), is_websocket));
        let mut answer = self.finish(response, Source::Nothing);
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        if let Some(protocol) = protocol {
            answer.headers_mut().insert(header::UPGRADE, protocol);
        }
        Ok(answer)
    }
}

/// Passes bytes both ways until both sides ended, one broke or the grant is cut.
async fn tunnel(client: OnUpgrade, upstream: Box<Upstream>, permit: Permit, is_websocket: bool) {
    let (guest, said) = upstream.into_stream();
    let cut = permit.cut();
    let guest = ActivityStream::new(guest, permit);
    let streams = async {
        let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
        client.write_all(&said).await?;
        Ok::<_, io::Error>(client)
    };
    let client = tokio::select! {
        client = streams => client,
        () = cut.cancelled() => return,
    };
    let client = match client {
        Ok(client) => client,
        Err(error) => return tracing::debug!(%error, "the upgrade failed"),
    };
    if !is_websocket {
        drop(said);
        return tokio::select! {
            () = copy(client, guest, UPGRADED_BUFFER_BYTES) => {}
            () = cut.cancelled() => {}
        };
    }
    let relay = Relay::new(client, guest, &said);
    // Before the tunnel, which may last for days: it is a piece of the buffer that the head was read into.
    drop(said);
    relay.run(&cut).await;
}

fn is_websocket(protocol: Option<&HeaderValue>) -> bool {
    protocol.is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Reason why a request on an HTTP/1 connection got no response.
#[derive(Debug, thiserror::Error)]
enum NoResponse {
    #[error(transparent)]
    Failed(UpstreamError),
    #[error("the sandbox was stopped before it answered")]
    Cut,
}

impl NoResponse {
    fn error(self) -> ExchangeError {
        match self {
            NoResponse::Cut => ExchangeError::Cut,
            NoResponse::Failed(error) => edge_error(&error).into(),
        }
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

fn malformed(_: http::uri::InvalidUri) -> EdgeError {
    EdgeError::Malformed("the request URL is malformed".to_owned())
}

pub(crate) fn stopped() -> EdgeError {
    EdgeError::Busy("the sandbox stopped before it responded; try again".to_owned())
}

fn edge_error(error: &(dyn std::error::Error + 'static)) -> EdgeError {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if inner.is::<BodyTooLarge>() {
            return EdgeError::TooLarge;
        }
        if inner.is::<BodyStalled>() {
            return EdgeError::TooSlow;
        }
        cause = inner.source();
    }
    tracing::debug!(error = %chain(error), "a guest closed the connection");
    EdgeError::Broken
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::grant::TrafficGrant;
    use crate::guest_stream::GuestStream;

    #[tokio::test]
    async fn a_tunnel_uses_little_memory_beside_its_buffers() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let upstream = Box::new(Upstream::new(GuestStream::Tcp(stream)));
        let permit = TrafficGrant::fixed(Ipv4Addr::LOCALHOST.into()).enter().ok().unwrap();
        let client = hyper::upgrade::on(Request::new(()));
        let bytes = size_of_val(&tunnel(client, upstream, permit, true));
        // There may be ten thousand of them.
        assert!(bytes <= 1024, "{bytes} bytes");
    }
}
