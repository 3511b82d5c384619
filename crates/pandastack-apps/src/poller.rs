//! Polls repositories without webhooks every `poll_seconds` and deploys new commits.
//!
//! `git ls-remote` runs in a machine created for it, as fetching does, so that a hostile host's
//! response can harm nothing else, and so that polling reaches the same hosts as a build.
//!
//! Must hold: a commit is deployed once, however it is reported ([`is_known`] is checked in the
//! transaction that adds a deployment); a commit whose deployment failed, or that a rollback left,
//! is not deployed again by polling.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord, Source};
use pandastack_store::clock::now;
use pandastack_types::{AppId, Error, Result, chain};
use tokio::time::Instant;

use crate::command::step;
use crate::commit_status::is_commit;
use crate::git::{self, KEEP_HOSTS, PREPARE};
use crate::machine::{self, Purpose};
use crate::state::Apps;

/// Trigger of a deployment that polling started.
pub(crate) const TRIGGER: &str = "poll";
/// Repositories polled at once; the rest wait.
const POLLS_AT_ONCE: usize = 2;
/// Seconds that one look may take.
const QUERY_SECONDS_MAX: u64 = 30;
/// Longest pause: after a failure of the store, no event says when to check again.
const POLL_EVERY: Duration = Duration::from_secs(30);

/// Prints the commit of a branch. Nothing of the answer but its first line counts.
const LS_REMOTE: &str = r#"git ls-remote --exit-code "$GIT_URL" "refs/heads/$GIT_BRANCH" | head -c 200"#;

/// Time of each app's next poll. A changed interval counts from its own revision on.
#[derive(Default)]
struct Plan(HashMap<AppId, (u64, u64, Instant)>);

impl Plan {
    /// Apps that are due; others are planned.
    fn due(&mut self, apps: Vec<AppRecord>, at: Instant) -> Vec<AppRecord> {
        self.0.retain(|id, _| apps.iter().any(|app| app.id == *id));
        let mut due = Vec::new();
        for app in apps {
            let Some(seconds) = app.spec.poll_seconds else { continue };
            let asked = app.spec.poll_asked;
            // One that is new here, or was set again, is due at once.
            let is_due = self
                .0
                .get(&app.id)
                .is_none_or(|(every, known, next)| *every != seconds || *known != asked || *next <= at);
            if is_due {
                self.0.insert(app.id.clone(), (seconds, asked, at + Duration::from_secs(seconds)));
                due.push(app);
            }
        }
        due
    }

    fn next(&self, at: Instant) -> Instant {
        let latest = at + POLL_EVERY;
        self.0.values().map(|(.., next)| *next).min().map_or(latest, |next| next.min(latest))
    }
}

/// Polls until shutdown.
pub async fn run(apps: Arc<Apps>) {
    let mut plan = Plan::default();
    loop {
        match polled(&apps).await {
            Ok(all) => poll_all(&apps, plan.due(all, Instant::now())).await,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot poll repositories; retrying soon")
            }
        }
        tokio::select! {
            () = apps.background.shutdown.cancelled() => return,
            () = apps.activity.polls.notified() => {}
            () = tokio::time::sleep_until(plan.next(Instant::now())) => {}
        }
    }
}

async fn polled(apps: &Apps) -> Result<Vec<AppRecord>> {
    let is_polled = |one: &AppRecord| {
        let spec = &one.spec;
        !spec.deleting && one.preview_of.is_none() && spec.poll_seconds.is_some() && spec.git_url.is_some()
    };
    Ok(apps.store.apps(None).await?.into_iter().filter(is_polled).collect())
}

async fn poll_all(apps: &Arc<Apps>, due: Vec<AppRecord>) {
    let polls = futures::stream::iter(due).for_each_concurrent(POLLS_AT_ONCE, |app| async move {
        if let Err(error) = poll_app(apps, &app).await {
            tracing::info!(
                app = %app.id, error = %chain(&error),
                "cannot poll a repository; retrying at its next interval"
            );
        }
    });
    tokio::select! {
        () = polls => {}
        () = apps.background.shutdown.cancelled() => {}
    }
}

/// Polls one repository and deploys a new commit.
async fn poll_app(apps: &Arc<Apps>, app: &AppRecord) -> Result<()> {
    let commit = head_of(apps, app).await?;
    let all = apps.store.deployments(&app.id).await?;
    let mut new = DeploymentRecord::queued(app, TRIGGER, now());
    new.spec.git_ref = Some(commit.clone());
    new.spec.git_commit = Some(commit.clone());
    new.spec.address = last_address(&all);
    if apps.store.insert_deployment_unless(&new, &|all| is_known(all, &commit)).await? {
        apps.activity.work.notify_one();
        apps.activity.notify();
    }
    Ok(())
}

/// The app's address as the latest deployment's client would reach it: a poll has no client.
fn last_address(all: &[DeploymentRecord]) -> Option<String> {
    all.iter().find_map(|one| one.spec.address.clone())
}

