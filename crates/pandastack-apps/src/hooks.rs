//! Webhooks for pushes and pull requests: GitHub, GitLab, Gitea (and Forgejo).
//!
//! | | proof | kind | names a delivery |
//! |---|---|---|---|
//! | GitHub | `X-Hub-Signature-256`: HMAC-SHA256 of the raw body | `X-GitHub-Event` | `X-GitHub-Delivery` |
//! | Gitea | `X-Gitea-Signature`: the same, without `sha256=` | `X-Gitea-Event` | `X-Gitea-Delivery` |
//! | GitLab | `X-Gitlab-Token`: the secret itself | `X-Gitlab-Event` | `X-Gitlab-Event-UUID` |
//!
//! Must hold: nothing of a body counts before its proof does, and proofs are compared in constant
//! time; an app without a secret has no webhook; a repeated delivery starts one deployment; a
//! delivery that failed here, or was cut off by a crash, may be repeated: it is recorded after it
//! was processed, and its deployment names it. Work that a delivery starts is finished even if the
//! Git host disconnects. The response waits only for the removal of a preview that is reopened.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use data_encoding::HEXLOWER_PERMISSIVE;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, StatusCode};
use pandastack_fault as fault;
use pandastack_rest::extract::read_body_within;
use pandastack_rest::{ApiResult, Id};
use pandastack_store::apps::record::{AppRecord, DeploymentRecord};
use pandastack_store::clock::now;
use pandastack_types::api::{GitHost, HookAnswer};
use pandastack_types::limits::{HOOK_BODY_BYTES_MAX, HOOK_BODY_SECONDS_MAX};
use pandastack_types::{Error, ErrorBody, ErrorCode, Result};
use serde::Deserialize;
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::change::change;
use crate::delivery::{delivery, header};
use crate::pulls::{self, Pull, SKIP};
use crate::queue::queued;
use crate::state::Apps;
use crate::{check, poller, preview_repos, previews};

/// Longest time for a delivery to arrive.
const HOOK_BODY_WAIT: Duration = Duration::from_secs(HOOK_BODY_SECONDS_MAX);

/// Routes without an API key: the webhook secret authenticates them.
pub fn routes(apps: &Arc<Apps>) -> Router {
    Router::new().route("/v1/hooks/apps/{id}", post(hook)).with_state(Arc::clone(apps))
}

/// The fields of a push event that are used; all Git hosts have them.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Push {
    #[serde(rename = "ref")]
    reference: String,
    before: String,
    after: String,
    deleted: bool,
    /// Only GitHub sends this field.
    forced: Option<bool>,
    head_commit: Option<Commit>,
    commits: Vec<Commit>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Commit {
    id: String,
    message: String,
}

/// Receive a push or pull request event from a Git host. Authenticated by the app's webhook secret instead
/// of an API key.
#[utoipa::path(post, path = "/v1/hooks/apps/{id}", tag = "apps", params(("id" = String, Path)), responses(
    (status = 202, body = HookAnswer), (status = 200, description = "Nothing to deploy", body = HookAnswer),
    (status = 401, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 503, description = "The same delivery is already being processed", body = ErrorBody)), security(()))]
pub async fn hook(
    State(apps): State<Arc<Apps>>,
    Id(id): Id<String>,
    request: Request,
) -> ApiResult<(StatusCode, Json<HookAnswer>)> {
    let (parts, body) = request.into_parts();
    let record = apps.store.app(None, &id).await?;
    let closed =
        || Error::new(ErrorCode::Unauthorized, "this app has no webhook secret; set `webhook_secret` first");
    let secret = record.spec.webhook_secret.clone().filter(|_| !record.spec.deleting).ok_or_else(closed)?;
    let body = read_body_within(body, HOOK_BODY_BYTES_MAX, HOOK_BODY_WAIT).await?;
    if !is_proved(&parts.headers, &secret, &body) {
        let message = "the delivery's signature does not match this app's webhook secret";
        return Err(Error::new(ErrorCode::Unauthorized, message).into());
    }
    // GitHub's first delivery, a ping, tells this as well as any other.
    let record = match host_of(&parts.headers) {
        Some(GitHost::Github) => preview_repos::note(&apps, record, &payload(&parts.headers, &body)).await?,
        _ => record,
    };
    let event = match event_of(&parts.headers, &body, &record)? {
        HookEvent::Ignored(why) => return Ok(ignored(why)),
        event => event,
    };
    let owner = Arc::clone(&apps);
    Ok(apps.background.owned(async move { take_once(&owner, &record, event, &parts.headers).await }).await?)
}

