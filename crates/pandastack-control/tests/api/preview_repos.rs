//! Previews of a whole repository: turned on and off for its apps, and variables that its previews see.

use reqwest::Method;
use serde_json::{Value, json};

use crate::apps::deliver_github;
use crate::harness::{Answer, World};

async fn make(world: &World, name: &str, url: &str, previews: &str) {
    let settings = json!({"name": name, "git_url": url, "webhook_secret": "hush", "previews": previews});
    world.post("/v1/apps", settings).await.expect(201);
}

async fn previews(world: &World, name: &str) -> String {
    world.get(&format!("/v1/apps/{name}")).await.expect(200)["previews"].as_str().unwrap().to_owned()
}

async fn put(world: &World, path: &str, body: Value) -> Answer {
    world.send(world.request(Method::PUT, path).json(&body)).await
}

/// A pull request of repository 7, from a branch of it or of a fork.
async fn open(world: &World, app: &str, number: u32, fork: bool) -> Answer {
    let head = json!({"ref": "fix", "sha": "c".repeat(40), "repo": {"id": if fork { 8 } else { 7 }}});
    let base = json!({"ref": "main", "repo": {"id": 7}});
    let pull = json!({"title": "A fix", "updated_at": "2026-01-01T00:00:00Z", "head": head, "base": base});
    let body = json!({"action": "opened", "number": number, "pull_request": pull, "repository": {"id": 7}});
    deliver_github(world, app, &format!("{app}-{number}"), "pull_request", body).await
}

/// Variables that an app or a preview of it is shown with.
async fn env(world: &World, app: &str) -> Vec<(String, String)> {
    let shown = world.get(&format!("/v1/apps/{app}/env")).await.expect(200);
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    shown["env"].as_array().unwrap().iter().map(|one| (text(one, "key"), text(one, "value"))).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn a_repository_setting_toggles_previews_of_its_apps() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "web", "https://github.com/me/Shop.git", "off").await;
    make(&world, "ssh", "git@github.com:ME/shop", "all").await;
    make(&world, "told", "https://github.com/me/old-name", "off").await;
    make(&world, "other", "https://github.com/me/other", "off").await;
    make(&world, "lab", "https://gitlab.com/me/shop", "off").await;
    // A ping names its repository.
    let ping = json!({"zen": "Speak like a human.", "repository": {"id": 7, "full_name": "me/shop"}});
    deliver_github(&world, "told", "1", "ping", ping).await.expect(200);
    assert_eq!(world.get("/v1/preview-repos").await.expect(200), json!({"repos": []}));
    let wanted = json!({"github_repo_id": 7, "repo_full_name": "me/shop"});
    let repo = json!({"github_repo_id": 7, "repo_full_name": "me/shop", "enabled": true});
    assert_eq!(world.post("/v1/preview-repos", wanted).await.expect(200), repo);
    assert_eq!(world.get("/v1/preview-repos").await.expect(200), json!({"repos": [repo]}));
    let all = async || {
        let mut all = Vec::new();
        for name in ["web", "ssh", "told", "other", "lab"] {
            all.push(previews(&world, name).await);
        }
        all
    };
    assert_eq!(all().await, ["branches", "all", "branches", "off", "off"]);
    open(&world, "told", 1, false).await.expect(202);
    world.delete("/v1/preview-repos/7").await.expect(204);
    assert_eq!(all().await, ["off"; 5]);
    let open_ones = world.get("/v1/apps/told/previews").await.expect(200);
    assert_eq!(open_ones["items"].as_array().unwrap().len(), 1, "one that is open stays");
    assert_eq!(world.get("/v1/preview-repos").await.expect(200), json!({"repos": []}));
    let gone = world.delete("/v1/preview-repos/7").await.refused(404, "not_found");
    assert!(gone["error"].as_str().unwrap().contains("repository with previews `7` not found"), "{gone}");
}

#[tokio::test]
async fn a_late_repository_match_enables_previews_unless_overridden() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "before", "https://github.com/me/shop", "off").await;
    // Published clients send an empty name if they know none.
    let unnamed = json!({"github_repo_id": 7, "repo_full_name": ""});
    world.post("/v1/preview-repos", unnamed).await.expect(200);
    assert_eq!(previews(&world, "before").await, "off", "nothing says yet that it is of this repository");
    make(&world, "after", "https://github.com/me/shop", "off").await;
    let preview = open(&world, "before", 1, false).await.expect(202);
    assert_eq!(preview["preview"], "pr-1-before");
    assert_eq!(previews(&world, "before").await, "branches");
    let ignored = open(&world, "after", 1, false).await.expect(200);
    assert!(ignored["ignored"].as_str().unwrap().contains("off"), "{ignored}");
    // The last request wins: it turns previews on again.
    world.post("/v1/preview-repos", json!({"github_repo_id": 7})).await.expect(200);
    assert_eq!(previews(&world, "after").await, "branches");
}

