//! Connections to an agent, over a unix socket, TCP, or mutual TLS.

use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use pandastack_fleet::HostDialer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Longest time to connect to an agent.
const CONNECT_WAIT: Duration = Duration::from_secs(3);

/// The address of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(String),
    Tls(String),
}

impl Address {
    pub(crate) fn parse(address: &str) -> Option<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            return path.starts_with('/').then(|| Self::Unix(path.into()));
        }
        let (authority, kind) = match address.strip_prefix("https://") {
            Some(authority) => (authority, Self::Tls as fn(String) -> Self),
            None => (address.strip_prefix("http://")?, Self::Tcp as fn(String) -> Self),
        };
        let authority = authority.trim_end_matches('/');
        let uri: Uri = format!("http://{authority}").parse().ok()?;
        uri.port_u16()?;
        Some(kind(authority.to_owned()))
    }
}

/// Connects to one agent.
#[derive(Clone)]
pub(crate) enum Connector {
    Unix(PathBuf),
    Tcp(String),
    Tls(String, HostDialer),
}

impl Connector {
    async fn connect(self) -> std::io::Result<AgentStream> {
        let stream: Box<dyn Stream> = match self {
            Connector::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Connector::Tcp(authority) => Box::new(dial(authority).await?),
            Connector::Tls(authority, host) => Box::new(host.shake_hands(dial(authority).await?).await?),
        };
        Ok(AgentStream(TokioIo::new(stream)))
    }
}

async fn dial(authority: String) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl tower::Service<Uri> for Connector {
    type Response = AgentStream;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, std::io::Result<AgentStream>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            match tokio::time::timeout(CONNECT_WAIT, connector.connect()).await {
                Ok(connected) => connected,
                Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
            }
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection of either kind.
pub(crate) struct AgentStream(TokioIo<Box<dyn Stream>>);

impl Connection for AgentStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for AgentStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for AgentStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, expect: Option<Address>) {
        assert_eq!(Address::parse(address), expect, "{address:?}");
    }

    #[test]
    fn addresses_are_unix_paths_or_host_and_port() {
        check("unix:/run/agent.sock", Some(Address::Unix("/run/agent.sock".into())));
        check("unix:agent.sock", None);
        check("http://10.0.0.7:7070", Some(Address::Tcp("10.0.0.7:7070".into())));
        check("http://10.0.0.7:7070/", Some(Address::Tcp("10.0.0.7:7070".into())));
        check("https://10.0.0.7:7070", Some(Address::Tls("10.0.0.7:7070".into())));
        check("https://10.0.0.7", None);
        check("http://10.0.0.7", None);
        check("10.0.0.7:7070", None);
        check("", None);
    }
}