/// Processes a delivery unless it was already processed. A failed delivery can be sent again.
async fn take_once(
    apps: &Arc<Apps>,
    record: &AppRecord,
    event: HookEvent,
    headers: &HeaderMap,
) -> Result<(StatusCode, Json<HookAnswer>)> {
    let Some(delivery) = delivery(headers) else { return note_and_take(apps, record, event, headers).await };
    let Some(_taking) = apps.activity.begin_delivery(&record.id, &delivery) else {
        // Not a success: the attempt in progress may fail, and its host would not send the delivery again.
        let message = "this delivery is already being processed; send it again to see its outcome";
        return Err(Error::new(ErrorCode::Unavailable, message));
    };
    if apps.store.has_delivery(&record.id, &delivery).await? {
        return Ok(ignored("this delivery was already processed".to_owned()));
    }
    fault::point("control.hook.proved").await;
    let taken = note_and_take(apps, record, event, headers).await?;
    fault::point("control.hook.taken").await;
    apps.store.note_delivery(&record.id, &delivery, now()).await?;
    Ok(taken)
}

async fn note_and_take(
    apps: &Arc<Apps>,
    record: &AppRecord,
    event: HookEvent,
    headers: &HeaderMap,
) -> Result<(StatusCode, Json<HookAnswer>)> {
    note_host(apps, record, headers).await?;
    take(apps, record, event, headers).await
}

/// Carries out the event of a delivery.
async fn take(
    apps: &Arc<Apps>,
    record: &AppRecord,
    event: HookEvent,
    headers: &HeaderMap,
) -> Result<(StatusCode, Json<HookAnswer>)> {
    match event {
        HookEvent::Ignored(why) => Ok(ignored(why)),
        HookEvent::Pull(pull) => {
            previews::take(apps, record, pull, headers).await.map(|(status, answer)| (status, Json(answer)))
        }
        HookEvent::Push(push) => {
            check::git_ref(&push.after)?;
            let mut new = DeploymentRecord::queued(record, "push", now());
            new.spec.git_ref = Some(push.after.clone());
            new.spec.git_commit = Some(push.after.clone());
            new.spec.git_before = Some(push.before.clone()).filter(|before| !before.is_empty());
            new.spec.address = Some(apps.address(headers, &record.name));
            new.spec.delivery = delivery(headers);
            let is_needless = |all: &[DeploymentRecord]| {
                new.is_delivered(all) || poller::is_found(all, &push.after) || is_older(all, &push)
            };
            if !apps.store.insert_deployment_unless(&new, &is_needless).await? {
                return Ok(ignored(
                    "this commit or a later one is already deployed, by this delivery or by polling"
                        .to_owned(),
                ));
            }
            let (status, Json(deployment)) = queued(apps, new);
            let answer = HookAnswer { deployment_id: Some(deployment.id), preview: None, ignored: None };
            Ok((status, Json(answer)))
        }
    }
}

/// Returns whether a push arrived late: a push that began where this one ended was deployed before.
/// A branch that was set back to an earlier commit looks the same if something in between was never
/// deployed, so only hosts that tell the two apart are believed. For others, and for cases that
/// this cannot decide, the branch is checked when the source is fetched.
fn is_older(all: &[DeploymentRecord], push: &Push) -> bool {
    if push.forced != Some(false) {
        return false;
    }
    let newest = all.iter().find(|one| one.spec.git_before.is_some());
    newest.is_none_or(|newest| newest.spec.git_commit.as_deref() != Some(push.before.as_str()))
        && all.iter().any(|one| one.spec.git_before.as_deref() == Some(push.after.as_str()))
}

/// The kind of host that a delivery comes from.
fn host_of(headers: &HeaderMap) -> Option<GitHost> {
    // Gitea also sends the headers of GitHub.
    let kinds = [
        ("x-gitea-event", GitHost::Gitea),
        ("x-gitlab-event", GitHost::Gitlab),
        ("x-github-event", GitHost::Github),
    ];
    kinds.into_iter().find(|(name, _)| headers.contains_key(*name)).map(|(_, host)| host)
}

/// Remembers the kind of Git host, because each has its own API for commit statuses.
async fn note_host(apps: &Apps, record: &AppRecord, headers: &HeaderMap) -> Result<()> {
    let seen = host_of(headers);
    if seen.is_some() && seen != record.spec.git_host_seen {
        change(apps, &record.id, |record| record.spec.git_host_seen = seen).await?;
    }
    Ok(())
}

fn ignored(why: String) -> (StatusCode, Json<HookAnswer>) {
    (StatusCode::OK, Json(HookAnswer { deployment_id: None, preview: None, ignored: Some(why) }))
}

