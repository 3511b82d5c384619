//! The shape of an endpoint's description: see [`Endpoint`].

use std::fmt::{self, Display, Write};
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::query::encode_query;
use crate::{SandboxId, grant};

/// All endpoints are below this path.
pub const PREFIX: &str = "/agent/v1";

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// `GET`
    Get,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `PATCH`
    Patch,
    /// `DELETE`
    Delete,
}

impl Method {
    /// The method in wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

/// A call that an agent serves. A value of an endpoint's type has the parameters of one such call.
///
/// | request | sends |
/// |---|---|
/// | [`Empty`] | nothing |
/// | [`Json`] | one JSON value |
/// | [`Bytes`] | a stream of bytes |
///
/// | response | is |
/// |---|---|
/// | [`Empty`] | status 204 |
/// | [`Json`], [`Created`] | one JSON value, status 200 or 201 |
/// | [`JsonStream`] | one JSON value, which the agent sends in pieces |
/// | [`Bytes`] | a stream of bytes |
/// | [`Events`] | server-sent events |
/// | [`OrEvents`] | server-sent events if the query asks for them |
/// | [`Upgrade`] | status 101, then a stream of bytes both ways |
pub trait Endpoint: Sized + Send + Sync + 'static {
    /// HTTP method.
    const METHOD: Method;
    /// Path below [`PREFIX`], with parameters in braces: `/sandboxes/{sandbox}/exec`.
    const PATH: &'static str;
    /// Query parameters.
    type Query: Serialize + DeserializeOwned + Send;
    /// The request body.
    type Request;
    /// The response of the agent.
    type Response;

    /// The path of this call below [`PREFIX`].
    fn path(&self) -> String;

    /// The query of this call.
    fn query(&self) -> &Self::Query;

    /// Reads the parameters of a call. `param` looks up a path parameter by its name, decoded.
    fn parse<'a>(param: impl Fn(&str) -> Option<&'a str>, query: Self::Query) -> Result<Self, BadParameter>;

    /// Path and query of this call, in wire form.
    fn target(&self) -> String {
        let query = encode_query(self.query());
        target(self.path(), (!query.is_empty()).then_some(query.as_str()))
    }
}

/// An endpoint of one sandbox.
pub trait OnSandbox: Endpoint {
    /// The sandbox.
    fn sandbox(&self) -> &SandboxId;
}

/// A call whose query, body and response are passed on between a client and the agent without being read.
pub struct PassThrough<E> {
    path: String,
    query: Option<String>,
    endpoint: PhantomData<fn() -> E>,
}

impl<E: Endpoint> PassThrough<E> {
    pub(super) fn new(path: String, query: Option<String>) -> Self {
        Self { path, query, endpoint: PhantomData }
    }

    /// Path and query of this call, in wire form.
    pub fn target(&self) -> String {
        target(self.path.clone(), self.query.as_deref())
    }
}

fn target(path: String, query: Option<&str>) -> String {
    match query {
        Some(query) => format!("{PREFIX}{path}?{query}"),
        None => format!("{PREFIX}{path}"),
    }
}

/// A parameter of a path or query is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadParameter(pub(super) String);

/// An endpoint, as a line of the table of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Description {
    /// Name of its type.
    pub name: &'static str,
    /// HTTP method.
    pub method: Method,
    /// Path below [`PREFIX`].
    pub path: &'static str,
}

/// No body.
pub struct Empty;

/// A body that is one JSON value.
pub struct Json<T>(PhantomData<fn() -> T>);

/// A response that is one JSON value, large enough that an agent sends it in pieces.
pub struct JsonStream<T>(PhantomData<fn() -> T>);

/// A JSON response with status 201.
pub struct Created<T>(PhantomData<fn() -> T>);

/// A body that is a stream of bytes of a media type.
pub struct Bytes<M>(PhantomData<fn() -> M>);

/// A response of server-sent events.
pub struct Events;

/// A response of kind `K`, or of [`Events`] if the query asks for them.
pub struct OrEvents<K>(PhantomData<fn() -> K>);

/// A response that turns the connection into a stream of bytes both ways.
pub struct Upgrade<P>(PhantomData<fn() -> P>);

/// A response that is read as one value.
pub trait JsonResponse {
    /// The type that it is read as.
    type Value: Serialize + DeserializeOwned + Send + 'static;
    /// HTTP status.
    const STATUS: u16;

    /// Reads its body.
    fn parse(body: &[u8]) -> Result<Self::Value, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

impl JsonResponse for Empty {
    type Value = ();
    const STATUS: u16 = 204;

    fn parse(_: &[u8]) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> JsonResponse for Json<T> {
    type Value = T;
    const STATUS: u16 = 200;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> JsonResponse for JsonStream<T> {
    type Value = T;
    const STATUS: u16 = 200;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> JsonResponse for Created<T> {
    type Value = T;
    const STATUS: u16 = 201;
}

impl<K: JsonResponse> JsonResponse for OrEvents<K> {
    type Value = K::Value;
    const STATUS: u16 = K::STATUS;
}

/// A response whose body is streamed.
pub trait StreamResponse {}

impl<M: MediaType> StreamResponse for Bytes<M> {}
impl<T> StreamResponse for JsonStream<T> {}
impl StreamResponse for Events {}
impl<K> StreamResponse for OrEvents<K> {}

/// The media type of a byte stream.
pub trait MediaType {
    /// Value of `Content-Type`.
    const NAME: &'static str;
}

/// Any bytes.
pub struct OctetStream;
/// A tar archive.
pub struct Tar;
/// Text.
pub struct PlainText;

impl MediaType for OctetStream {
    const NAME: &'static str = "application/octet-stream";
}

impl MediaType for Tar {
    const NAME: &'static str = "application/x-tar";
}

impl MediaType for PlainText {
    const NAME: &'static str = "text/plain; charset=utf-8";
}

/// The protocol of an upgraded connection.
pub trait Protocol {
    /// Name in the `Upgrade` header.
    const NAME: &'static str;
}

/// See [`crate::grant`].
pub struct GrantProtocol;
/// The bytes of a TCP connection to a port of the guest.
pub struct TunnelProtocol;
/// RFC 6455.
pub struct WebSocketProtocol;

impl Protocol for GrantProtocol {
    const NAME: &'static str = grant::UPGRADE;
}

impl Protocol for TunnelProtocol {
    const NAME: &'static str = grant::TUNNEL_UPGRADE;
}

impl Protocol for WebSocketProtocol {
    const NAME: &'static str = "websocket";
}

/// A path parameter, escaped so that it stays one segment of the path.
pub(super) struct Segment<'a, T>(pub(super) &'a T);

impl<T: Display> Display for Segment<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.to_string().bytes() {
            match byte {
                // What RFC 3986 allows in a segment. Dots need no escape: agents do not normalize paths.
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => f.write_char(byte.into())?,
                b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b','
                | b';' | b'=' | b':' | b'@' => f.write_char(byte.into())?,
                other => write!(f, "%{other:02X}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_parameter_is_escaped_to_one_segment() {
        for (value, expect) in [
            ("base+2x2048", "base+2x2048"),
            ("a/b", "a%2Fb"),
            ("a?b#c d%", "a%3Fb%23c%20d%25"),
            ("ü", "%C3%BC"),
        ] {
            assert_eq!(Segment(&value).to_string(), expect);
        }
    }
}
