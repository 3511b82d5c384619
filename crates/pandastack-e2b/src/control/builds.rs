//! Template builds: created, given their files, started, and followed by polling.

use axum::Json;
use axum::body::Body;
use axum::extract::{RawPathParams, RawQuery};
use http::{HeaderMap, Method, StatusCode, header};
use pandastack_types::BuildId;
use pandastack_types::api::{
    Build, BuildStatus, CreateBuild, SignBuildFiles, SignedUrl, StartBuild, Template,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::build_log;
use super::build_steps::{self, Base, BaseName, StartRequest};
use super::extract::{Authenticated, PathParam};
use super::json::read_json;
use super::query::pairs;
use super::template_list::{find, not_found};
use super::template_name::{DEFAULT_HERE, TemplateRef, tag_here, tag_there, template_id};
use crate::error::{RestError, RestResult};
use crate::limits::PAGE_ITEMS_MAX;
use crate::native::Caller;
use crate::native_paths as paths;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NewBuild {
    name: Option<String>,
    /// The name, as older clients send it.
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
}

impl NewBuild {
    /// The native request. Without tags, the version is the default one; with tags, only they mean it.
    fn native(self) -> RestResult<CreateBuild> {
        let name = self.name.or(self.alias).unwrap_or_default();
        if name.is_empty() {
            return Err(RestError::bad_request("`name` is missing; name the template"));
        }
        let target = TemplateRef::of(&name);
        let given = self.tags.unwrap_or_default();
        let mut tags: Vec<String> = given.iter().map(|tag| tag_here(tag).to_owned()).collect();
        tags.extend(target.tag);
        let keep_latest = !tags.is_empty() && !tags.iter().any(|tag| tag == DEFAULT_HERE);
        tags.retain(|tag| tag != DEFAULT_HERE);
        let (cpu, memory_mb) = (self.cpu_count, self.memory_mb);
        Ok(CreateBuild { name: target.name, tags, keep_latest, cpu, memory_mb, ..CreateBuild::default() })
    }
}

/// Begin a build. It waits for files and its start.
pub(super) async fn create(
    Authenticated(caller): Authenticated,
    body: Body,
) -> RestResult<(StatusCode, Json<Value>)> {
    let request = read_json::<NewBuild>(body).await?.native()?;
    let build: Build = caller.json(Method::POST, paths::TEMPLATE_BUILDS, Some(&request)).await?;
    let default = (!request.keep_latest).then(|| tag_there(DEFAULT_HERE));
    let tags: Vec<&str> = default.into_iter().chain(request.tags.iter().map(String::as_str)).collect();
    let made = json!({
        "templateID": template_id(&build.name, &build.id),
        "buildID": build.id,
        "public": false,
        "names": [build.name],
        "tags": tags,
        "aliases": [build.name],
    });
    Ok((StatusCode::ACCEPTED, Json(made)))
}

/// The upload URL for the files of a copy step. Files are not kept between builds.
pub(super) async fn files(
    Authenticated(caller): Authenticated,
    PathParam(id): PathParam,
    headers: HeaderMap,
) -> RestResult<(StatusCode, Json<Value>)> {
    let build = TemplateRef::of(&id).build.ok_or_else(|| {
        RestError::bad_request(
            "files belong to a build; use the `templateID` of the response that created the build",
        )
    })?;
    let path = paths::sign_build_files(&build);
    let signed: SignedUrl = caller.json(Method::POST, &path, Some(&SignBuildFiles::default())).await?;
    Ok((StatusCode::CREATED, Json(json!({ "present": false, "url": origin(&headers) + &signed.target }))))
}

/// The address of this server, as the client reached it.
fn origin(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{}", text(header::HOST.as_str()).unwrap_or("localhost"))
}

/// The build in a path, which must belong to the template in it.
async fn build_of(caller: &Caller, params: &RawPathParams) -> RestResult<(String, Build)> {
    let mut values = params.iter().map(|(_, value)| value);
    let (template, build) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
    let not_found = || {
        let shown: String = build.chars().take(80).collect();
        RestError::new(StatusCode::NOT_FOUND, format!("build `{shown}` not found"))
    };
    let id: BuildId = build.parse().map_err(|_| not_found())?;
    let found: Build = caller.get(&paths::template_build(&id)).await?;
    match found.name == TemplateRef::of(template).name {
        true => Ok((template.to_owned(), found)),
        false => Err(not_found()),
    }
}

/// Start a build. One that cannot be started is cancelled, so that its files do not wait.
pub(super) async fn start(
    Authenticated(caller): Authenticated,
    params: RawPathParams,
    body: Body,
) -> RestResult<StatusCode> {
    let wanted: StartRequest = read_json(body).await?;
    let (_, build) = build_of(&caller, &params).await?;
    let started = match translate(&caller, wanted).await {
        Ok(start) => {
            let path = paths::start_build(&build.id);
            caller.call(Method::POST, &path, Some(&start)).await.map_err(RestError::from)
        }
        Err(refused) => Err(refused),
    };
    if let Err(refused) = started {
        // A build that was already started refuses too, and continues. After other failures the client may
        // start it again.
        let passing = [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&refused.status);
        let is_final =
            refused.status.is_client_error() && !passing || refused.status == StatusCode::NOT_IMPLEMENTED;
        if is_final
            && let Err(error) =
                caller.call(Method::POST, &paths::cancel_build(&build.id), Some(&json!({}))).await
        {
            tracing::warn!(build = %build.id, %error, "cannot cancel a build that was not started");
        }
        return Err(refused);
    }
    Ok(StatusCode::ACCEPTED)
}

async fn translate(caller: &Caller, wanted: StartRequest) -> RestResult<StartBuild> {
    let from = match wanted.base_name()? {
        BaseName::Image(image) => return build_steps::translate(wanted, &Base::Image(image)),
        BaseName::Template(name) => TemplateRef::of(&name),
    };
    let template = find(caller, &from.name).await?.ok_or_else(|| not_found(&from.name))?;
    if template.is_global {
        return build_steps::translate(wanted, &Base::Platform(from.native()));
    }
    let tagged: Template = caller.get(&paths::template(&from.native())).await?;
    let version = tagged.version.ok_or_else(|| not_found(&from.native()))?;
    build_steps::translate(wanted, &Base::Workspace(from.native(), version.config))
}

/// The state of a build in the words of these clients.
pub(super) fn status_of(build: &Build) -> &'static str {
    match build.status {
        BuildStatus::Queued => "waiting",
        BuildStatus::Running => "building",
        BuildStatus::Done => "ready",
        BuildStatus::Failed => "error",
    }
}