/// Returns whether the sender knows the secret. Any one valid proof is enough; a request without
/// one is refused.
fn is_proved(headers: &HeaderMap, secret: &str, body: &[u8]) -> bool {
    if let Some(token) = header(headers, "x-gitlab-token") {
        return token.as_bytes().ct_eq(secret.as_bytes()).into();
    }
    let hub = header(headers, "x-hub-signature-256").and_then(|value| value.strip_prefix("sha256="));
    let Some(signature) = hub.or_else(|| header(headers, "x-gitea-signature")) else { return false };
    let Ok(signature) = HEXLOWER_PERMISSIVE.decode(signature.as_bytes()) else { return false };
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else { return false };
    mac.update(body);
    mac.verify_slice(&signature).is_ok()
}

#[derive(Debug, PartialEq)]
enum HookEvent {
    Push(Push),
    Pull(Pull),
    Ignored(String),
}

/// Meaning of a delivery for an app.
fn event_of(headers: &HeaderMap, body: &[u8], app: &AppRecord) -> Result<HookEvent> {
    let nothing = |why: &str| Ok(HookEvent::Ignored(why.to_owned()));
    let names = ["x-github-event", "x-gitea-event", "x-gitlab-event"];
    let event = names.into_iter().find_map(|name| header(headers, name));
    match event {
        Some("ping") => return nothing("pong"),
        Some(_) if app.spec.git_url.is_none() => return nothing("the app has no git_url"),
        Some(_) => {}
        None => {
            return Err(Error::bad_request("the delivery has no event header, such as X-GitHub-Event"));
        }
    }
    let unreadable =
        |error: serde_json::Error| Error::bad_request(format!("the delivery is not valid JSON: {error}"));
    let payload = payload(headers, body);
    let pull = match event.unwrap_or_default() {
        "push" | "Push Hook" => {
            let push = serde_json::from_slice(&payload).map_err(unreadable)?;
            return Ok(push_event(push, app));
        }
        "pull_request" | "pull_request_sync" => pulls::from_github(&payload),
        "Merge Request Hook" => pulls::from_gitlab(&payload),
        other => return Ok(HookEvent::Ignored(format!("`{other}` is not a push or a pull request"))),
    };
    Ok(match pull.map_err(unreadable)? {
        Ok(pull) => pulls::unwanted(&app.spec, &pull).map_or(HookEvent::Pull(pull), HookEvent::Ignored),
        Err(why) => HookEvent::Ignored(why),
    })
}

/// The JSON of a delivery, which may be a field of a form.
fn payload<'a>(headers: &HeaderMap, body: &'a [u8]) -> Cow<'a, [u8]> {
    let form = header(headers, "content-type")
        .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    if !form {
        return Cow::Borrowed(body);
    }
    let mut pairs = url::form_urlencoded::parse(body);
    let payload = pairs.find(|(key, _)| key == "payload").map(|(_, value)| value.into_owned());
    Cow::Owned(payload.unwrap_or_default().into_bytes())
}

