//! Parses pull requests (GitLab: merge requests) from webhook deliveries into one shape. Pure.
//!
//! Must hold: a pull request counts as a fork unless it certainly comes from the repository itself;
//! texts by others are short and without control characters; a commit consists of hexadecimal
//! digits only.

use jiff::Timestamp;
use pandastack_store::apps::record::AppSpec;
use pandastack_types::api::AppPreviews;
use serde::Deserialize;

use crate::commit_status;

/// Markers in a commit message that skip the deployment.
pub(crate) const SKIP: [&str; 4] = ["[skip ci]", "[ci skip]", "[skip deploy]", "[deploy skip]"];

/// Characters of a title or branch that are kept.
const TEXT_CHARS_MAX: usize = 200;
/// Bytes of a pull request's address; a longer one is not shown.
const URL_BYTES_MAX: usize = 2000;

/// The result of a pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The pull request was opened or has new commits.
    Updated,
    /// The pull request was reopened.
    Reopened,
    /// The pull request was closed or merged.
    Closed,
}

/// A pull request event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pull {
    pub(crate) change: Change,
    pub(crate) number: u32,
    pub(crate) title: String,
    /// Branch that it would merge.
    pub(crate) branch: String,
    /// Branch that it would merge into.
    pub(crate) base: String,
    pub(crate) commit: String,
    pub(crate) url: Option<String>,
    pub(crate) fork: bool,
    /// When the pull request was changed, by its host's clock.
    pub(crate) at: Option<Timestamp>,
}

