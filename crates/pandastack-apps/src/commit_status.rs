//! Deployment progress as a commit status at the Git host. Pure.
//!
//! | | call | proof |
//! |---|---|---|
//! | GitHub | `POST {api}/repos/{owner}/{name}/statuses/{commit}` | `Authorization: Bearer` |
//! | Gitea | the same | `Authorization: token` |
//! | GitLab | `POST {api}/projects/{path}/statuses/{commit}` | `PRIVATE-TOKEN` |

use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderMap, HeaderName, HeaderValue};
use pandastack_store::apps::record::{AppSpec, DeploymentRecord, Source};
use pandastack_types::api::{DeploymentStatus, GitHost};
use serde_json::{Value, json};
use url::Url;

use crate::git;

/// Status text for a commit whose push was delivered late, after the branch had moved on.
const LATE: &str = "the branch had already moved to another commit";
/// Characters of a description; GitHub refuses longer ones.
const DESCRIPTION_CHARS_MAX: usize = 140;

/// State of a deployment, as far as a commit status can express it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Pending,
    Success,
    Failure,
    /// The deployment was canceled or superseded before it served.
    Stopped,
}

/// A call that tells it.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Maps a deployment to the state of its commit.
pub(crate) fn state_of(deployment: &DeploymentRecord) -> State {
    use DeploymentStatus as S;
    match deployment.status {
        S::Queued | S::Building | S::Deploying => State::Pending,
        S::Live | S::RolledBack => State::Success,
        // A deployment has a machine from the moment on that it served.
        S::Superseded if deployment.spec.machine.is_some() => State::Success,
        S::Superseded | S::Canceled => State::Stopped,
        S::Failed => State::Failure,
    }
}

/// Returns whether a deployment is reported on its commit: rollbacks are not.
pub(crate) fn is_reported(deployment: &DeploymentRecord) -> bool {
    deployment.spec.source == Source::Git
}

/// The calls that tell commits how a deployment goes: the one that it is of, and, at its end, the one whose push came late and began it.
/// None without token, commit, or a host that is known.
///
/// `app` is the app whose settings count, also for its previews; `context` tells statuses of one commit apart.
pub(crate) fn reports(app: &AppSpec, deployment: &DeploymentRecord, context: &str) -> Vec<Report> {
    let state = state_of(deployment);
    let said = description(deployment, state);
    let own = deployment.spec.git_commit.as_deref().map(|commit| (commit, state, said.as_str()));
    let late = late_commit(deployment).filter(|_| state != State::Pending);
    let late = late.map(|commit| (commit, State::Stopped, LATE));
    let told = own.into_iter().chain(late);
    let address = deployment.spec.address.as_deref();
    told.filter_map(|(commit, state, said)| report(app, commit, state, said, context, address)).collect()
}

/// The commit of a push that came late: another one was built. The start of its deployment was
/// reported on it.
fn late_commit(deployment: &DeploymentRecord) -> Option<&str> {
    let spec = &deployment.spec;
    let pushed = spec.git_ref.as_deref().filter(|_| spec.trigger == "push")?;
    spec.git_commit.as_deref().filter(|built| *built != pushed).map(|_| pushed)
}

/// The call that sets the status of one commit.
fn report(
    app: &AppSpec,
    commit: &str,
    state: State,
    said: &str,
    context: &str,
    address: Option<&str>,
) -> Option<Report> {
    let token = app.git_token.as_deref()?;
    let commit = Some(commit).filter(|commit| is_commit(commit))?;
    let repository = git::repository(app)?.web()?;
    let host = host_of(app)?;
    let (api, project) = places(host, &repository)?;
    let api = app.git_api_url.as_deref().map_or(api, |given| given.trim_end_matches('/').to_owned());
    let url = match host {
        GitHost::Github | GitHost::Gitea => format!("{api}/repos/{project}/statuses/{commit}"),
        GitHost::Gitlab => format!("{api}/projects/{}/statuses/{commit}", project.replace('/', "%2F")),
    };
    let mut body = json!({"state": state_name(host, state), "description": said});
    body[if host == GitHost::Gitlab { "name" } else { "context" }] = context.into();
    if let Some(address) = address {
        body["target_url"] = address.into();
    }
    Some(Report { url, headers: proof(host, token)?, body })
}

