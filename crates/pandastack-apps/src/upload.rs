//! Starts a deployment from the repository, an uploaded archive or a sandbox.
//!
//! An archive goes straight into the machine that will build it; the server never has it, on disk
//! or in memory. The deployment exists once the archive has arrived, so a client that disconnects
//! leaves only a machine, which is then deleted.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use http::{StatusCode, header};
use http_body_util::Limited;
use pandastack_rest::extract::{is_set, parse_json, read_body};
use pandastack_rest::{ApiResult, Caller, Lookup, Query};
use pandastack_sandboxes::validate;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord, Source};
use pandastack_store::clock::now;
use pandastack_types::api::{DeployApp, Deployment};
use pandastack_types::limits::SOURCE_BYTES_MAX;
use pandastack_types::{AppId, Error, ErrorBody, ErrorCode, Result, SandboxId};
use serde::Deserialize;

use crate::build::build_machine;
use crate::machine::Machine;
use crate::path::AppPath;
use crate::queue::queue;
use crate::source::ARCHIVE;
use crate::state::Apps;
use crate::{check, prune};

/// Kinds of content that are a source, not a request.
const ARCHIVES: [&str; 6] = [
    "application/x-tar",
    "application/tar",
    "application/gzip",
    "application/x-gzip",
    "application/zstd",
    "application/octet-stream",
];

/// Query parameters of a deploy.
#[derive(Deserialize)]
pub struct Args {
    clear_cache: Option<String>,
}

/// Deploy an app from its repository's branch, a `git_ref`, a directory of a sandbox, or an archive sent as
/// the body.
#[utoipa::path(post, path = "/v1/apps/{id}/deploys", tag = "apps",
    params(("id" = String, Path),
        ("clear_cache" = Option<String>, Query, description = "Build without the cache, for a deployment from an archive")),
    request_body(content((DeployApp = "application/json"), (Vec<u8> = "application/x-tar"))),
    responses((status = 202, body = Deployment), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 413, body = ErrorBody)))]
pub async fn deploy(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    lookup: Lookup,
    path: AppPath,
    Query(args): Query<Args>,
    request: Request,
) -> ApiResult<(StatusCode, Json<Deployment>)> {
    let record = path.find(&apps, &caller).await?;
    let address = apps.address(request.headers(), &record.name);
    let clear_cache = is_set(args.clear_cache.as_deref());
    let kind =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if ARCHIVES.contains(&kind.split(';').next().unwrap_or_default().trim()) {
        let body = limited(request)?;
        let wanted = ArchiveDeployment { trigger: "upload", address, clear_cache };
        return Ok(from_archive(&apps, record, body, wanted).await?);
    }
    let mut wanted: DeployApp = parse_json(&read_body(request.into_body()).await?)?;
    wanted.clear_cache |= clear_cache;
    match &wanted.from_sandbox {
        Some(sandbox) => {
            let path = wanted.path.as_deref().unwrap_or("/root");
            validate::path("path", path)?;
            let sandbox = lookup.id(sandbox.as_str()).await?;
            let archive = pack(&apps, &caller, &sandbox, path).await?;
            let wanted = ArchiveDeployment { trigger: "sandbox", address, clear_cache: wanted.clear_cache };
            Ok(from_archive(&apps, record, archive, wanted).await?)
        }
        None => Ok(from_git(&apps, &record, wanted, address).await?),
    }
}

async fn from_git(
    apps: &Apps,
    app: &AppRecord,
    wanted: DeployApp,
    address: String,
) -> Result<(StatusCode, Json<Deployment>)> {
    if app.spec.git_url.is_none() {
        return Err(Error::bad_request(format!(
            "app `{}` has no git_url; set it, or upload the source: `pandastack app deploy {} --dir .`",
            app.name, app.name
        )));
    }
    let reference = wanted.git_ref.filter(|text| !text.is_empty());
    reference.as_deref().map_or(Ok(()), check::git_ref)?;
    let mut new = DeploymentRecord::queued(app, "api", now());
    // A preview is of its pull request's newest commit.
    new.spec.git_ref = reference.or_else(|| app.spec.pull.as_ref().map(|pull| pull.commit.clone()));
    new.spec.address = Some(address);
    new.spec.clear_cache = wanted.clear_cache;
    queue(apps, new).await
}