/// The state of a build, and lines of its log.
pub(super) async fn status(
    Authenticated(caller): Authenticated,
    params: RawPathParams,
    RawQuery(query): RawQuery,
) -> RestResult<Json<Value>> {
    let (mut offset, mut limit) = (0, PAGE_ITEMS_MAX);
    for (key, value) in pairs(query.as_deref().unwrap_or_default()) {
        let wrong = |_| RestError::bad_request(format!("`{key}` must be a number"));
        match key.as_str() {
            "logsOffset" => offset = value.parse::<u64>().map_err(wrong)?,
            "limit" => limit = value.parse::<usize>().map_err(wrong)?.min(PAGE_ITEMS_MAX),
            _ => {}
        }
    }
    let (template, build) = build_of(&caller, &params).await?;
    let entries = build_log::read(&caller, &build, offset, limit).await?;
    let mut shown = json!({
        "templateID": template,
        "buildID": build.id,
        "status": status_of(&build),
        "logs": [],
        "logEntries": entries,
    });
    if build.status == BuildStatus::Failed {
        shown["reason"] = build_log::reason(&build);
    }
    Ok(Json(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn native(json: Value) -> (String, Vec<String>, bool) {
        let request = serde_json::from_value::<NewBuild>(json).unwrap().native().unwrap();
        (request.name, request.tags, request.keep_latest)
    }

    #[test]
    fn only_builds_with_the_default_tag_move_latest() {
        let case = |name: &str, tags: &[&str], keep_latest| {
            (name.to_owned(), tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>(), keep_latest)
        };
        assert_eq!(native(json!({ "name": "mine" })), case("mine", &[], false));
        assert_eq!(native(json!({ "alias": "mine", "tags": null })), case("mine", &[], false));
        assert_eq!(native(json!({ "name": "team/mine:v1" })), case("mine", &["v1"], true));
        assert_eq!(
            native(json!({ "name": "mine", "tags": ["v1", "v2"] })),
            case("mine", &["v1", "v2"], true)
        );
        assert_eq!(
            native(json!({ "name": "mine", "tags": ["v1", "default"] })),
            case("mine", &["v1"], false)
        );
        assert!(serde_json::from_value::<NewBuild>(json!({})).unwrap().native().is_err());
    }
}
