//! Templates from container images. The fake agent plays the scripts that fetch and unpack them.

use serde_json::{Value, json};

use crate::fake_agent::FakeAgent;
use crate::harness::World;
use crate::template_builds::{begin, ended, no_machines};

const PINNED: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The last word of every command so far, which it forgets.
fn take_commands(agent: &FakeAgent) -> Vec<String> {
    let commands = std::mem::take(&mut agent.lock().commands);
    let last = |body: &Value| body["argv"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned();
    commands.iter().map(|(_, body)| last(body)).collect()
}

async fn build(world: &World, dockerfile: &str) -> Value {
    let id = begin(world, "mine", dockerfile).await;
    ended(world, &id).await
}

#[tokio::test]
async fn an_image_is_fetched_once_per_digest_and_gives_its_configuration() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let text = "FROM python:3.12 AS made\nRUN one\n";
    let unpacked = ["/srv/pull/pull.py", "sha256:one", "sha256:two", "install"];
    let done = build(&world, text).await;
    assert_eq!((&done["status"], &done["cached_steps"]), (&json!("done"), &json!(0)), "{done}");
    {
        let inner = agent.lock();
        let (fetching, unpacking) = (&inner.commands[0].0, &inner.commands[1].0);
        assert_ne!(fetching, unpacking, "the machine that is saved is not the one with credentials");
        assert_ne!(unpacking, &inner.commands[4].0, "steps run in a machine that got its names");
        let one = &inner.commands[4].1;
        assert_eq!(
            (&one["env"]["IMAGE"], &one["user"], &one["cwd"]),
            (&json!("yes"), &json!("app"), &json!("/work"))
        );
    }
    assert_eq!(take_commands(&agent), [&unpacked[..], &["one"]].concat());
    let template = world.get("/v1/templates/mine").await.expect(200);
    assert_eq!(template["version"]["config"]["cmd"], json!(["/run"]));
    assert_eq!(template["base"], "python:3.12");
    no_machines(&agent).await;

    assert_eq!(build(&world, text).await["cached_steps"], 1);
    assert_eq!(take_commands(&agent), [""; 0], "nothing changed");
    build(&world, "FROM docker.io/library/python:3.12\nRUN two\n").await;
    assert_eq!(take_commands(&agent), ["two"], "another name of the same image");
    agent.lock().image_push = 1;
    assert_eq!(build(&world, text).await["cached_steps"], 0, "the tag moved");
    assert_eq!(take_commands(&agent), [&unpacked[..], &["one"]].concat());

    // A digest says everything: the registry is asked once.
    let pinned = format!("FROM ghcr.io/team/app@{PINNED}\nRUN one\n");
    agent.lock().image_push = 2;
    assert_eq!(build(&world, &pinned).await["status"], "done");
    take_commands(&agent);
    agent.lock().image_push = 3;
    assert_eq!(build(&world, &pinned).await["cached_steps"], 1);
    assert_eq!(take_commands(&agent), [""; 0]);

    build(&world, "FROM scratch\nRUN [\"/app\"]\n").await;
    assert_eq!(take_commands(&agent), ["install", "/app"]);
}

#[tokio::test]
async fn an_image_that_cannot_be_used_is_named_and_leaves_nothing() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    for (dockerfile, line, part) in [
        (
            "FROM base\n\nFROM team/missing\n",
            3,
            "line 3 (`FROM team/missing`): image `missing` has no `latest`",
        ),
        ("FROM missing\n", 1, "template `missing` not found; as an image of Docker Hub: image"),
        ("FROM Team/App\n", 1, "invalid image `Team/App`"),
        ("FROM My-App\n", 1, "template `My-App` not found; as an image of Docker Hub: invalid image"),
        ("FROM base:3.12\n", 1, "FROM docker.io/library/base:3.12"),
        ("FROM oci-layout://../x\n", 1, "points outside of the build files"),
        ("FROM --platform=linux/arm64 python\n", 1, "linux/arm64"),
    ] {
        let failed = build(&world, dockerfile).await;
        let message = failed["error"].as_str().unwrap_or_default();
        assert!(message.contains(part), "{dockerfile}: {failed}");
        assert_eq!(failed["failure"]["line"], line, "{dockerfile}: {failed}");
        no_machines(&agent).await;
        assert!(agent.lock().snapshots.is_empty(), "{dockerfile}");
    }

    // The name of a template never means somebody else's image.
    build(&world, "FROM base\nRUN one\n").await;
    let failed = build(&world, "FROM mine:v9\n").await;
    assert!(failed["error"].as_str().unwrap().contains("template `mine` has no tag `v9`"), "{failed}");
    let template = build(&world, "FROM mine\nRUN two\n").await;
    assert_eq!(template["status"], "done", "{template}");
}