/// A pull request in the shape that GitHub and Gitea share.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PullEvent {
    action: String,
    number: u32,
    pull_request: PullRequest,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PullRequest {
    title: String,
    html_url: Option<String>,
    updated_at: Option<String>,
    head: End,
    base: End,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct End {
    #[serde(rename = "ref")]
    reference: String,
    sha: String,
    /// `null` when the fork was deleted.
    repo: Option<Repository>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Repository {
    id: u64,
}

/// Reads a delivery of GitHub or Gitea; why it means nothing, if so.
pub(crate) fn from_github(payload: &[u8]) -> serde_json::Result<Result<Pull, String>> {
    let event: PullEvent = serde_json::from_slice(payload)?;
    let change = match event.action.as_str() {
        // Gitea says `synchronized`.
        "opened" | "synchronize" | "synchronized" => Change::Updated,
        "reopened" => Change::Reopened,
        "closed" => Change::Closed,
        other => return Ok(Err(format!("`{}` does not change a preview", shown(other)))),
    };
    let PullRequest { title, html_url, updated_at, head, base } = event.pull_request;
    let known = |end: &End| end.repo.as_ref().map(|repo| repo.id).filter(|id| *id != 0);
    Ok(Ok(Pull {
        change,
        number: event.number,
        title: shown(&title),
        branch: shown(&head.reference),
        fork: known(&head).is_none() || known(&head) != known(&base),
        base: base.reference,
        commit: head.sha,
        url: address(html_url),
        at: time(updated_at),
    }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MergeEvent {
    object_attributes: MergeRequest,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MergeRequest {
    action: Option<String>,
    iid: u32,
    title: String,
    url: Option<String>,
    updated_at: Option<String>,
    source_branch: String,
    target_branch: String,
    source_project_id: Option<u64>,
    target_project_id: Option<u64>,
    last_commit: Option<LastCommit>,
    /// Set if an update added commits.
    oldrev: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LastCommit {
    id: String,
    message: String,
}

/// Reads a delivery of GitLab; why it means nothing, if so.
pub(crate) fn from_gitlab(payload: &[u8]) -> serde_json::Result<Result<Pull, String>> {
    let merge = serde_json::from_slice::<MergeEvent>(payload)?.object_attributes;
    let change = match merge.action.as_deref().unwrap_or_default() {
        "open" => Change::Updated,
        "update" if merge.oldrev.is_some() => Change::Updated,
        "reopen" => Change::Reopened,
        "close" | "merge" => Change::Closed,
        other => return Ok(Err(format!("`{}` without commits does not change a preview", shown(other)))),
    };
    let last = merge.last_commit.unwrap_or_default();
    if change != Change::Closed && skips(&last.message) {
        return Ok(Err("the commit message says to skip it".to_owned()));
    }
    Ok(Ok(Pull {
        change,
        number: merge.iid,
        title: shown(&merge.title),
        branch: shown(&merge.source_branch),
        base: merge.target_branch,
        commit: last.id,
        url: address(merge.url),
        fork: merge.source_project_id.is_none() || merge.source_project_id != merge.target_project_id,
        at: time(merge.updated_at),
    }))
}

/// Why a pull request gets no preview, if so. Closing one always counts.
pub(crate) fn unwanted(app: &AppSpec, pull: &Pull) -> Option<String> {
    let is_commit = commit_status::is_commit(&pull.commit);
    match pull.change {
        _ if pull.number == 0 => Some("the pull request has no number".to_owned()),
        Change::Closed => None,
        _ if app.previews == AppPreviews::Off => Some("previews are off for this app".to_owned()),
        _ if pull.fork && app.previews != AppPreviews::All => {
            Some("the pull request is from a fork; set `previews` to `all` to allow those".to_owned())
        }
        _ if pull.base != app.branch() => {
            Some(format!("the pull request does not target the branch `{}`", app.branch()))
        }
        _ if !is_commit => Some("the pull request has no commit".to_owned()),
        _ if skips(&pull.title) => Some("the title says to skip it".to_owned()),
        _ => None,
    }
}

fn skips(text: &str) -> bool {
    SKIP.iter().any(|skip| text.contains(skip))
}

/// A text of others, fit to be shown.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS_MAX).collect()
}

fn address(text: Option<String>) -> Option<String> {
    let text = text.filter(|text| text.len() <= URL_BYTES_MAX)?;
    let url = url::Url::parse(&text).ok()?;
    matches!(url.scheme(), "http" | "https").then(|| url.to_string())
}

/// GitLab writes `2026-01-02 03:04:05 UTC` in older versions.
fn time(text: Option<String>) -> Option<Timestamp> {
    let text = text?;
    let text = text.strip_suffix(" UTC").map_or_else(|| text.clone(), |start| format!("{start}Z"));
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn github(action: &str, head_repo: serde_json::Value) -> Result<Pull, String> {
        let payload = json!({"action": action, "number": 7, "pull_request": {
            "title": "A\u{1b}[31m title", "html_url": "https://git.example/a/b/pull/7", "updated_at": "2026-01-02T03:04:05Z",
            "head": {"ref": "fix", "sha": COMMIT, "repo": head_repo},
            "base": {"ref": "main", "sha": "1", "repo": {"id": 5, "full_name": "a/b"}}}});
        from_github(payload.to_string().as_bytes()).unwrap()
    }

    fn gitlab(change: serde_json::Value) -> Result<Pull, String> {
        let mut merge = json!({"iid": 7, "title": "T", "url": "javascript:alert(1)", "source_branch": "fix",
            "target_branch": "main", "source_project_id": 5, "target_project_id": 5,
            "updated_at": "2026-01-02 03:04:05 UTC", "last_commit": {"id": COMMIT, "message": "m"}});
        for (key, value) in change.as_object().unwrap() {
            merge[key] = value.clone();
        }
        from_gitlab(json!({"object_attributes": merge}).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn pull_requests_of_all_git_hosts_parse_alike() {
        let pull = github("opened", json!({"id": 5})).unwrap();
        assert_eq!((pull.number, pull.branch.as_str(), pull.base.as_str()), (7, "fix", "main"));
        assert_eq!((pull.change, pull.fork, pull.commit.as_str()), (Change::Updated, false, COMMIT));
        assert_eq!(pull.title, "A[31m title", "nothing that a terminal would obey");
        assert_eq!(github("synchronize", json!({"id": 5})).unwrap().change, Change::Updated);
        assert_eq!(github("synchronized", json!({"id": 5})).unwrap().change, Change::Updated);
        assert_eq!(github("closed", json!({"id": 5})).unwrap().change, Change::Closed);
        assert!(github("labeled", json!({"id": 5})).is_err());
        let merge = gitlab(json!({"action": "open"})).unwrap();
        assert_eq!(Pull { title: pull.title.clone(), url: pull.url.clone(), ..merge.clone() }, pull);
        assert_eq!(merge.url, None, "an address that is none");
        assert_eq!(gitlab(json!({"action": "merge"})).unwrap().change, Change::Closed);
        assert_eq!(gitlab(json!({"action": "update", "oldrev": "1"})).unwrap().change, Change::Updated);
        assert!(gitlab(json!({"action": "update"})).is_err(), "only its title changed");
        assert!(
            gitlab(json!({"action": "open", "last_commit": {"id": COMMIT, "message": "[skip ci]"}})).is_err()
        );
    }

    #[test]
    fn pull_requests_of_unknown_origin_count_as_forks() {
        for head in [json!(null), json!({"id": 6}), json!({}), json!({"id": 0})] {
            assert!(github("opened", head.clone()).unwrap().fork, "{head}");
        }
        assert!(gitlab(json!({"action": "open", "source_project_id": 6})).unwrap().fork);
        assert!(
            gitlab(json!({"action": "open", "source_project_id": null, "target_project_id": null}))
                .unwrap()
                .fork
        );
    }

    #[test]
    fn settings_decide_which_pull_requests_get_a_preview() {
        let of = |previews| AppSpec { previews, ..AppSpec::default() };
        let own = github("opened", json!({"id": 5})).unwrap();
        let fork = Pull { fork: true, ..own.clone() };
        assert_eq!(unwanted(&of(AppPreviews::Branches), &own), None);
        assert_eq!(unwanted(&of(AppPreviews::All), &fork), None);
        let why = |app, pull: &Pull| unwanted(&app, pull).unwrap();
        assert!(why(of(AppPreviews::Branches), &fork).contains("fork"));
        assert!(why(of(AppPreviews::Off), &own).contains("off"));
        let dev = AppSpec { git_branch: Some("dev".into()), ..of(AppPreviews::All) };
        assert!(why(dev.clone(), &own).contains("`dev`"));
        assert_eq!(unwanted(&dev, &Pull { change: Change::Closed, ..own.clone() }), None);
        for commit in ["", "main", "--upload-pack=x", &COMMIT[1..]] {
            let odd = Pull { commit: commit.to_owned(), ..own.clone() };
            assert!(why(of(AppPreviews::All), &odd).contains("no commit"), "{commit}");
        }
        let skipped = Pull { title: "x [skip deploy]".into(), ..own };
        assert!(why(of(AppPreviews::All), &skipped).contains("skip"));
    }
}
