//! Handlers, registered by the endpoints that they serve.
//!
//! Method, path, parameters, request and response of a handler are those of its endpoint's
//! description: a handler that does not fit does not compile. [`Routes`] also remembers which
//! endpoints were registered, so that a test finds missing ones.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use hyper::upgrade::OnUpgrade;
use pandastack_types::agent_api::{
    BadParameter, Bytes, Created, Empty, Endpoint, Events, INCARNATION_HEADER, Json, JsonStream, MediaType,
    Method, OnSandbox, OrEvents, Protocol, Upgrade, WebSocketProtocol, parse_query,
};
use pandastack_types::limits;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::sandbox::handle::SandboxHandle;

/// The request body that a handler receives.
type RequestOf<E> = <<E as Endpoint>::Request as ReadRequest>::Value;
/// The response of a handler.
type ResponseOf<E> = <<E as Endpoint>::Response as WriteResponse>::Value;

/// A call on the host.
pub(super) struct HostCall<E: Endpoint<Request: ReadRequest>> {
    pub host: Arc<Host>,
    pub endpoint: E,
    pub body: RequestOf<E>,
}

/// A call on a sandbox of the host, in the incarnation that the caller means.
pub(super) struct SandboxCall<E: Endpoint<Request: ReadRequest>> {
    pub host: Arc<Host>,
    pub sandbox: SandboxHandle,
    pub endpoint: E,
    pub body: RequestOf<E>,
    /// The rest of the request.
    pub parts: Parts,
}

impl<E, P> SandboxCall<E>
where
    E: Endpoint<Request = Empty, Response = Upgrade<P>>,
    P: Protocol,
{
    /// The connection once it is upgraded, and the response that upgrades it.
    pub(super) fn upgrade(&mut self) -> Result<(OnUpgrade, UpgradeResponse<P>)> {
        let protocol = P::NAME;
        if self.parts.headers.get(header::UPGRADE).is_none_or(|wanted| wanted != protocol) {
            return Err(AgentError::BadRequest(format!("this call needs `Upgrade: {protocol}`")));
        }
        let Some(upgrade) = self.parts.extensions.remove::<OnUpgrade>() else {
            return Err(AgentError::BadRequest("this connection cannot be upgraded".to_owned()));
        };
        let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
        Ok((upgrade, UpgradeResponse::new(response)))
    }
}

impl<E: Endpoint<Request = Empty, Response = Upgrade<WebSocketProtocol>>> SandboxCall<E> {
    /// The WebSocket, with the limits of all of them.
    pub(super) async fn websocket(&mut self) -> Result<WebSocketUpgrade> {
        let upgrade = WebSocketUpgrade::from_request_parts(&mut self.parts, &()).await;
        let upgrade = upgrade.map_err(|error| AgentError::BadRequest(error.to_string()))?;
        Ok(upgrade
            .max_message_size(limits::SOCKET_MESSAGE_BYTES_MAX)
            .max_frame_size(limits::SOCKET_MESSAGE_BYTES_MAX))
    }
}

/// A router built from endpoints.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<Arc<Host>>,
    registered: Vec<(Method, &'static str)>,
}

impl Routes {
    /// Registers the handler of a call on the host.
    pub(super) fn host<E, H, F>(self, handler: H) -> Self
    where
        E: Endpoint<Request: ReadRequest, Response: WriteResponse>,
        H: Fn(HostCall<E>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<ResponseOf<E>>> + Send,
    {
        self.on::<E, _, _>(move |host, request| {
            let handler = handler.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                let endpoint = parameters::<E>(&mut parts).await?;
                let body = E::Request::read(body).await?;
                handler(HostCall { host, endpoint, body }).await
            }
        })
    }

    /// Registers the handler of a call on a sandbox.
    pub(super) fn sandbox<E, H, F>(self, handler: H) -> Self
    where
        E: OnSandbox + Endpoint<Request: ReadRequest, Response: WriteResponse>,
        H: Fn(SandboxCall<E>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<ResponseOf<E>>> + Send,
    {
        self.on::<E, _, _>(move |host, request| {
            let handler = handler.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                let endpoint = parameters::<E>(&mut parts).await?;
                let sandbox = find(&host, &endpoint, &parts)?;
                let body = E::Request::read(body).await?;
                handler(SandboxCall { host, sandbox, endpoint, body, parts }).await
            }
        })
    }

    /// The router, below the path of the API.
    pub(super) fn into_router(self) -> Router<Arc<Host>> {
        self.router
    }