#[tokio::test]
async fn only_signed_github_hooks_link_an_app_to_its_repository() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop", "https://git.example/me/shop", "off").await;
    let body = json!({"repository": {"id": 7}});
    let request = world.http.post(format!("{}/v1/hooks/apps/shop", world.base)).json(&body);
    let forged = request.header("x-github-event", "ping").header("x-hub-signature-256", "sha256=00");
    world.send(forged).await.refused(401, "unauthorized");
    // GitLab's repository ids are unrelated to GitHub's.
    let request = world.http.post(format!("{}/v1/hooks/apps/shop", world.base)).json(&body);
    let gitlab = request.header("x-gitlab-event", "Push Hook").header("x-gitlab-token", "hush");
    world.send(gitlab).await.expect(200);
    world.post("/v1/preview-repos", json!({"github_repo_id": 7})).await.expect(200);
    assert_eq!(previews(&world, "shop").await, "off");
    // The delivery names a different repository than the one added.
    deliver_github(&world, "shop", "1", "ping", body).await.expect(200);
    assert_eq!(previews(&world, "shop").await, "branches");
    let moved = json!({"git_url": "https://git.example/me/moved", "previews": "off"});
    world.send(world.request(Method::PATCH, "/v1/apps/shop").json(&moved)).await.expect(200);
    world.post("/v1/preview-repos", json!({"github_repo_id": 7})).await.expect(200);
    assert_eq!(previews(&world, "shop").await, "off");
}

#[tokio::test]
async fn previews_see_variables_of_their_repository() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop", "https://github.com/me/shop", "all").await;
    let at = |key: &str| format!("/v1/repos/7/preview-env/{key}");
    let set = put(&world, &at("SHARED"), json!({"value": "plain", "secret": false})).await.expect(200);
    assert_eq!((&set["key"], &set["secret"]), (&json!("SHARED"), &json!(false)));
    put(&world, &at("TOKEN"), json!({"value": "s3cret", "secret": true})).await.expect(200);
    let dotenv = json!({"dotenv": "A=1\nexport MODE='slow'\n", "secret": false});
    let imported = world.post(&at("import"), dotenv).await.expect(200);
    assert_eq!(imported, json!({"imported": 2, "total": 4}));
    put(&world, "/v1/apps/shop/env/MODE", json!({"value": "fast", "scope": "all"})).await.expect(200);
    put(&world, "/v1/apps/shop/env/A", json!({"value": "0", "scope": "production"})).await.expect(200);
    open(&world, "shop", 1, false).await.expect(202);
    open(&world, "shop", 2, true).await.expect(202);
    assert_eq!(env(&world, "shop").await, pairs(&[("A", "0"), ("MODE", "fast")]));
    let own = [("A", "1"), ("MODE", "fast"), ("SHARED", "plain"), ("TOKEN", "********")];
    assert_eq!(env(&world, "pr-1-shop").await, pairs(&own));
    assert_eq!(env(&world, "pr-2-shop").await, pairs(&own[..3]), "code of anybody sees no secret");
    let shown = world.get("/v1/repos/7/preview-env").await.expect(200);
    let keys: Vec<_> = shown["env"].as_array().unwrap().iter().map(|one| one["key"].clone()).collect();
    assert_eq!(keys, ["A", "MODE", "SHARED", "TOKEN"]);
    assert_eq!(shown["env"][3]["value"], "********");
    assert!(shown["env"][3]["updated_at"].is_string() && !shown.to_string().contains("s3cret"), "{shown}");
    world.delete(&at("TOKEN")).await.expect(204);
    world.delete(&at("TOKEN")).await.refused(404, "not_found");
    assert_eq!(env(&world, "pr-1-shop").await, pairs(&own[..3]));
    // The variables stay when previews are turned off: open previews may be restarted.
    world.post("/v1/preview-repos", json!({"github_repo_id": 7})).await.expect(200);
    world.delete("/v1/preview-repos/7").await.expect(204);
    assert_eq!(env(&world, "pr-1-shop").await, pairs(&own[..3]));
}

