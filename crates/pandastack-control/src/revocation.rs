//! Closes a caller's connections when its key is revoked or expires, or its workspace is suspended or
//! deleted.
//!
//! Authentication happens once, on the head of a request; an answer may last for days. So every caller gets
//! the [`CancellationToken`] of its key. [`guard`] stops its request and its answer with it; upgraded
//! connections watch it themselves, by `Caller::revoked`.
//!
//! - A key that is revoked here, or a workspace that is closed here, ends at once.
//! - Everything else (expiry, other replicas) is found by
//!   [`Keys::end_revoked`](crate::auth::Keys::end_revoked), which looks up every few seconds the keys that
//!   have something open, and no others.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use pandastack_types::{Error, ErrorCode, Result, WorkspaceId};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Interval at which keys with open requests or streams are looked up.
pub(crate) const RECHECK_EVERY: Duration = Duration::from_secs(2);
/// Time for which a request may continue after its key was revoked, so that a request that revokes
/// its own key is answered.
const GRACE: Duration = Duration::from_secs(1);
/// Answers up to here are sent in one go and not watched.
const SMALL_ANSWER_BYTES: u64 = 64 * 1024;

/// The owner of an open connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) workspace: WorkspaceId,
    /// The public part of a key, or its substitute.
    pub(crate) prefix: String,
    /// The id of a console session, which may end before its key.
    pub(crate) session: Option<String>,
}

/// Tokens of the callers that have something open.
#[derive(Default)]
pub(crate) struct Revocations(Mutex<HashMap<Holder, Weak<CancellationToken>>>);

impl Revocations {
    fn open(&self) -> MutexGuard<'_, HashMap<Holder, Weak<CancellationToken>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token of a caller, the same one for all that it has open.
    pub(crate) fn token(&self, holder: Holder) -> Arc<CancellationToken> {
        let mut open = self.open();
        if let Some(token) = open.get(&holder).and_then(Weak::upgrade) {
            return token;
        }
        let token = Arc::default();
        open.insert(holder, Arc::downgrade(&token));
        token
    }

    /// Ends everything of the callers that are meant.
    pub(crate) fn revoke(&self, is_meant: impl Fn(&Holder) -> bool) {
        self.open().retain(|holder, token| {
            let meant = is_meant(holder);
            if let Some(token) = token.upgrade().filter(|_| meant) {
                token.cancel();
            }
            !meant
        });
    }

    /// Keys with open requests or streams.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let mut open = self.open();
        open.retain(|_, token| token.strong_count() > 0);
        open.keys().cloned().collect()
    }
}

/// Answers a request unless its key is revoked first; a later revocation ends the response. A
/// dropped request ends as if its client had disconnected.
pub(crate) async fn guard(
    token: Arc<CancellationToken>,
    answering: impl Future<Output = Response>,
) -> Result<Response> {
    let revoked = async {
        token.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    let response = tokio::select! {
        biased;
        response = answering => response,
        () = revoked => {
            let message = "the API key was revoked or expired, or its workspace was closed; use another key";
            return Err(Error::new(ErrorCode::Unauthorized, message));
        }
    };
    let is_small = response.body().size_hint().upper().is_some_and(|bytes| bytes <= SMALL_ANSWER_BYTES);
    if is_small {
        return Ok(response);
    }
    let revoked = Box::pin(CancellationToken::clone(&token).cancelled_owned());
    Ok(response.map(|body| Body::new(GuardedBody { body, revoked, _open: token })))
}

/// A body that breaks off when its reader's key is revoked.
struct GuardedBody {
    body: Body,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Held, so that the key is looked up while this is open.
    _open: Arc<CancellationToken>,
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new("the API key was revoked"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_token_is_shared_and_revoked_once() {
        let revocations = Revocations::default();
        let holder = |prefix: &str| Holder {
            workspace: WorkspaceId::default_workspace(),
            prefix: prefix.to_owned(),
            session: None,
        };
        let (first, again) = (revocations.token(holder("pds_1")), revocations.token(holder("pds_1")));
        let other = revocations.token(holder("pds_2"));
        drop(revocations.token(holder("pds_3")));
        assert_eq!(revocations.holders().len(), 2, "only what is open is looked up");
        revocations.revoke(|holder| holder.prefix == "pds_1");
        assert!(first.is_cancelled() && again.is_cancelled() && !other.is_cancelled());
        assert!(!revocations.token(holder("pds_1")).is_cancelled(), "whoever comes next is checked anew");
        assert_eq!(revocations.holders(), [holder("pds_2")]);
    }
}