fn limited(request: Request) -> Result<Body> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > SOURCE_BYTES_MAX) {
        let message = format!("a source must be at most {SOURCE_BYTES_MAX} bytes; leave out build output");
        return Err(Error::new(ErrorCode::BodyTooLarge, message));
    }
    let limit = usize::try_from(SOURCE_BYTES_MAX).unwrap_or(usize::MAX);
    Ok(Body::new(Limited::new(request.into_body(), limit)))
}

/// A directory of a sandbox as an archive that is made while it is read.
async fn pack(apps: &Apps, caller: &Caller, sandbox: &SandboxId, path: &str) -> Result<Body> {
    let archive = apps.machines.sandbox(&caller.workspace, sandbox).pack(path).await?;
    let limit = usize::try_from(SOURCE_BYTES_MAX).unwrap_or(usize::MAX);
    Ok(Body::new(Limited::new(archive, limit)))
}

/// A deployment whose source is an archive.
struct ArchiveDeployment {
    trigger: &'static str,
    address: String,
    clear_cache: bool,
}

async fn from_archive(
    apps: &Arc<Apps>,
    app: AppRecord,
    archive: Body,
    wanted: ArchiveDeployment,
) -> Result<(StatusCode, Json<Deployment>)> {
    let unclaimed = UnclaimedMachine::make(apps, &app, wanted.clear_cache).await?;
    unclaimed.machine.write(ARCHIVE, archive).await?;
    let mut new = DeploymentRecord::queued(&app, wanted.trigger, now());
    new.spec.source = Source::Archive;
    new.spec.build_machine = Some(unclaimed.machine.id().clone());
    new.spec.build_shape = Some(app.spec.shape());
    new.spec.address = Some(wanted.address);
    new.spec.clear_cache = wanted.clear_cache;
    // From here on a client that goes away changes nothing: the deployment is queued and has the machine, or neither.
    apps.background
        .owned(async move {
            let queued = queue(&unclaimed.apps, new).await?;
            unclaimed.claim();
            Ok(queued)
        })
        .await
}

/// A machine that is given a source. Deleted when dropped, unless a deployment claims it.
struct UnclaimedMachine {
    apps: Arc<Apps>,
    machine: Machine,
    is_claimed: bool,
    _uploading: Uploading,
}

impl UnclaimedMachine {
    async fn make(apps: &Arc<Apps>, app: &AppRecord, clear_cache: bool) -> Result<Self> {
        let (apps, app, owner) = (Arc::clone(apps), app.clone(), apps);
        // Runs as an owned task: if the client disconnects first, the finished machine is dropped
        // with the task's result, and so deleted.
        let made = async move {
            let uploading = Uploading::begin(&apps, &app.id);
            let cache = app.spec.usable_cache().filter(|_| !clear_cache);
            let machine = tokio::select! {
                made = build_machine(&apps, &app, cache, None) => made?,
                () = apps.background.shutdown.cancelled() => {
                    let message = "the server is restarting; deploy again in a moment";
                    return Err(Error::new(ErrorCode::Unavailable, message));
                }
            };
            Ok(Self { apps, machine, is_claimed: false, _uploading: uploading })
        };
        owner.background.owned(made).await
    }

    fn claim(mut self) {
        self.is_claimed = true;
    }
}

impl Drop for UnclaimedMachine {
    fn drop(&mut self) {
        if !self.is_claimed {
            prune::machine_in_background(&self.apps, self.machine.id().clone());
        }
    }
}

/// Keeps machines that are given a source from being pruned.
struct Uploading {
    apps: Arc<Apps>,
    app: AppId,
}

impl Uploading {
    fn begin(apps: &Arc<Apps>, app: &AppId) -> Self {
        apps.activity.begin_upload(app);
        Self { apps: Arc::clone(apps), app: app.clone() }
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        self.apps.activity.end_upload(&self.app);
    }
}
