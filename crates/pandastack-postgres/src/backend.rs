//! The interface to databases: how to reach one.

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;

/// A connection to a server, over any transport.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// Reports whether a session works, so that its machine knows when it is unused. A session that
/// only stays open does not keep a database awake.
pub trait InUse: Send + Sync {
    /// Sets whether a query or a transaction is in progress.
    fn set_busy(&mut self, busy: bool);
}

/// An open way to a server. The machine stays awake while it exists and is busy.
pub struct Backend {
    /// Bytes.
    pub stream: Box<dyn ByteStream>,
    /// Notified when work begins and ends.
    pub in_use: Box<dyn InUse>,
    /// Cancelled when the machine is about to stop: sessions without work in progress should end.
    pub closing: CancellationToken,
    /// Cancelled when it stops now.
    pub cut: CancellationToken,
}

impl Backend {
    /// A connection that is neither counted nor cut: it ends when the stream does.
    pub fn uncounted(stream: Box<dyn ByteStream>) -> Self {
        struct Uncounted;
        impl InUse for Uncounted {
            fn set_busy(&mut self, _busy: bool) {}
        }
        let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
        Self { stream, in_use: Box::new(Uncounted), closing, cut }
    }
}

/// Reason why no connection to a server is possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The database does not exist.
    #[error("database `{0}` not found")]
    Unknown(String),
    /// The client may not use the database; the text is a full sentence.
    #[error("{0}")]
    Refused(String),
    /// The database is not ready; the text is a full sentence.
    #[error("{0}")]
    NotReady(String),
    /// The database could not be reached; the text is a full sentence.
    #[error("{0}")]
    Unavailable(String),
}

/// Finds databases and connects to them.
#[async_trait]
pub trait Databases: Send + Sync + 'static {
    /// Connects to a database. A sleeping one is woken, and waited for.
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError>;

    /// Domain of database host names, besides the names that every installation accepts.
    fn domain(&self) -> Option<&str> {
        None
    }

    /// Explains a server's error to the client, by its SQLSTATE, if the platform knows more than
    /// the server says. Called only for read-only transactions, full disks and cancelled queries.
    async fn explain(&self, _endpoint: &Endpoint, _code: &str) -> Option<String> {
        None
    }
}