/// Returns whether a text is a full commit id.
pub(crate) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Kind of Git host of an app's repository: as configured, as seen in its deliveries, or by its
/// name.
pub(crate) fn host_of(app: &AppSpec) -> Option<GitHost> {
    let named = || {
        let url = git::repository(app)?.web()?;
        let name = url.host_str()?;
        match name {
            "github.com" => Some(GitHost::Github),
            "codeberg.org" => Some(GitHost::Gitea),
            _ if name.split('.').any(|label| label == "gitlab") => Some(GitHost::Gitlab),
            _ if name.split('.').any(|label| label == "gitea" || label == "forgejo") => Some(GitHost::Gitea),
            _ => None,
        }
    };
    app.git_host.or(app.git_host_seen).or_else(named)
}

/// Address of a Git host's API, and its name for a repository.
fn places(host: GitHost, repository: &Url) -> Option<(String, String)> {
    let segments: Vec<_> =
        git::path_of(repository).split('/').filter(|segment| !segment.is_empty()).collect();
    let (owner_at, name) = (segments.len().checked_sub(2)?, segments.last()?);
    let origin = format!("{}://{}", repository.scheme(), repository.host_str()?);
    let origin = repository.port().map_or(origin.clone(), |port| format!("{origin}:{port}"));
    // A host may live below a path of its own, but for GitLab, whose groups nest.
    let below = segments[..owner_at].iter().map(|segment| format!("/{segment}")).collect::<String>();
    let short = format!("{}/{name}", segments[owner_at]);
    Some(match host {
        GitHost::Github if repository.host_str() == Some("github.com") => {
            ("https://api.github.com".to_owned(), short)
        }
        GitHost::Github => (format!("{origin}{below}/api/v3"), short),
        GitHost::Gitea => (format!("{origin}{below}/api/v1"), short),
        GitHost::Gitlab => (format!("{origin}/api/v4"), segments.join("/")),
    })
}

fn proof(host: GitHost, token: &str) -> Option<HeaderMap> {
    let (name, value) = match host {
        GitHost::Github => (AUTHORIZATION, format!("Bearer {token}")),
        GitHost::Gitea => (AUTHORIZATION, format!("token {token}")),
        GitHost::Gitlab => (HeaderName::from_static("private-token"), token.to_owned()),
    };
    let mut value = HeaderValue::from_str(&value).ok()?;
    value.set_sensitive(true);
    Some([(name, value), (ACCEPT, HeaderValue::from_static("application/json"))].into_iter().collect())
}

fn state_name(host: GitHost, state: State) -> &'static str {
    match (state, host) {
        (State::Pending, _) => "pending",
        (State::Success, _) => "success",
        (State::Failure, GitHost::Gitlab) => "failed",
        (State::Stopped, GitHost::Gitlab) => "canceled",
        (State::Failure, _) => "failure",
        (State::Stopped, _) => "error",
    }
}

