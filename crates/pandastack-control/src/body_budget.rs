//! A budget for bytes of request bodies that are held in memory until the rest of the body arrives.
//!
//! Some bodies must be complete before anything in them can be checked: a signature over the body, a
//! statement, JSON. Clients that stop in the middle of such bodies would hold memory without a key. Every
//! byte of a body counts from its arrival until its handler drops it or has read the whole body, against the
//! server's budget and that of the client's address. Bodies that are passed on as they arrive hold next to
//! nothing.
//!
//! Must hold: an address that has used up its budget is refused without waiting and does not affect others;
//! the first [`BODY_BYTES_FREE`] of a request count for the server alone, so that small requests of a busy
//! address pass.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use pandastack_rest::ApiError;
use pandastack_types::limits::{BODY_BYTES_FREE, BODY_BYTES_HELD_MAX, BODY_BYTES_HELD_PER_ADDRESS_MAX};
use pandastack_types::{Error, ErrorCode};

use crate::auth::address_of;
use crate::tapped_body::TappedBody;

/// Budget for bytes of unfinished request bodies.
#[derive(Debug, Default)]
pub(crate) struct BodyBudget(Mutex<HeldBytes>);

#[derive(Debug, Default)]
struct HeldBytes {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The exhausted budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum OverBudget {
    #[error("the request body budget of this address is exhausted")]
    Address,
    #[error("the request body budget of the server is exhausted")]
    Server,
}

impl OverBudget {
    fn response(self) -> Response {
        let error = match self {
            OverBudget::Address => Error::new(
                ErrorCode::RateLimited,
                format!(
                    "too many unfinished request bodies from this address: more than {} MiB in total; \
                     wait for some to finish",
                    BODY_BYTES_HELD_PER_ADDRESS_MAX >> 20
                ),
            ),
            OverBudget::Server => Error::new(
                ErrorCode::Unavailable,
                "the server holds too many unfinished request bodies; try again shortly",
            ),
        };
        ApiError::from(error).into_response()
    }
}

impl BodyBudget {
    fn lock(&self) -> MutexGuard<'_, HeldBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves bytes; `counted` of them also count for the address.
    fn take(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        bytes: usize,
        counted: usize,
    ) -> Result<ReservedBytes, OverBudget> {
        let mut held = self.lock();
        if held.total + bytes > BODY_BYTES_HELD_MAX {
            return Err(OverBudget::Server);
        }
        if let Some(address) = address.filter(|_| counted > 0) {
            let own = held.by_address.entry(address).or_default();
            if *own + counted > BODY_BYTES_HELD_PER_ADDRESS_MAX {
                return Err(OverBudget::Address);
            }
            *own += counted;
        }
        held.total += bytes;
        Ok(ReservedBytes { budget: Arc::clone(self), address, bytes, counted })
    }
}

/// Reserved bytes, until dropped.
#[derive(Debug)]
struct ReservedBytes {
    budget: Arc<BodyBudget>,
    address: Option<IpAddr>,
    bytes: usize,
    counted: usize,
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        held.total -= self.bytes;
        if let Some(address) = self.address.filter(|_| self.counted > 0)
            && let Some(own) = held.by_address.get_mut(&address)
        {
            *own -= self.counted;
            if *own == 0 {
                held.by_address.remove(&address);
            }
        }
    }
}

/// Bytes that count in a budget until they are dropped.
struct BudgetedBytes {
    bytes: Bytes,
    _reserved: ReservedBytes,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reserves budget for the frames of one body.
struct Account {
    budget: Arc<BodyBudget>,
    address: Option<IpAddr>,
    /// Remaining bytes that do not count for the address.
    free: usize,
    refused: Arc<OnceLock<OverBudget>>,
}

impl Account {
    /// The body, with every frame taken from the budget.
    fn pay_for(mut self, body: Body) -> Body {
        TappedBody::around(body, move |frame, _| frame.map(|frame| self.take(frame?)))
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, axum::Error> {
        let bytes = match frame.into_data() {
            Ok(bytes) => bytes,
            Err(other) => return Ok(other),
        };
        let counted = bytes.len().saturating_sub(self.free);
        self.free -= bytes.len() - counted;
        match self.budget.take(self.address, bytes.len(), counted) {
            Ok(reserved) => Ok(Frame::data(Bytes::from_owner(BudgetedBytes { bytes, _reserved: reserved }))),
            Err(over) => {
                let _ = self.refused.set(over);
                Err(axum::Error::new(over))
            }
        }
    }
}

/// Layer around everything: bodies are read within the budget.
pub(crate) async fn budgeted(
    State(budget): State<Arc<BodyBudget>>,
    request: Request,
    next: Next,
) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (address, refused) = (address_of(request.extensions()), Arc::new(OnceLock::new()));
    let told = Arc::clone(&refused);
    let account = Account { budget, address, free: BODY_BYTES_FREE, refused };
    let request = request.map(|body| account.pay_for(body));
    let response = next.run(request).await;
    match told.get() {
        // The handler knows only that the body broke off.
        Some(over) if !response.status().is_success() => over.response(),
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_bytes_are_budgeted_per_address_until_dropped() {
        let budget = Arc::new(BodyBudget::default());
        let (one, other) = (Some("10.0.0.1".parse().unwrap()), Some("10.0.0.2".parse().unwrap()));
        let most =
            budget.take(one, BODY_BYTES_HELD_PER_ADDRESS_MAX, BODY_BYTES_HELD_PER_ADDRESS_MAX).unwrap();
        assert_eq!(budget.take(one, 1, 1).unwrap_err(), OverBudget::Address);
        drop(budget.take(one, 1, 0).unwrap());
        drop(budget.take(other, 1, 1).unwrap());
        drop(most);
        assert!(budget.lock().by_address.is_empty(), "an address without bytes is forgotten");
        assert_eq!(budget.lock().total, 0);
        let all = budget.take(None, BODY_BYTES_HELD_MAX, BODY_BYTES_HELD_MAX).unwrap();
        assert_eq!(budget.take(other, 1, 0).unwrap_err(), OverBudget::Server);
        drop(all);
        budget.take(other, 1, 1).unwrap();
    }

    #[tokio::test]
    async fn frames_hold_their_budget_until_dropped() {
        let budget = Arc::new(BodyBudget::default());
        let address = Some("10.0.0.1".parse().unwrap());
        let account = Account { budget: Arc::clone(&budget), address, free: 60, refused: Arc::default() };
        let mut body = account.pay_for(Body::from(vec![7; 100]));
        let frame = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
        {
            let used = budget.lock();
            assert_eq!((used.total, used.by_address.values().sum::<usize>()), (100, 40));
        }
        let bytes = frame.into_data().unwrap();
        let part = bytes.slice(0..1);
        drop(bytes);
        assert_eq!(budget.lock().total, 100, "a part keeps the whole");
        drop(part);
        assert_eq!(budget.lock().total, 0);
    }
}
