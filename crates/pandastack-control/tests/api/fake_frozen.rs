//! Frozen states of the fake agent.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_types::agent_api::{HostFrozen, OutdatedVerdicts};

use crate::fake_agent::FakeAgent;

pub(crate) async fn read(State(agent): State<FakeAgent>) -> Json<HostFrozen> {
    Json(agent.lock().frozen.clone())
}

pub(crate) async fn set_verdicts(
    State(agent): State<FakeAgent>,
    Json(body): Json<OutdatedVerdicts>,
) -> StatusCode {
    let frozen = &mut agent.lock().frozen;
    for (id, verdict) in body.sandboxes {
        frozen.sandboxes.iter_mut().filter(|one| one.id == id).for_each(|one| one.verdict = verdict.clone());
    }
    for (id, verdict) in body.snapshots {
        frozen.snapshots.iter_mut().filter(|one| one.id == id).for_each(|one| one.verdict = verdict.clone());
    }
    StatusCode::NO_CONTENT
}