fn description(deployment: &DeploymentRecord, state: State) -> String {
    let said = match state {
        State::Pending => "building and starting",
        State::Success => "live",
        State::Failure | State::Stopped => {
            deployment.spec.error.as_deref().unwrap_or("the deployment failed")
        }
    };
    said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(DESCRIPTION_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::AppRecord;
    use pandastack_store::clock::now;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn deployment(status: DeploymentStatus) -> DeploymentRecord {
        let app = AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        );
        let mut one = DeploymentRecord { status, ..DeploymentRecord::queued(&app, "push", now()) };
        one.spec.git_commit = Some(COMMIT.to_owned());
        one.spec.address = Some("http://a.localhost".to_owned());
        one
    }

    fn app(url: &str) -> AppSpec {
        AppSpec { git_url: Some(url.into()), git_token: Some("t0ken".into()), ..AppSpec::default() }
    }

    #[track_caller]
    fn check(app: &AppSpec, expect: Option<(&str, &str, &str)>) {
        let told = reports(app, &deployment(DeploymentStatus::Failed), "pandastack/a");
        let told = told.into_iter().next().map(|told| {
            let proof = told.headers.get(AUTHORIZATION).or_else(|| told.headers.get("private-token"));
            (told.url, proof.unwrap().to_str().unwrap().to_owned(), told.body["state"].to_string())
        });
        let (url, proof, state) = told.clone().unwrap_or_default();
        assert_eq!(told.is_some().then_some((url.as_str(), proof.as_str(), state.trim_matches('"'))), expect);
    }

    #[test]
    fn every_git_host_gets_its_own_status_request() {
        let path = |api: &str, rest: &str| format!("{api}/{rest}/statuses/{COMMIT}");
        let github = path("https://api.github.com", "repos/me/shop");
        check(&app("https://github.com/me/shop.git"), Some((&github, "Bearer t0ken", "failure")));
        check(&app("git@github.com:me/shop.git"), Some((&github, "Bearer t0ken", "failure")));
        let gitlab = path("https://gitlab.example.com:8443/api/v4", "projects/a%2Fb%2Fshop");
        check(&app("https://gitlab.example.com:8443/a/b/shop"), Some((&gitlab, "t0ken", "failed")));
        let gitea = path("http://git.example/below/api/v1", "repos/me/shop");
        let own =
            AppSpec { git_host: Some(GitHost::Gitea), ..app("http://u:p@git.example/below/me/shop.git") };
        check(&own, Some((&gitea, "token t0ken", "failure")));
        let seen = AppSpec { git_host: None, git_host_seen: Some(GitHost::Gitea), ..own.clone() };
        check(&seen, Some((&gitea, "token t0ken", "failure")));
        let moved = path("http://127.0.0.1:9/x", "repos/me/shop");
        check(
            &AppSpec { git_api_url: Some("http://127.0.0.1:9/x/".into()), ..own.clone() },
            Some((&moved, "token t0ken", "failure")),
        );
        for untold in [
            app("https://git.example/me/shop"),
            app("https://github.com/shop"),
            AppSpec { git_token: None, ..own.clone() },
            AppSpec { git_token: Some("a\nb".into()), ..own },
        ] {
            check(&untold, None);
        }
    }

    #[test]
    fn a_superseded_version_that_served_reports_success() {
        use DeploymentStatus as S;
        let mut served = deployment(S::Superseded);
        assert_eq!(state_of(&served), State::Stopped, "it was overtaken before it served");
        served.spec.machine = Some("m".parse().unwrap());
        assert_eq!(state_of(&served), State::Success);
        assert_eq!(state_of(&deployment(S::Deploying)), State::Pending);
        let mut failed = deployment(S::Failed);
        failed.spec.error = Some(format!("a\nb{}", "c".repeat(200)));
        let told = reports(&app("https://github.com/a/b"), &failed, "x").remove(0);
        assert_eq!(told.body["description"].as_str().unwrap().len(), DESCRIPTION_CHARS_MAX);
        assert_eq!(
            (&told.body["context"], &told.body["target_url"]),
            (&json!("x"), &json!("http://a.localhost"))
        );
        assert!(!format!("{:?}", told.headers).contains("t0ken"), "not even in a log of ours");
    }

    #[test]
    fn a_late_push_does_not_stay_pending() {
        use DeploymentStatus as S;
        let pushed = "f".repeat(40);
        let told = |status, trigger: &str, pushed: &str| {
            let mut late = deployment(status);
            (late.spec.trigger, late.spec.git_ref) = (trigger.to_owned(), Some(pushed.to_owned()));
            late.spec.machine = Some("m".parse().unwrap());
            let told = reports(&app("https://github.com/a/b"), &late, "x").into_iter();
            told.map(|one| {
                assert_eq!(one.body["context"], "x");
                assert_eq!(one.body["target_url"], "http://a.localhost");
                let commit = one.url.rsplit('/').next().unwrap().to_owned();
                (commit, one.body["state"].as_str().unwrap().to_owned())
            })
            .collect::<Vec<_>>()
        };
        let said = |commit: &str, state: &str| (commit.to_owned(), state.to_owned());
        assert_eq!(told(S::Live, "push", &pushed), [said(COMMIT, "success"), said(&pushed, "error")]);
        assert_eq!(told(S::Failed, "push", &pushed), [said(COMMIT, "failure"), said(&pushed, "error")]);
        assert_eq!(told(S::Deploying, "push", &pushed), [said(COMMIT, "pending")], "it is not over");
        assert_eq!(told(S::Live, "push", COMMIT), [said(COMMIT, "success")], "it came in time");
        assert_eq!(told(S::Live, "api", "main"), [said(COMMIT, "success")], "it is no push");
    }
}
