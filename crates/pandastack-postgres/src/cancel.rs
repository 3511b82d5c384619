//! Cancel requests. They come on a separate connection, mostly without TLS and a name, so the numbers
//! in them must say everything.
//!
//! A client gets our own numbers in place of its backend's ([`CancelEntry`]). They are random, so
//! that a client cannot cancel another's query, and valid as long as its session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::backend::Databases;
use crate::endpoint::Endpoint;
use crate::startup::encode_cancel;

/// The key with which a client cancels its query.
pub(crate) type Token = (i32, i32);

/// The backend that a token represents.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) process: i32,
    pub(crate) secret: i32,
    /// [`Backend::closing`](crate::Backend::closing) of its session.
    pub(crate) closing: CancellationToken,
}

/// Tokens of every session. As many as there are connections, which are limited.
#[derive(Debug, Default)]
pub(crate) struct CancelTable(Mutex<HashMap<Token, Target>>);

/// A token; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct CancelEntry {
    table: Arc<CancelTable>,
    pub(crate) token: Token,
}

impl CancelTable {
    /// A token for a backend's own numbers. `None` if the host has no random numbers.
    pub(crate) fn issue(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        process: i32,
        secret: i32,
        closing: &CancellationToken,
    ) -> Option<CancelEntry> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).ok()?;
        let token = u64::from_be_bytes(random);
        let token = ((token >> 32) as u32, token as u32);
        let token = (token.0.cast_signed(), token.1.cast_signed());
        let target = Target { endpoint: endpoint.clone(), process, secret, closing: closing.clone() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(token, target);
        Some(CancelEntry { table: Arc::clone(self), token })
    }

    fn find(&self, token: Token) -> Option<Target> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&token).cloned()
    }

    /// Passes a request on. Clients get no answer, as with PostgreSQL itself.
    pub(crate) async fn cancel(&self, token: Token, databases: &dyn Databases) {
        let Some(target) = self.find(token) else { return };
        send(&target, databases).await;
    }
}

/// Requests a server to cancel the query of one of its backends. Skips a machine that stops or has
/// stopped: connecting would wake it, and the session is cut anyway.
pub(crate) async fn send(target: &Target, databases: &dyn Databases) {
    let connected = tokio::select! {
        biased;
        () = target.closing.cancelled() => return,
        connected = databases.connect(&target.endpoint) => connected,
    };
    let mut backend = match connected {
        Ok(backend) => backend,
        Err(error) => return tracing::debug!(%error, "cannot forward a cancel request"),
    };
    let asked = async {
        backend.stream.write_all(&encode_cancel(target.process, target.secret)).await?;
        backend.stream.flush().await?;
        // The server closes when it has done it: only then may the client continue.
        backend.stream.read(&mut [0]).await
    };
    let asked = tokio::select! {
        asked = asked => asked,
        () = target.closing.cancelled() => return,
    };
    if let Err(error) = asked {
        tracing::debug!(%error, "a cancel request was interrupted");
    }
}

impl Drop for CancelEntry {
    fn drop(&mut self) {
        self.table.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_token_is_valid_until_its_session_ends() {
        let table = Arc::new(CancelTable::default());
        let endpoint = Endpoint::from_label("a1").unwrap();
        let entry = table.issue(&endpoint, 42, 7, &CancellationToken::new()).unwrap();
        let token = entry.token;
        let found = table.find(token).unwrap();
        assert_eq!((found.endpoint, found.process, found.secret), (endpoint, 42, 7));
        drop(entry);
        assert!(table.find(token).is_none());
    }
}