#[tokio::test]
async fn preview_repositories_belong_to_one_workspace() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop", "https://github.com/me/shop", "branches").await;
    let wanted = json!({"github_repo_id": 7, "repo_full_name": "me/shop"});
    world.post("/v1/preview-repos", wanted).await.expect(200);
    put(&world, "/v1/repos/7/preview-env/KEY", json!({"value": "1"})).await.expect(200);
    open(&world, "shop", 1, false).await.expect(202);
    assert_eq!(env(&world, "pr-1-shop").await, pairs(&[("KEY", "1")]));
    world.execute("INSERT INTO workspaces (id, created_at_us) VALUES ('other', 1)", &[]).await;
    world.execute("UPDATE preview_repos SET workspace_id = 'other'", &[]).await;
    assert_eq!(world.get("/v1/preview-repos").await.expect(200), json!({"repos": []}));
    assert_eq!(world.get("/v1/repos/7/preview-env").await.expect(200), json!({"env": []}));
    world.delete("/v1/repos/7/preview-env/KEY").await.refused(404, "not_found");
    world.delete("/v1/preview-repos/7").await.refused(404, "not_found");
    assert_eq!(env(&world, "pr-1-shop").await, []);
    assert_eq!(previews(&world, "shop").await, "branches");
}

#[tokio::test]
async fn invalid_repository_ids_and_names_are_rejected() {
    let world = World::start().await;
    for body in [
        json!({}),
        json!({"github_repo_id": 0}),
        json!({"github_repo_id": -7}),
        json!({"github_repo_id": "7"}),
        json!({"github_repo_id": 7, "repo_full_name": "shop"}),
        json!({"github_repo_id": 7, "repo_full_name": "https://github.com/me/shop"}),
    ] {
        world.post("/v1/preview-repos", body).await.refused(400, "bad_request");
    }
    let value = json!({"value": "1"});
    for id in ["0", "-7", "me", "99999999999999999999"] {
        let refused = world.get(&format!("/v1/repos/{id}/preview-env")).await.refused(400, "bad_request");
        assert!(refused["error"].as_str().unwrap().contains("positive integer"), "{refused}");
        put(&world, &format!("/v1/repos/{id}/preview-env/A"), value.clone())
            .await
            .refused(400, "bad_request");
        world.delete(&format!("/v1/preview-repos/{id}")).await.refused(400, "bad_request");
    }
    let at = "/v1/repos/7/preview-env";
    put(&world, &format!("{at}/1A"), value).await.refused(400, "bad_request");
    put(&world, &format!("{at}/A"), json!({"value": "x".repeat(65_537)})).await.refused(400, "bad_request");
    put(&world, &format!("{at}/A"), json!({"value": 1})).await.refused(400, "bad_request");
    let import = |dotenv: String| world.post("/v1/repos/7/preview-env/import", json!({"dotenv": dotenv}));
    import("nonsense".to_owned()).await.refused(400, "bad_request");
    let lines = |count: usize| (0..count).map(|n| format!("A{n}=1\n")).collect::<String>();
    import(lines(225)).await.refused(400, "bad_request");
    assert_eq!(world.get(at).await.expect(200), json!({"env": []}), "nothing is left of what was refused");
    assert_eq!(import(lines(224)).await.expect(200), json!({"imported": 224, "total": 224}));
    put(&world, &format!("{at}/B"), json!({"value": "1"})).await.refused(400, "bad_request");
}

#[tokio::test]
async fn too_many_variables_fail_the_preview_with_a_message() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    make(&world, "shop", "https://github.com/me/shop", "branches").await;
    let lines: String = (0..200).map(|n| format!("A{n}=1\n")).collect();
    world.post("/v1/apps/shop/env/import", json!({"dotenv": lines.clone()})).await.expect(200);
    let more = json!({"dotenv": lines.replace('A', "B")});
    world.post("/v1/repos/7/preview-env/import", more).await.expect(200);
    let begun = open(&world, "shop", 1, false).await.expect(202);
    let path = format!("/v1/apps/pr-1-shop/deploys/{}", begun["deployment_id"].as_str().unwrap());
    crate::harness::eventually("it fails", || async {
        world.get(&path).await.expect(200)["status"] == "failed"
    })
    .await;
    let ended = world.get(&path).await.expect(200);
    assert!(ended["error"].as_str().unwrap().contains("400 variables, but the limit is 224"), "{ended}");
}
