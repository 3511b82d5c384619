//! What the API does to sandboxes, apart from HTTP: each operation moves a row and its machine together.
//!
//! Must hold: a row exists before its host is asked for the machine, and a machine is gone before its row is. So
//! whatever a host has without a row is garbage and may be forgotten, also after a crash in the middle of anything.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod lifecycle;
pub(crate) mod listening;
pub(crate) mod network;
pub(crate) mod rollback;
pub(crate) mod snapshot;

use std::time::Duration;

use http::Method;
use pandastack_types::agent_api::AgentSandbox;
use pandastack_types::{ErrorCode, SandboxId, SandboxState, WorkspaceId};

use crate::app::{App, now};
use crate::error::{ApiError, ApiResult};
use crate::places::Place;
use crate::store::{Change, Owner, SandboxRecord};
use pandastack_agent_client::{AgentClient, AgentError, Call};

/// How long a host may take to make sandboxes: the hold for a bake, and the making.
pub(crate) const MAKE_WAIT: Duration = Duration::from_secs(90);
/// How long a host may take to stop, wake or remove a sandbox.
pub(crate) const MOVE_WAIT: Duration = Duration::from_secs(60);
/// How long a host may take for a snapshot; published clients wait as long.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(180);
/// How long a look at a sandbox may take.
const LOOK_WAIT: Duration = Duration::from_secs(5);

/// No body.
pub(crate) const NOTHING: Option<&()> = None;

/// A call on a sandbox, with its incarnation.
pub(crate) fn call_on<'a>(record: &SandboxRecord, method: Method, path: &'a str, wait: Duration) -> Call<'a> {
    Call { method, path, incarnation: Some(record.incarnation), wait }
}

/// Removes a machine; one that is gone already is removed. Answers its last totals where the host tells them.
async fn remove_machine(
    client: &AgentClient,
    record: &SandboxRecord,
) -> Result<Option<AgentSandbox>, AgentError> {
    let path = format!("/sandboxes/{}", record.id);
    let call = call_on(record, Method::DELETE, &path, MOVE_WAIT);
    match client.call::<serde_json::Value>(call, NOTHING).await {
        Ok(last) => Ok(serde_json::from_value(last).ok()),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The sandbox as its host sees it now.
pub(crate) async fn look(client: &AgentClient, record: &SandboxRecord) -> Result<AgentSandbox, AgentError> {
    let path = format!("/sandboxes/{}", record.id);
    client.call(call_on(record, Method::GET, &path, LOOK_WAIT), NOTHING).await
}

/// Refuses calls on a sandbox that has no machine.
pub(crate) fn check_live(record: &SandboxRecord) -> ApiResult<()> {
    let id = &record.id;
    match record.state {
        SandboxState::Running | SandboxState::Paused | SandboxState::Hibernated => Ok(()),
        SandboxState::Creating => {
            Err(ApiError::conflict(format!("sandbox `{id}` is still being created; try again in a moment")))
        }
        SandboxState::Stopping | SandboxState::Deleted => {
            Err(ApiError::conflict(format!("sandbox `{id}` is being deleted")))
        }
        SandboxState::Failed => {
            let why = record.spec.failure.as_deref().unwrap_or("its machine was lost");
            let message = format!("sandbox `{id}` failed: {why}; delete it and make another");
            Err(ApiError::new(ErrorCode::SandboxFailed, message))
        }
    }
}

/// Refuses to let anybody into a machine with a database's data: whoever is root there is superuser of the server.
fn check_unsealed(record: &SandboxRecord) -> ApiResult<()> {
    match &record.owner {
        None | Some(Owner::App(_) | Owner::Function(_)) => Ok(()),
        Some(
            Owner::Database(database)
            | Owner::NextDatabase(database)
            | Owner::ReplacedDatabase(database)
            | Owner::Drill(database),
        ) => Err(ApiError::conflict(format!(
            "sandbox `{}` is the machine of database `{database}`; use the database: `pandastack db get {database}`",
            record.id
        ))),
    }
}

/// Where a live sandbox of the workspace is, and a client of its host. Does not ask the store on every call.
pub(crate) async fn place(
    app: &App,
    workspace: &WorkspaceId,
    id: &SandboxId,
) -> ApiResult<(Place, AgentClient)> {
    let place = match app.places.find(workspace, id) {
        Ok(place) => place,
        Err(reading) => {
            let SandboxRecord { workspace, host, incarnation, state, .. } =
                live_record(app, workspace, id).await?;
            let place = Place { workspace, host, incarnation, asleep: state == SandboxState::Hibernated };
            app.places.remember(reading, id, &place);
            place
        }
    };
    let client = app.hosts.client(&place.host)?;
    Ok((place, client))
}

/// Writes down that a call woke a sandbox, before its client hears of the call's success. The host reports it too, but a
/// client that looks at once could be faster.
pub(crate) async fn note_wake(app: &App, place: &Place, id: &SandboxId, client: &AgentClient) {
    if !place.asleep {
        return;
    }
    let noted = async {
        let record = app.store.sandbox(None, id).await?;
        if record.state == SandboxState::Hibernated {
            let seen = look(client, &record).await?;
            if seen.state != SandboxState::Hibernated {
                lifecycle::settle(app, &record, seen, Change::at(now())).await?;
            }
        }
        Ok::<_, ApiError>(())
    };
    if let Err(error) = noted.await {
        tracing::debug!(sandbox = %id, %error, "its host reports the wake-up");
    }
}

/// A sandbox of the workspace, whatever its state, that users may do something to.
pub(crate) async fn unsealed(app: &App, workspace: &WorkspaceId, id: &SandboxId) -> ApiResult<SandboxRecord> {
    let record = app.store.sandbox(Some(workspace), id).await?;
    check_unsealed(&record)?;
    Ok(record)
}

async fn live_record(app: &App, workspace: &WorkspaceId, id: &SandboxId) -> ApiResult<SandboxRecord> {
    let record = unsealed(app, workspace, id).await?;
    check_live(&record)?;
    Ok(record)
}

/// A live sandbox of the workspace and a client of its host.
pub(crate) async fn live(
    app: &App,
    workspace: &WorkspaceId,
    id: &SandboxId,
) -> ApiResult<(SandboxRecord, AgentClient)> {
    let record = live_record(app, workspace, id).await?;
    let client = app.hosts.client(&record.host)?;
    Ok((record, client))
}
