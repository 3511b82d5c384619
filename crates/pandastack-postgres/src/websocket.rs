//! The protocol over a WebSocket, for clients that can open nothing else.
//!
//! Messages carry plain protocol bytes, split anywhere, without a request for TLS: the socket has
//! it. Clients send their startup, their password and a first query at once, so the password is
//! requested in the clear (inside TLS), and the session is opened with it before anything else is
//! answered. Only the client's own messages have a timeout: while its database wakes, or gets
//! another machine, it is held like any other.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt, TryStreamExt};
use http::{HeaderMap, StatusCode, header};
use pandastack_types::chain;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use crate::backend::Databases;
use crate::endpoint::Endpoint;
use crate::limits::{LOGIN_MESSAGE_BYTES_MAX, SOCKET_MESSAGE_BYTES_MAX, STARTUP_WAIT};
use crate::login::{Credentials, LoginError, Session};
use crate::relay::{SessionOwner, resume};
use crate::server::{disconnected, endpoint_of, refuse, unreachable};
use crate::startup::{Packet, read};
use crate::wire::{Fatal, message, take};

/// `AuthenticationCleartextPassword`.
const ASK_PASSWORD: [u8; 9] = [b'R', 0, 0, 0, 8, 0, 0, 0, 3];
/// `AuthenticationOk`.
const WELCOME: [u8; 9] = [b'R', 0, 0, 0, 8, 0, 0, 0, 0];

#[derive(Deserialize)]
pub(crate) struct Args {
    /// Address to which the client believes it connects, `host:port`.
    address: Option<String>,
}

pub(crate) async fn upgrade(
    State(databases): State<Arc<dyn Databases>>,
    Query(args): Query<Args>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let Ok(upgrade) = upgrade else {
        let message = "this URL accepts WebSockets of database drivers only; connect with a driver";
        let body = serde_json::json!({ "message": message, "error": message, "code": "bad_request" });
        return (StatusCode::BAD_REQUEST, axum::Json(body)).into_response();
    };
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let mut hosts = [host, args.address.as_deref()].into_iter().flatten();
    let domain = databases.domain();
    let host = hosts.rfind(|host| Endpoint::from_host(host, domain).is_some()).map(str::to_owned);
    upgrade.max_message_size(SOCKET_MESSAGE_BYTES_MAX).max_frame_size(SOCKET_MESSAGE_BYTES_MAX).on_upgrade(
        move |socket| async move {
            serve(bytes_of(socket), host.as_deref(), databases.as_ref(), STARTUP_WAIT).await;
        },
    )
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    host: Option<&str>,
    databases: &dyn Databases,
    wait: Duration,
) {
    let late = |_| Fatal::new("08P01", format!("the client did not log in within {wait:?}"));
    let said = tokio::time::timeout(wait, read_startup(&mut stream, host, databases)).await;
    let ClientStartup { endpoint, credentials, mut early } = match said.map_err(late).and_then(|heard| heard)
    {
        Ok(wish) => wish,
        Err(fatal) => return refuse(&mut stream, &fatal).await,
    };
    let opened = tokio::select! {
        opened = Session::open(databases, &endpoint, &credentials) => opened.map_err(refusal),
        () = disconnected(&mut stream, &mut early) => return tracing::debug!("a client disconnected before its session started"),
    };
    let opened = match opened {
        Ok(session) => send_startup_reply(&mut stream, session).await,
        Err(fatal) => Err(fatal),
    };
    match opened {
        Err(fatal) => refuse(&mut stream, &fatal).await,
        Ok(session) => {
            let owner = SessionOwner { endpoint: &endpoint, databases };
            resume(stream, session.backend, owner, early).await;
        }
    }
}

/// The startup of a client.
struct ClientStartup {
    endpoint: Endpoint,
    credentials: Credentials,
    /// Bytes that the client sent after its password.
    early: BytesMut,
}

/// A WebSocket's binary messages as one stream of bytes.
fn bytes_of(socket: WebSocket) -> impl AsyncRead + AsyncWrite + Unpin {
    let (sink, source) = socket.split();
    let source = source.map_err(std::io::Error::other).try_filter_map(|message| async move {
        Ok(match message {
            Message::Binary(bytes) => Some(bytes),
            Message::Text(text) => Some(Bytes::from(text)),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => None,
        })
    });
    let sink = sink
        .sink_map_err(std::io::Error::other)
        .with(|bytes: Bytes| futures::future::ready(Ok::<_, std::io::Error>(Message::Binary(bytes))));
    tokio::io::join(StreamReader::new(Box::pin(source)), SinkWriter::new(CopyToBytes::new(sink)))
}