#[tokio::test]
async fn files_are_copied_from_an_image_that_no_stage_names() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let text =
        "FROM base\nCOPY --from=nginx:1.27 /etc/nginx /etc/nginx\nCOPY --from=nginx:1.27 /a /b\nRUN one\n";
    let done = build(&world, text).await;
    assert_eq!((&done["status"], &done["steps"]), (&json!("done"), &json!(5)), "{done}");
    let fetched = take_commands(&agent).iter().filter(|word| *word == "/srv/pull/pull.py").count();
    assert_eq!(fetched, 1, "the image is fetched once");
    assert_eq!(build(&world, text).await["cached_steps"], 3);
    agent.lock().image_push = 1;
    assert_eq!(build(&world, text).await["cached_steps"], 0, "the tag moved");
    let failed = build(&world, "FROM base\nCOPY --from=team/missing /a /b\n").await;
    let message = failed["error"].as_str().unwrap();
    assert!(message.contains("line 2 (`COPY --from=team/missing`): image `missing`"), "{failed}");
    no_machines(&agent).await;
}

#[tokio::test]
async fn credentials_go_to_their_registry_and_are_not_kept() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let login = |at: &str| json!({"registry": at, "username": "me", "password": format!("for-{at}")});
    let text = "FROM ghcr.io/team/app\nFROM quay.io/other\nRUN one\nCOPY --from=0 /a /b\n";
    let mut logins = [login("https://GHCR.io"), login("index.docker.io")];
    logins[0]["aws_region"] = json!("eu-central-1");
    let start = json!({"dockerfile": text, "registries": logins, "plain_http": ["quay.io"]});
    let body = json!({"name": "mine", "start": start});
    let id = world.post("/v1/templates/builds", body).await.expect(202)["id"].as_str().unwrap().to_owned();
    ended(&world, &id).await;
    let fetches: Vec<Value> = {
        let inner = agent.lock();
        let stdin = inner.commands.iter().filter_map(|(_, body)| body["stdin"].as_str());
        stdin.map(|text| serde_json::from_str(text).unwrap()).collect()
    };
    assert_eq!(fetches[0]["credentials"]["password"], "for-https://GHCR.io");
    assert_eq!(fetches[0]["credentials"]["aws_region"], "eu-central-1");
    assert!(fetches.iter().all(|one| one["plain_http"] == (one["registry"] == "quay.io")), "{fetches:?}");
    assert!(
        fetches.iter().filter(|one| one["registry"] != "ghcr.io").all(|one| one["credentials"].is_null())
    );
    let spec = world.text(&format!("SELECT spec FROM template_builds WHERE id = '{id}'")).await;
    assert!(!spec.contains("registries") && !spec.contains("for-"), "{spec}");
    let of_aws =
        |region: &str| json!([{"registry": "a", "username": "b", "password": "c", "aws_region": region}]);
    for wrong in [
        json!([{"registry": "a", "username": "b:c", "password": "d"}]),
        json!([{"registry": "a"}]),
        of_aws("evil.test/"),
        of_aws(""),
    ] {
        let body = json!({"name": "mine", "start": {"dockerfile": "FROM base", "registries": wrong}});
        world.post("/v1/templates/builds", body).await.refused(400, "bad_request");
    }
}
