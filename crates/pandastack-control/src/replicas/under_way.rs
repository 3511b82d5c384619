//! What all replicas are working on, asked for when something looks left behind.
//!
//! A replica that makes, copies or saves a sandbox marks it in its own memory ([`crate::app::UnderWay`]). The leader, who
//! compares reports with the record, asks the others for their marks before it takes anything for a leftover: a question now
//! and then instead of two writes for each create.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Request;
use axum::extract::State;
use jiff::Timestamp;
use pandastack_rest::ApiResult;
use pandastack_types::link::{Direction, LINK_HEADER};
use pandastack_types::{Error, HostId, Result};

use super::forward::way_to;
use crate::app::App;
use crate::routes::internal::signer;
use crate::store::replicas::Replica;

/// Path of the question.
pub(crate) const PATH: &str = "/internal/v1/under-way";
/// How long a replica may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Answers another replica.
pub(crate) async fn show_marks(
    State(app): State<Arc<App>>,
    request: Request,
) -> ApiResult<Json<HashSet<String>>> {
    signer(&app, &request.into_parts().0)?;
    Ok(Json(app.under_way.all()))
}

/// The marks of every replica that lives. Fails when one does not answer: then nothing may be taken for a leftover.
pub(crate) async fn marks_of_all(app: &App) -> Result<HashSet<String>> {
    let mut marks = app.under_way.all();
    for replica in app.store.replicas().await? {
        if replica.instance != app.replicas.instance {
            marks.extend(ask(app, &replica).await?);
        }
    }
    Ok(marks)
}

async fn ask(app: &App, replica: &Replica) -> Result<HashSet<String>> {
    let (http, base) = way_to(&replica.address)?;
    let me: HostId = app.replicas.instance.parse().map_err(Error::internal)?;
    let signature = app.link.sign(Direction::AgentToControl, &me, "GET", PATH, Timestamp::now().as_second());
    let asked = http.get(format!("{base}{PATH}")).header(LINK_HEADER, signature).timeout(ANSWER_MAX);
    let answered = asked.send().await.and_then(reqwest::Response::error_for_status);
    answered.map_err(Error::internal)?.json().await.map_err(Error::internal)
}
