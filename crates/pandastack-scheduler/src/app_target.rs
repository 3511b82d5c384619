//! Requests of schedules to apps. They take the same path as those of the edge, so a sleeping
//! app wakes and stays awake until it responds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use pandastack_edge::{AppRoute, GuestStream, Instances, Permit};
use pandastack_store::schedules::{RunRecord, ScheduleRecord};
use pandastack_types::api::{AppTarget, HttpTarget};
use pandastack_types::limits::RUN_OUTPUT_BYTES_MAX;
use pandastack_types::{Error, ErrorCode, Result, WorkspaceId};
use pandastack_webhooks::URL_BYTES_MAX;

use crate::attempt::Attempt;
use crate::http_target::{check_request, headers, judge_response, method, run_headers};
use crate::scheduler::Scheduler;

/// Refuses an app that the workspace does not have, and a request that could never be sent.
pub(crate) async fn check(scheduler: &Scheduler, workspace: &WorkspaceId, target: &AppTarget) -> Result<()> {
    scheduler.services.check_app(workspace, target).await?;
    path(target)?;
    check_request(&as_http(target))
}

/// Sends the request of a run.
pub(crate) async fn attempt(
    scheduler: &Arc<Scheduler>,
    target: &AppTarget,
    schedule: &ScheduleRecord,
    run: &RunRecord,
    limit: Duration,
) -> Result<Attempt> {
    let late = |_| {
        let message = format!("app `{}` did not respond within {} s", target.app_id, limit.as_secs());
        Error::new(ErrorCode::ExecTimeout, message)
    };
    tokio::time::timeout(limit, send(scheduler, target, schedule, run)).await.map_err(late)?
}

async fn send(
    scheduler: &Arc<Scheduler>,
    target: &AppTarget,
    schedule: &ScheduleRecord,
    run: &RunRecord,
) -> Result<Attempt> {
    let app = scheduler.services.find_app(&schedule.workspace, target).await?;
    let request = request(target, &app.address, schedule, run)?;
    let named = scheduler.edge.app_route(&format!("{}.localhost", app.id)).await;
    let instances = match named.map_err(|error| unavailable(format!("{error:?}")))? {
        Some(AppRoute::Serving(instances)) => instances,
        Some(AppRoute::NotServing(why) | AppRoute::Suspended(why)) => return Err(Error::conflict(why)),
        None => return Err(Error::not_found("app", &target.app_id)),
    };
    let (stream, permit) = connect(scheduler, &instances).await?;
    exchange(stream, &permit, request).await
}

/// A connection to the first machine that takes one, woken if it sleeps.
async fn connect(scheduler: &Scheduler, to: &Instances) -> Result<(GuestStream, Permit)> {
    let mut why = "the app has no running instance; deploy it".to_owned();
    for machine in to.sandboxes.iter() {
        match scheduler.edge.connect(machine, to.port).await {
            Ok(connected) => return Ok(connected),
            Err(error) => why = error.sentence(machine, to.port),
        }
    }
    Err(unavailable(why))
}

/// Sends a request and reads its answer. The permit keeps the machine awake; if it stops all the
/// same, the connection is cut.
async fn exchange(stream: GuestStream, permit: &Permit, request: Request<Full<Bytes>>) -> Result<Attempt> {
    let broken = |error: hyper::Error| unavailable(format!("the app's response is incomplete: {error}"));
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(broken)?;
    let answered = async {
        let mut answer = sender.send_request(request).await.map_err(broken)?;
        let (mut body, mut truncated) = (Vec::new(), false);
        while let Some(frame) = answer.body_mut().frame().await {
            let Ok(part) = frame.map_err(broken)?.into_data() else { continue };
            let room = RUN_OUTPUT_BYTES_MAX - body.len();
            body.extend_from_slice(&part[..part.len().min(room)]);
            if part.len() > room {
                truncated = true;
                break;
            }
        }
        Ok::<_, Error>(judge_response(answer.status(), &body, truncated))
    };
    // The connection may end at the moment the response arrives, so only the sender reports a
    // missing response.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<()>().await
    };
    let cut = permit.cut();
    tokio::select! {
        answered = answered => answered,
        () = driven => Err(unavailable("the app closed the connection".to_owned())),
        () = cut.cancelled() => Err(unavailable("the app's machine stopped before responding".to_owned())),
    }
}

fn request(
    target: &AppTarget,
    address: &str,
    schedule: &ScheduleRecord,
    run: &RunRecord,
) -> Result<Request<Full<Bytes>>> {
    let (scheme, host) = address.split_once("://").unwrap_or(("http", address));
    let http = as_http(target);
    let mut request = Request::new(Full::new(Bytes::from(target.body.clone().unwrap_or_default())));
    *request.method_mut() = method(&http)?;
    *request.uri_mut() = path(target)?;
    *request.headers_mut() = headers(&http)?;
    let own = [
        ("host", host.to_owned()),
        ("connection", "close".to_owned()),
        ("x-forwarded-proto", scheme.to_owned()),
    ];
    for (name, value) in own.into_iter().chain(run_headers(schedule, run)) {
        let value = HeaderValue::from_str(&value).map_err(Error::internal)?;
        request.headers_mut().insert(HeaderName::from_static(name), value);
    }
    Ok(request)
}

/// Path of the request in the app; an absolute URL is refused.
fn path(target: &AppTarget) -> Result<Uri> {
    let text = target.path.as_deref().unwrap_or("/");
    let refuse = |why: &str| Error::bad_request(format!("`target.path` {why}"));
    if !text.starts_with('/') || text.len() > URL_BYTES_MAX {
        return Err(refuse(&format!("must begin with / and be at most {URL_BYTES_MAX} bytes")));
    }
    let parsed = text.parse::<http::uri::PathAndQuery>();
    parsed.map(Uri::from).map_err(|_| refuse("is not a valid request path"))
}

/// The request as one to a URL, which has the same rules.
fn as_http(target: &AppTarget) -> HttpTarget {
    HttpTarget {
        url: String::new(),
        method: target.method.clone(),
        headers: target.headers.clone(),
        body: target.body.clone(),
    }
}

fn unavailable(why: String) -> Error {
    Error::new(ErrorCode::GuestUnavailable, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_path_cannot_leave_its_app() {
        let of = |path: Option<&str>| {
            let target = serde_json::json!({"app_id": "shop", "path": path});
            super::path(&serde_json::from_value(target).unwrap())
        };
        assert_eq!(of(None).unwrap(), "/");
        assert_eq!(of(Some("/jobs/clean?days=7")).unwrap(), "/jobs/clean?days=7");
        let long = format!("/{}", "x".repeat(URL_BYTES_MAX));
        for bad in ["", "jobs", "http://elsewhere/", "/a b", "/a\r\nx: y", long.as_str()] {
            assert!(of(Some(bad)).is_err(), "{bad}");
        }
    }
}
