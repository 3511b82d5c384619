//! The request id of the client, carried with every call to an agent, so that one request can be
//! followed through the logs of both.

use std::future::Future;

use http::{HeaderName, HeaderValue};
use pandastack_types::agent_api::REQUEST_ID_HEADER;

/// Carries the id, both ways.
pub const REQUEST_ID: HeaderName = HeaderName::from_static(REQUEST_ID_HEADER);

tokio::task_local! {
    static CURRENT: HeaderValue;
}

/// The id of the request that this task works for.
pub fn current() -> Option<HeaderValue> {
    CURRENT.try_with(HeaderValue::clone).ok()
}

/// Works for a request.
pub async fn scope<F: Future>(id: HeaderValue, work: F) -> F::Output {
    CURRENT.scope(id, work).await
}

/// Takes the present request's id along into another task.
pub fn carry<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let id = current();
    async move {
        match id {
            Some(id) => scope(id, work).await,
            None => work.await,
        }
    }
}