fn broken(error: std::io::Error) -> Fatal {
    Fatal::new("08006", error.to_string())
}

/// Startup and password.
async fn read_startup(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: Option<&str>,
    databases: &dyn Databases,
) -> Result<ClientStartup, Fatal> {
    let packet = read(stream).await.map_err(|error| Fatal::new("08P01", error.to_string()))?;
    let Packet::Startup(mut startup) = packet else {
        return Err(Fatal::new("08P01", "TLS inside a WebSocket is not supported; use wss:// instead"));
    };
    let endpoint = endpoint_of(&mut startup, host, None, databases.domain())?;
    stream.write_all(&ASK_PASSWORD).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut early = BytesMut::new();
    let body = loop {
        match take(&mut early, LOGIN_MESSAGE_BYTES_MAX.max(SOCKET_MESSAGE_BYTES_MAX)) {
            Ok(Some((b'p', body))) => break body,
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Err(Fatal::new("08P01", "the client did not send a password")),
        }
        if stream.read_buf(&mut early).await.map_err(broken)? == 0 {
            return Err(Fatal::new("08006", "the client disconnected before it sent a password"));
        }
    };
    let password = String::from_utf8_lossy(body.strip_suffix(b"\0").unwrap_or(&body)).into_owned();
    let mut parameters = startup.parameters;
    let user =
        parameters.remove("user").ok_or_else(|| Fatal::new("28000", "the startup packet has no user"))?;
    let database = parameters.remove("database").unwrap_or_else(|| user.clone());
    let credentials = Credentials { user, password, database, parameters };
    Ok(ClientStartup { endpoint, credentials, early })
}

/// Sends the client the messages of an opened session.
async fn send_startup_reply(
    stream: &mut (impl AsyncWrite + Unpin),
    session: Session,
) -> Result<Session, Fatal> {
    let mut greeting = BytesMut::from(&WELCOME[..]);
    for status in &session.greeting {
        greeting.extend_from_slice(&message(b'S', status));
    }
    if let Some((process, secret)) = session.key() {
        let numbers = [process.to_be_bytes(), secret.to_be_bytes()].concat();
        greeting.extend_from_slice(&message(b'K', &numbers));
    }
    greeting.extend_from_slice(&message(b'Z', b"I"));
    stream.write_all(&greeting).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    Ok(session)
}

fn refusal(error: LoginError) -> Fatal {
    match error {
        LoginError::Connect(error) => unreachable(error),
        LoginError::Sql(error) => {
            let hint = error.field('H').map(str::to_owned);
            Fatal { hint, ..Fatal::new(error.code, error.message) }
        }
        other => Fatal::new("08006", chain(&other)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use async_trait::async_trait;
    use tokio::io::duplex;

    use super::*;
    use crate::backend::{Backend, ConnectError};
    use crate::startup::Startup;

    /// Longest time for a client to identify itself.
    const WAIT: Duration = Duration::from_millis(50);

    /// A database that takes longer than `WAIT` to connect, and fails.
    struct Slow;

    #[async_trait]
    impl Databases for Slow {
        async fn connect(&self, _endpoint: &Endpoint) -> Result<Backend, ConnectError> {
            tokio::time::sleep(6 * WAIT).await;
            Err(ConnectError::Unavailable("it is not ready yet".to_owned()))
        }
    }

    /// Text that a client reads after sending these bytes.
    async fn answer(said: &[u8]) -> String {
        let (mut client, server) = duplex(4096);
        let served = tokio::spawn(async move { serve(server, Some("a1.pg.x"), &Slow, WAIT).await });
        client.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        served.await.unwrap();
        String::from_utf8_lossy(&heard).into_owned()
    }

    #[tokio::test]
    async fn a_client_is_notified_of_an_unready_database() {
        let parameters = BTreeMap::from([("user".to_owned(), "app".to_owned())]);
        let startup = Startup { parameters, ..Startup::default() }.encode();
        let heard = answer(&[&startup[..], &message(b'p', b"secret\0")[..]].concat()).await;
        assert!(heard.contains("08006") && heard.contains("it is not ready yet"), "{heard}");
        let heard = answer(&startup).await;
        assert!(heard.contains("08P01") && heard.contains("did not log in"), "{heard}");
    }
}
