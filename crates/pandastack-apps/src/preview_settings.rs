//! Settings of previews: those of their app, without what a fork must not see.

use std::collections::BTreeMap;

use pandastack_store::apps::record::{AppRecord, AppSpec, EnvEntry, PullSpec};
use pandastack_types::api::AppPreviews;

use crate::git::shown_url;
use crate::preview_repos;
use crate::state::Apps;

/// An app as it is built and served: a preview has the settings of its app.
pub(crate) async fn effective(apps: &Apps, record: AppRecord) -> pandastack_store::Result<AppRecord> {
    let Some(app) = &record.preview_of else { return Ok(record) };
    let app = apps.store.app(None, app.as_str()).await?;
    let repos = apps.repos.preview_repos(&app.workspace).await?;
    let shared = preview_repos::repo_of(&repos, &app.spec).map(|repo| repo.env.clone());
    Ok(AppRecord { spec: overlaid(record.spec, app.spec, shared.unwrap_or_default()), ..record })
}

/// The settings of a preview: those of its app, over the variables of its repository.
fn overlaid(own: AppSpec, app: AppSpec, shared: BTreeMap<String, EnvEntry>) -> AppSpec {
    // Without a word on where it comes from, it is treated as what can do most harm.
    let fork = own.pull.as_ref().is_none_or(|pull| pull.fork);
    let mut spec = AppSpec {
        git_url: app.git_url.clone().map(|url| if fork { shown_url(&url) } else { url }),
        git_token: app.git_token.clone().filter(|_| !fork),
        git_deploy_key: app.git_deploy_key.clone().filter(|_| !fork),
        webhook_secret: None,
        previews: AppPreviews::Off,
        // Each would hold memory until its pull request is closed.
        min_instances: 0,
        max_instances: 1,
        closed_pulls: Default::default(),
        cache: own.cache,
        cache_shape: own.cache_shape,
        deleting: own.deleting,
        pull: Some(own.pull.unwrap_or_else(|| PullSpec { fork: true, ..PullSpec::default() })),
        ..app
    };
    let seen = |spec: &AppSpec| -> BTreeMap<String, EnvEntry> {
        spec.seen_env().map(|(key, entry)| (key.clone(), entry.clone())).collect()
    };
    let nearer = seen(&spec);
    spec.env = shared;
    spec.env = seen(&spec);
    spec.env.extend(nearer);
    spec.databases = spec.seen_databases().map(|(env, one)| (env.clone(), one.clone())).collect();
    spec
}

#[cfg(test)]
mod tests {
    use pandastack_store::clock::now;
    use pandastack_types::api::EnvScope;

    use super::*;

    fn entry(secret: bool, scope: EnvScope) -> EnvEntry {
        EnvEntry { value: "v".into(), secret, scope, stage: Default::default(), updated_at: now() }
    }

    fn production() -> AppSpec {
        AppSpec {
            git_url: Some("https://me:pass@git.example/a.git".into()),
            git_token: Some("t0ken".into()),
            git_deploy_key: Some("k3y".into()),
            webhook_secret: Some("hush".into()),
            port: 3000,
            cache: Some("installed".parse().unwrap()),
            env: [
                ("OPEN", entry(false, EnvScope::All)),
                ("SECRET", entry(true, EnvScope::All)),
                ("LIVE", entry(false, EnvScope::Production)),
                ("LIVE_SECRET", entry(true, EnvScope::Production)),
                ("TRIAL", entry(false, EnvScope::Preview)),
                ("TRIAL_SECRET", entry(true, EnvScope::Preview)),
            ]
            .map(|(key, entry)| (key.to_owned(), entry))
            .into(),
            ..AppSpec::default()
        }
    }

    fn preview(fork: bool) -> AppSpec {
        let pull = PullSpec { number: 7, fork, ..PullSpec::default() };
        overlaid(AppSpec { pull: Some(pull), ..AppSpec::default() }, production(), shared())
    }

    /// Variables that a repository shares with its previews.
    fn shared() -> BTreeMap<String, EnvEntry> {
        let of = |value: &str, secret| EnvEntry { value: value.into(), ..entry(secret, EnvScope::Preview) };
        let all = [
            ("SHARED", of("shared", false)),
            ("SHARED_SECRET", of("hidden", true)),
            ("OPEN", of("shared", false)),
            ("LIVE", of("shared", false)),
            ("SECRET", of("shared", false)),
            ("TRIAL", of("hidden", true)),
        ];
        all.map(|(key, entry)| (key.to_owned(), entry)).into()
    }

    #[test]
    fn a_preview_gets_only_variables_for_previews() {
        let keys = |spec: &AppSpec| spec.seen_env().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&production()), ["LIVE", "LIVE_SECRET", "OPEN", "SECRET"]);
        let own = preview(false);
        assert_eq!(
            keys(&own),
            ["LIVE", "OPEN", "SECRET", "SHARED", "SHARED_SECRET", "TRIAL", "TRIAL_SECRET"]
        );
        let value = |key: &str| own.env[key].value.as_str();
        assert_eq!([value("OPEN"), value("SECRET"), value("TRIAL")], ["v"; 3], "the app's own are nearer");
        assert_eq!(value("LIVE"), "shared", "the app's own is not for previews");
        assert_eq!((own.port, own.git_token.as_deref()), (3000, Some("t0ken")));
        assert_eq!(own.git_deploy_key.as_deref(), Some("k3y"));
        assert_eq!((own.cache, own.webhook_secret), (None, None), "neither is for a preview");
        assert!(!own.env.contains_key("LIVE_SECRET"), "also where variables are shown");
    }

    #[test]
    fn a_preview_cache_requires_the_same_machine_shape() {
        let installed: pandastack_types::SnapshotId = "own".parse().unwrap();
        let mut own = AppSpec::default();
        own.set_cache(installed.clone(), production().shape());
        let overlaid = |own: AppSpec, app| overlaid(own, app, shared());
        assert_eq!(overlaid(own.clone(), production()).usable_cache(), Some(&installed));
        let larger = AppSpec { memory_mb: Some(4096), ..production() };
        assert_eq!(overlaid(own, larger).usable_cache(), None);
    }

    #[test]
    fn a_preview_of_a_fork_has_no_secrets() {
        let unknown = overlaid(AppSpec::default(), production(), shared());
        for fork in [preview(true), unknown] {
            assert_eq!(fork.env.keys().collect::<Vec<_>>(), ["LIVE", "OPEN", "SECRET", "SHARED", "TRIAL"]);
            assert!(fork.env.values().all(|entry| !entry.secret));
            assert_eq!(fork.env["SECRET"].value, "shared", "a plain one of the repository");
            assert_eq!(fork.git_token, None);
            assert_eq!(fork.git_url.as_deref(), Some("https://git.example/a.git"));
            let said = serde_json::to_string(&fork).unwrap();
            assert!(
                !["t0ken", "k3y", "hush", "pass", "hidden"].iter().any(|secret| said.contains(secret)),
                "{said}"
            );
        }
    }
}