    #[cfg(test)]
    pub(super) fn registered(&self) -> &[(Method, &'static str)] {
        &self.registered
    }

    fn on<E, H, F>(mut self, serve: H) -> Self
    where
        E: Endpoint<Response: WriteResponse>,
        H: Fn(Arc<Host>, Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<ResponseOf<E>>> + Send,
    {
        let filter = match E::METHOD {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Patch => MethodFilter::PATCH,
            Method::Delete => MethodFilter::DELETE,
        };
        let handler = async move |State(host): State<Arc<Host>>, request: Request| {
            serve(host, request).await.map(E::Response::write)
        };
        self.router = self.router.route(E::PATH, on(filter, handler));
        self.registered.push((E::METHOD, E::PATH));
        self
    }
}

async fn parameters<E: Endpoint>(parts: &mut Parts) -> Result<E> {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let params = params.map_err(|error| AgentError::BadRequest(error.to_string()))?;
    let param = |name: &str| params.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    let read = || E::parse(param, parse_query(parts.uri.query().unwrap_or_default())?);
    read().map_err(|error: BadParameter| AgentError::BadRequest(error.to_string()))
}

fn find(host: &Host, endpoint: &impl OnSandbox, parts: &Parts) -> Result<SandboxHandle> {
    let sandbox = host.sandbox(endpoint.sandbox())?;
    if let Some(meant) = parts.headers.get(INCARNATION_HEADER) {
        let bad = || AgentError::BadRequest("the incarnation is not a number".to_owned());
        let meant = meant.to_str().ok().and_then(|text| text.parse().ok());
        sandbox.check_incarnation(meant.ok_or_else(bad)?)?;
    }
    Ok(sandbox)
}

/// A kind of request body, and how it is read.
pub(super) trait ReadRequest {
    type Value: Send;
    fn read(body: Body) -> impl Future<Output = Result<Self::Value>> + Send;
}

impl ReadRequest for Empty {
    type Value = ();

    async fn read(_: Body) -> Result<()> {
        Ok(())
    }
}

impl<T: DeserializeOwned + Send> ReadRequest for Json<T> {
    type Value = T;

    async fn read(body: Body) -> Result<T> {
        let bytes = axum::body::to_bytes(body, limits::JSON_BODY_BYTES_MAX).await;
        let bytes = bytes.map_err(|error| {
            let is_too_large = std::error::Error::source(&error)
                .is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
            match is_too_large {
                true => AgentError::TooLarge(format!(
                    "the JSON body is larger than {} bytes",
                    limits::JSON_BODY_BYTES_MAX
                )),
                false => AgentError::BadRequest("the request body is incomplete; send it again".to_owned()),
            }
        })?;
        let parsed = axum::Json::from_bytes(&bytes);
        parsed.map(|axum::Json(value)| value).map_err(|error| AgentError::BadRequest(error.body_text()))
    }
}

impl<M: MediaType> ReadRequest for Bytes<M> {
    type Value = Body;

    async fn read(body: Body) -> Result<Body> {
        Ok(body)
    }
}

/// A kind of response, and how it is written.
pub(super) trait WriteResponse {
    type Value: Send;
    fn write(value: Self::Value) -> Response;
}

impl WriteResponse for Empty {
    type Value = ();

    fn write((): ()) -> Response {
        StatusCode::NO_CONTENT.into_response()
    }
}

impl<T: Serialize + Send> WriteResponse for Json<T> {
    type Value = T;

    fn write(value: T) -> Response {
        axum::Json(value).into_response()
    }
}

impl<T> WriteResponse for JsonStream<T> {
    /// The value's JSON, with its headers.
    type Value = Response;

    fn write(response: Response) -> Response {
        response
    }
}

impl<T: Serialize + Send> WriteResponse for Created<T> {
    type Value = T;

    fn write(value: T) -> Response {
        (StatusCode::CREATED, axum::Json(value)).into_response()
    }
}

impl<M: MediaType> WriteResponse for Bytes<M> {
    /// The body, with descriptive headers.
    type Value = Response;

    fn write(mut response: Response) -> Response {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(M::NAME));
        response
    }
}

/// A response of server-sent events.
pub(super) struct EventResponse(pub Response);

impl WriteResponse for Events {
    type Value = EventResponse;

    fn write(EventResponse(response): EventResponse) -> Response {
        response
    }
}

/// A response that is a stream of events if the caller wants that.
pub(super) enum ValueOrEvents<T> {
    Value(T),
    Events(EventResponse),
}

impl<K: WriteResponse> WriteResponse for OrEvents<K> {
    type Value = ValueOrEvents<K::Value>;

    fn write(value: Self::Value) -> Response {
        match value {
            ValueOrEvents::Value(value) => K::write(value),
            ValueOrEvents::Events(events) => Events::write(events),
        }
    }
}

/// A response that upgrades the connection to a protocol.
pub(super) struct UpgradeResponse<P> {
    pub response: Response,
    protocol: std::marker::PhantomData<fn() -> P>,
}

impl<P> UpgradeResponse<P> {
    fn new(response: Response) -> Self {
        Self { response, protocol: std::marker::PhantomData }
    }
}

impl UpgradeResponse<WebSocketProtocol> {
    /// The response to a WebSocket's handshake.
    pub(super) fn websocket(response: Response) -> Self {
        Self::new(response)
    }
}

impl<P> WriteResponse for Upgrade<P> {
    type Value = UpgradeResponse<P>;

    fn write(switching: UpgradeResponse<P>) -> Response {
        switching.response
    }
}