/// Meaning of a push for an app.
fn push_event(push: Push, app: &AppRecord) -> HookEvent {
    let nothing = |why: &str| HookEvent::Ignored(why.to_owned());
    let Some(branch) = push.reference.strip_prefix("refs/heads/") else {
        return nothing("not a push to a branch");
    };
    if branch != app.spec.branch() {
        return HookEvent::Ignored(format!(
            "pushed to `{branch}`, not to the app's branch `{}`",
            app.spec.branch()
        ));
    }
    if push.deleted || push.after.is_empty() || push.after.bytes().all(|byte| byte == b'0') {
        return nothing("the branch was deleted");
    }
    let head =
        push.head_commit.as_ref().or_else(|| push.commits.iter().find(|commit| commit.id == push.after));
    if head.is_some_and(|head| SKIP.iter().any(|skip| head.message.contains(skip))) {
        return nothing("the commit message says to skip it");
    }
    HookEvent::Push(push)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::AppSpec;

    fn app() -> AppRecord {
        AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec { git_url: Some("https://x/y".into()), ..AppSpec::default() },
            now(),
        )
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    /// Computed with Python: hmac.new(b"It's a Secret to Everybody", b"Hello, World!", "sha256"), GitHub's own example.
    const SIGNATURE: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    const SECRET: &str = "It's a Secret to Everybody";

    #[test]
    fn a_webhook_is_authenticated_by_hmac_or_secret() {
        let body = b"Hello, World!";
        let github = format!("sha256={SIGNATURE}");
        assert!(is_proved(&headers(&[("x-hub-signature-256", &github)]), SECRET, body));
        assert!(is_proved(&headers(&[("x-gitea-signature", SIGNATURE)]), SECRET, body));
        assert!(is_proved(&headers(&[("x-gitlab-token", SECRET)]), SECRET, body));
        for bad in [
            headers(&[]),
            headers(&[("x-hub-signature-256", SIGNATURE)]),
            headers(&[("x-hub-signature-256", "sha256=")]),
            headers(&[("x-hub-signature-256", "sha256=zz")]),
            headers(&[("x-gitea-signature", &SIGNATURE.replace('7', "8"))]),
            headers(&[("x-gitlab-token", "It's")]),
            headers(&[("x-gitlab-token", "wrong"), ("x-gitea-signature", SIGNATURE)]),
        ] {
            assert!(!is_proved(&bad, SECRET, body), "{bad:?}");
        }
        assert!(!is_proved(&headers(&[("x-hub-signature-256", &github)]), SECRET, b"Hello, World"));
    }

    #[track_caller]
    fn check(lines: &[(&'static str, &str)], body: &str, expect: Result<&str, &str>) {
        let event = event_of(&headers(lines), body.as_bytes(), &app()).unwrap();
        match (event, expect) {
            (HookEvent::Push(push), Ok(commit)) => assert_eq!(push.after, commit),
            (HookEvent::Ignored(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (event, _) => panic!("{body}: {event:?}"),
        }
    }

    #[test]
    fn only_a_push_to_the_branch_deploys() {
        let github = [("x-github-event", "push")];
        check(&github, r#"{"ref":"refs/heads/main","after":"abc"}"#, Ok("abc"));
        check(&[("x-gitlab-event", "Push Hook")], r#"{"ref":"refs/heads/main","after":"abc"}"#, Ok("abc"));
        check(&[("x-gitea-event", "push")], r#"{"ref":"refs/heads/main","after":"abc"}"#, Ok("abc"));
        check(&github, r#"{"ref":"refs/heads/dev","after":"abc"}"#, Err("not to the app's branch"));
        check(&github, r#"{"ref":"refs/tags/v1","after":"abc"}"#, Err("not a push to a branch"));
        check(&github, r#"{"ref":"refs/heads/main","after":"0000000000"}"#, Err("deleted"));
        check(&github, r#"{"ref":"refs/heads/main","after":"abc","deleted":true}"#, Err("deleted"));
        let skip =
            r#"{"ref":"refs/heads/main","after":"abc","head_commit":{"id":"abc","message":"x [skip ci]"}}"#;
        check(&github, skip, Err("skip"));
        check(&[("x-github-event", "ping")], "{}", Err("pong"));
        check(&[("x-github-event", "star")], "{}", Err("not a push"));
        let form = [("x-github-event", "push"), ("content-type", "application/x-www-form-urlencoded")];
        check(
            &form,
            "payload=%7B%22ref%22%3A%22refs%2Fheads%2Fmain%22%2C%22after%22%3A%22abc%22%7D",
            Ok("abc"),
        );
        assert!(event_of(&headers(&github), b"{", &app()).is_err());
        assert!(event_of(&headers(&[]), b"{}", &app()).is_err());
    }

    #[test]
    fn a_late_push_does_not_replace_a_newer_one() {
        let push = |before: &str, after: &str| Push {
            before: before.to_owned(),
            after: after.to_owned(),
            forced: Some(false),
            ..Push::default()
        };
        let deployed = |push: &Push| {
            let mut one = DeploymentRecord::queued(&app(), "push", now());
            one.spec.git_commit = Some(push.after.clone());
            one.spec.git_before = Some(push.before.clone());
            one
        };
        let (first, second, third) = (push("0", "a"), push("a", "b"), push("b", "c"));
        let all = [deployed(&third), deployed(&second)];
        assert!(is_older(&all, &first) && is_older(&all, &second));
        for forced in [Some(true), None] {
            assert!(!is_older(&all, &Push { forced, ..push("0", "a") }), "the branch may have been set back");
        }
        assert!(!is_older(&all, &push("c", "d")));
        assert!(!is_older(&all, &push("c", "a")), "the branch was set back");
        let rolled_back = DeploymentRecord::returning_to(&app(), &all[1], "rollback", now());
        let all_after = [vec![rolled_back], all.to_vec()].concat();
        assert!(!is_older(&all_after, &push("c", "a")), "a rollback is no push");
        assert!(!is_older(&all, &push("x", "y")), "something between was never told");
        assert!(!is_older(&[], &first));
    }
}