/// Returns whether an app's deployments, newest first, make one of `commit` redundant. A deployment
/// whose commit is not known yet may be of the same commit; the next poll decides.
fn is_known(all: &[DeploymentRecord], commit: &str) -> bool {
    newest_from_repository(all).is_some_and(|newest| match newest.spec.git_commit.as_deref() {
        Some(known) => known == commit,
        None => newest.status.is_in_progress(),
    })
}

/// Returns whether polling already found the commit that a push reports.
pub(crate) fn is_found(all: &[DeploymentRecord], commit: &str) -> bool {
    newest_from_repository(all).is_some_and(|newest| {
        newest.spec.trigger == TRIGGER && newest.spec.git_commit.as_deref() == Some(commit)
    })
}

fn newest_from_repository(all: &[DeploymentRecord]) -> Option<&DeploymentRecord> {
    all.iter().find(|one| one.spec.source == Source::Git)
}

/// The commit of an app's branch.
async fn head_of(apps: &Arc<Apps>, app: &AppRecord) -> Result<String> {
    // A deployment that ends during this may delete the machine as unused; then the next poll
    // retries.
    let mut env = git::variables(apps, app).map_err(Error::bad_request)?;
    env.insert("GIT_BRANCH".to_owned(), app.spec.branch().to_owned());
    let machine = machine::create(apps.machines.as_ref(), app, None, Purpose::Build).await?;
    let script = format!("{PREPARE}\n{LS_REMOTE}\n{KEEP_HOSTS}");
    let looked = async {
        let printed = machine.exec(&step(script, env, "/", QUERY_SECONDS_MAX).exec).await?;
        git::pin_host(apps, app, &machine).await.map(|_| printed)
    };
    let printed = looked.await;
    let removed = apps.machines.delete(machine.record, Some("its check of the repository ended")).await;
    let printed = printed?;
    removed?;
    let line = printed.stdout.split_whitespace().next().unwrap_or_default();
    if printed.exit_code != 0 || !is_commit(line) {
        let said: String = printed.stderr.chars().filter(|c| !c.is_control()).take(200).collect();
        return Err(Error::bad_request(format!("branch `{}` not found: {said}", app.spec.branch())));
    }
    Ok(line.to_owned())
}

#[cfg(test)]
mod tests {
    use pandastack_types::api::DeploymentStatus;

    use super::*;
    use pandastack_store::apps::record::AppSpec;

    fn app(id: &str, poll_seconds: Option<u64>) -> AppRecord {
        AppRecord {
            id: id.parse().unwrap(),
            ..AppRecord::new(
                pandastack_types::WorkspaceId::default_workspace(),
                id.to_owned(),
                AppSpec { poll_seconds, ..AppSpec::default() },
                now(),
            )
        }
    }

    #[test]
    fn an_app_is_polled_immediately_then_at_its_interval() {
        let (mut plan, start) = (Plan::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let ids = |due: Vec<AppRecord>| due.iter().map(|app| app.id.to_string()).collect::<Vec<_>>();
        let apps = || vec![app("a", Some(60)), app("b", Some(90)), app("c", None)];
        assert_eq!(ids(plan.due(apps(), start)), ["a", "b"]);
        assert!(plan.due(apps(), after(59)).is_empty());
        assert_eq!(plan.next(after(59)), after(60));
        assert_eq!(ids(plan.due(apps(), after(60))), ["a"]);
        let mut asked = app("b", Some(90));
        asked.spec.poll_asked += 1;
        assert_eq!(ids(plan.due(vec![asked.clone()], after(61))), ["b"], "its setting was set anew");
        assert!(plan.due(vec![asked], after(62)).is_empty());
        assert_eq!(plan.0.len(), 1, "what is not polled any more is forgotten");
    }

    #[test]
    fn a_polled_deployment_uses_the_last_known_address() {
        let queued = |address: Option<&str>| {
            let mut one = DeploymentRecord::queued(&app("a", None), TRIGGER, now());
            one.spec.address = address.map(str::to_owned);
            one
        };
        let all = [queued(None), queued(Some("https://a.new")), queued(Some("https://a.old"))];
        assert_eq!(last_address(&all).as_deref(), Some("https://a.new"));
        assert_eq!(last_address(&all[..1]), None);
    }

    #[test]
    fn a_commit_is_deployed_once() {
        let mut newest = DeploymentRecord::queued(&app("a", None), "push", now());
        let mut uploaded = DeploymentRecord::queued(&app("a", None), "api", now());
        uploaded.spec.source = Source::Archive;
        let is_known =
            |newest: &DeploymentRecord, commit| is_known(&[uploaded.clone(), newest.clone()], commit);
        let is_found =
            |newest: &DeploymentRecord, commit| is_found(&[uploaded.clone(), newest.clone()], commit);
        assert!(is_known(&newest, "abc"), "its commit is not known yet");
        newest.status = DeploymentStatus::Failed;
        assert!(!is_known(&newest, "abc"));
        newest.spec.git_commit = Some("abc".to_owned());
        assert!(is_known(&newest, "abc"), "also if it failed");
        assert!(!is_known(&newest, "abd"));
        assert!(!is_found(&newest, "abc"), "a push may repeat a push");
        newest.spec.trigger = TRIGGER.to_owned();
        assert!(is_found(&newest, "abc"));
    }
}
