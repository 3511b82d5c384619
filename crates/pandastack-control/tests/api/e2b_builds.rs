//! Requests that E2B's published clients send to build a template.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_agent::FakeAgent;
use crate::harness::{Answer, World, eventually};
use crate::template_builds::no_machines;

/// Sum of the files of a copy, as the clients compute it.
const FILES_HASH: &str = "7f83b1657ff1fc53b92dc18148a1d65dfc2d4b1fa3d677284addd200126d9069";

async fn ask(world: &World, method: Method, path: &str, body: Option<Value>) -> Answer {
    let request = world.http.request(method, format!("{}{path}", world.base));
    let request = request.header("x-api-key", &world.token);
    world.send(body.iter().fold(request, |request, body| request.json(body))).await
}

async fn get(world: &World, path: &str) -> Answer {
    ask(world, Method::GET, path, None).await
}

/// Ids of a template and of a new build of it, for use in a path.
async fn begin(world: &World, body: Value) -> (String, String) {
    let made = ask(world, Method::POST, "/v3/templates", Some(body)).await.expect(202);
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    assert_eq!(made["public"], false);
    (text("templateID").replace('@', "%40"), text("buildID"))
}

async fn start(world: &World, (template, build): &(String, String), body: Value) -> Answer {
    ask(world, Method::POST, &format!("/v2/templates/{template}/builds/{build}"), Some(body)).await
}

/// Polls as the clients do: until the build ended and a page is empty. Returns the first last state, and messages.
async fn followed(world: &World, (template, build): &(String, String)) -> (Value, Vec<String>) {
    let (mut messages, mut ended) = (Vec::new(), None);
    let deadline = tokio::time::Instant::now() + crate::harness::PATIENCE;
    loop {
        let offset = messages.len();
        let path = format!("/templates/{template}/builds/{build}/status?logsOffset={offset}&limit=3");
        let status = get(world, &path).await.expect(200);
        let page = status["logEntries"].as_array().unwrap();
        assert!(page.len() <= 3, "{status}");
        messages.extend(page.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()));
        let is_over = matches!(status["status"].as_str().unwrap(), "ready" | "error");
        if is_over && page.is_empty() {
            return (ended.unwrap_or(status), messages);
        }
        ended = ended.or(is_over.then_some(status));
        assert!(tokio::time::Instant::now() < deadline, "{messages:?}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn commands(agent: &FakeAgent) -> Vec<Value> {
    agent.lock().commands.iter().map(|(_, body)| body.clone()).collect()
}

#[tokio::test]
async fn a_template_is_built_tagged_used_and_deleted() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let ids = begin(&world, json!({"name": "mine:v1", "cpuCount": 1, "memoryMB": 512})).await;
    let link = get(&world, &format!("/templates/{}/files/{FILES_HASH}", ids.0)).await.expect(201);
    assert_eq!(link["present"], false);
    let url = link["url"].as_str().unwrap();
    assert!(url.starts_with(&world.base), "{url}");
    for changed in [url.replace("signature=", "signature=0"), url.replace(&ids.1, "other")] {
        let put = world.http.put(changed).body("tar").send().await.unwrap();
        assert_eq!(put.status(), 401, "no key, and not what was signed");
    }
    assert_eq!(world.http.put(url).body("tar").send().await.unwrap().status(), 204);
    let body = json!({
        "fromImage": "e2bdev/base", "force": false,
        "steps": [
            {"type": "COPY", "args": ["a.txt", "app/", "", "0755"], "force": false, "filesHash": FILES_HASH},
            {"type": "ENV", "args": ["A", "line\nbreak"], "force": false},
            {"type": "RUN", "args": ["one \"$A\""], "force": false},
            {"type": "RUN", "args": ["two", "root"], "force": false},
        ],
        "startCmd": "", "readyCmd": "is-ready",
    });
    start(&world, &ids, body.clone()).await.expect(202);
    let (status, messages) = followed(&world, &ids).await;
    assert_eq!((&status["status"], &status["buildID"]), (&json!("ready"), &json!(ids.1)), "{messages:?}");
    let shown = [
        "[base] FROM base",
        "[1/5] COPY a.txt app/",
        "[3/5] RUN one \"$A\"",
        "one \"$A\"",
        "[5/5] ready check",
    ];
    for message in shown {
        assert!(messages.iter().any(|one| one == message), "{message}: {messages:?}");
    }
    let ran = commands(&agent);
    assert_eq!(ran[0]["argv"], json!(["/bin/bash", "-l", "-c", "one \"$A\""]));
    let seen = (&ran[0]["user"], &ran[0]["cwd"], &ran[0]["env"]["A"], &ran[1]["user"]);
    assert_eq!(seen, (&json!("user"), &json!("/home/user"), &json!("line\nbreak"), &json!("root")));
    let unpacked = |seen: &String| seen.contains("/fs/tar?path=/home/user/app&user=user");
    assert!(agent.lock().seen.iter().any(unpacked), "{:?}", agent.lock().seen);
    no_machines(&agent).await;

    // Only its tag means it.
    world.post("/v1/sandboxes", json!({"template": "mine"})).await.refused(404, "not_found");
    let sandbox = ask(&world, Method::POST, "/v2/sandboxes", Some(json!({"templateID": "mine:v1"}))).await;
    assert_eq!(sandbox.expect(201)["templateID"], "mine");
    let tags = json!({"target": "mine:v1", "tags": ["default", "v2"]});
    let tagged = ask(&world, Method::POST, "/templates/tags", Some(tags)).await.expect(201);
    assert_eq!(tagged, json!({"tags": ["default", "v2"], "buildID": ids.1}));
    let made =
        ask(&world, Method::POST, "/v2/sandboxes", Some(json!({"templateID": ids.0.replace("%40", "@")})))
            .await;
    assert_eq!(made.expect(201)["templateID"], "mine", "an id of a template means its default version");
    let gone = json!({"name": "mine", "tags": ["v2"]});
    ask(&world, Method::DELETE, "/templates/tags", Some(gone)).await.expect(204);
    let listed = get(&world, "/templates/mine/tags").await.expect(200);
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|one| one["tag"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "v1"]);
    let absent = json!({"target": "mine:v9", "tags": ["x"]});
    assert_eq!(ask(&world, Method::POST, "/templates/tags", Some(absent)).await.expect(404)["code"], 404);

    assert_eq!(get(&world, "/templates/aliases/mine").await.expect(200)["public"], false);
    get(&world, "/templates/aliases/other").await.expect(404);
    let listed = get(&world, "/templates").await.expect(200);
    assert_eq!((&listed[0]["templateID"], &listed[0]["buildID"]), (&json!("mine"), &json!(ids.1)));
    assert_eq!(get(&world, "/templates/mine").await.expect(200)["builds"][0]["status"], "ready");
    for (path, public) in [("/v2/templates/mine", true), ("/templates/mine", false)] {
        let updated = ask(&world, Method::PATCH, path, Some(json!({"public": public}))).await.expect(200);
        assert_eq!(updated, json!({"names": ["mine"]}));
        assert_eq!(get(&world, "/templates").await.expect(200)[0]["public"], public);
        assert_eq!(world.get("/v1/templates/mine").await.expect(200)["sharing"]["public"], public);
    }
    ask(&world, Method::PATCH, "/templates/other", Some(json!({"public": true}))).await.expect(404);
    ask(&world, Method::PATCH, "/templates/base", Some(json!({"public": true}))).await.expect(404);

    // Without changes nothing runs; forced, everything.
    let ran = ran.len();
    for (force, expect) in [(false, ran), (true, ran + 2)] {
        let ids = begin(&world, json!({"name": "mine", "cpuCount": 1, "memoryMB": 512})).await;
        let mut body = body.clone();
        body["force"] = force.into();
        start(&world, &ids, body).await.expect(202);
        assert_eq!(followed(&world, &ids).await.0["status"], "ready");
        assert_eq!(commands(&agent).len(), expect);
    }
    ask(&world, Method::DELETE, "/templates/mine", None).await.expect(204);
    ask(&world, Method::DELETE, "/templates/mine", None).await.expect(404);
    get(&world, "/templates/aliases/mine").await.expect(404);
}

#[tokio::test]
async fn failing_and_forced_steps_are_identified_by_number() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let run = |command: &str, force: bool| json!({"type": "RUN", "args": [command], "force": force});
    let build = async |steps: Value| {
        let ids = begin(&world, json!({"name": "mine"})).await;
        let body = json!({"fromTemplate": "base", "steps": steps, "force": false});
        start(&world, &ids, body).await.expect(202);
        followed(&world, &ids).await
    };
    let (failed, messages) = build(json!([run("one", false), run("fail", false)])).await;
    let reason = &failed["reason"];
    assert_eq!((&failed["status"], &reason["step"]), (&json!("error"), &json!("2")), "{messages:?}");
    assert_eq!(reason["message"], "step 2 (`RUN fail`): the command failed with exit code 3");
    assert_eq!(reason["logEntries"][1]["message"], "the reason");

    let steps = |force| json!([run("one", false), run("two", force), run("three", force)]);
    let names = || -> Vec<String> {
        let last = |body: &Value| body["argv"][3].as_str().unwrap().to_owned();
        commands(&agent).iter().map(last).collect()
    };
    assert_eq!(build(steps(false)).await.0["status"], "ready");
    assert_eq!(names(), ["one", "fail", "two", "three"]);
    assert_eq!(build(steps(true)).await.0["status"], "ready");
    assert_eq!(names()[4..], ["two", "three"], "from the first forced step on");

    // A missing base is reported as a failure of the step `base`.
    let ids = begin(&world, json!({"name": "mine"})).await;
    start(&world, &ids, json!({"fromImage": "missing", "steps": [run("one", false)]})).await.expect(202);
    assert_eq!(followed(&world, &ids).await.0["reason"]["step"], "base");
}

#[tokio::test]
async fn a_build_continues_as_the_user_of_the_tag_it_starts_from() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let build = async |body: Value, start_body: Value| {
        let ids = begin(&world, body).await;
        start(&world, &ids, start_body).await.expect(202);
        let (ended, messages) = followed(&world, &ids).await;
        assert_eq!(ended["status"], "ready", "{messages:?}");
        ids
    };
    for (name, user) in [("mine:v1", "root"), ("mine", "user")] {
        let steps = json!([{"type": "USER", "args": [user]}]);
        build(json!({"name": name}), json!({"fromTemplate": "base", "steps": steps})).await;
    }
    let native = world.get("/v1/templates/mine:v1").await.expect(200);
    assert_eq!((&native["name"], &native["version"]["config"]["user"]), (&json!("mine"), &json!("root")));
    world.get("/v1/templates/mine:v9").await.refused(404, "not_found");

    let ids = begin(&world, json!({"name": "next"})).await;
    let link = get(&world, &format!("/templates/{}/files/{FILES_HASH}", ids.0)).await.expect(201);
    assert_eq!(world.http.put(link["url"].as_str().unwrap()).body("tar").send().await.unwrap().status(), 204);
    let copy = json!({"type": "COPY", "args": ["a", "/srv/", "", ""], "filesHash": FILES_HASH});
    start(&world, &ids, json!({"fromTemplate": "mine:v1", "steps": [copy]})).await.expect(202);
    assert_eq!(followed(&world, &ids).await.0["status"], "ready");
    let unpacked = |seen: &String| seen.contains("/fs/tar?path=/srv&user=root");
    assert!(agent.lock().seen.iter().any(unpacked), "{:?}", agent.lock().seen);

    let ids = begin(&world, json!({"name": "next"})).await;
    start(&world, &ids, json!({"fromTemplate": "mine:v9", "steps": []})).await.expect(404);
}

#[tokio::test]
async fn an_image_gets_the_user_of_these_clients() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let ids = begin(&world, json!({"name": "mine"})).await;
    let login = json!({"type": "registry", "username": "me", "password": "s3cret"});
    let steps = json!([{"type": "RUN", "args": ["one"]}]);
    let body = json!({"fromImage": "ghcr.io/team/app:v1", "fromImageRegistry": login, "steps": steps});
    start(&world, &ids, body).await.expect(202);
    let (ended, messages) = followed(&world, &ids).await;
    assert_eq!(ended["status"], "ready", "{messages:?}");
    let commands = commands(&agent);
    let fetch: Value = serde_json::from_str(commands[0]["stdin"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&fetch["registry"], &fetch["credentials"]["password"]),
        (&json!("ghcr.io"), &json!("s3cret"))
    );
    let add_user = commands.iter().find(|body| body["argv"][0] == "/bin/sh").unwrap();
    assert_eq!(add_user["user"], "root");
    assert!(add_user["argv"][2].as_str().unwrap().contains("useradd"));
    let one = commands.last().unwrap();
    assert_eq!(
        (&one["argv"][3], &one["user"], &one["cwd"]),
        (&json!("one"), &json!("user"), &json!("/home/user"))
    );
}

#[tokio::test]
async fn an_invalid_build_start_fails_the_build() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    for (body, status, part) in [
        (json!({"fromImage": "Debian", "steps": []}), 400, "invalid image"),
        (json!({"fromImage": "a", "fromImageRegistry": {"type": "aws"}}), 400, "`aws_region`"),
        (json!({"fromTemplate": "nothing", "steps": []}), 404, "`nothing` not found"),
        (json!({"fromTemplate": "base", "steps": [{"type": "ADD", "args": ["a"]}]}), 400, "step 1: `ADD`"),
        (
            json!({"fromTemplate": "base", "steps": [{"type": "ENV", "args": ["A B", "1"]}]}),
            400,
            "variable name",
        ),
        (json!({"steps": []}), 400, "fromTemplate"),
    ] {
        let ids = begin(&world, json!({"name": "mine"})).await;
        let refused = start(&world, &ids, body).await.expect(status);
        assert_eq!(refused["code"], status);
        assert!(refused["message"].as_str().unwrap().contains(part), "{refused}");
        assert_eq!(followed(&world, &ids).await.0["status"], "error");
    }
    let ids = begin(&world, json!({"name": "mine"})).await;
    let other = (ids.0.clone(), "00000000-0000-4000-8000-000000000000".to_owned());
    start(&world, &other, json!({"fromTemplate": "base"})).await.expect(404);
    start(&world, &("base".to_owned(), ids.1.clone()), json!({"fromTemplate": "base"})).await.expect(404);
    start(&world, &ids, json!({"fromTemplate": "base", "steps": []})).await.expect(202);
    eventually("it is built", || async { followed(&world, &ids).await.0["status"] == "ready" }).await;
    start(&world, &ids, json!({"fromTemplate": "base", "steps": []})).await.expect(409);
    assert_eq!(followed(&world, &ids).await.0["status"], "ready", "a second start changes nothing");
    get(&world, &format!("/templates/mine/files/{FILES_HASH}")).await.expect(400);
    ask(&world, Method::POST, "/v3/templates", Some(json!({}))).await.expect(400);
    ask(&world, Method::POST, "/v3/templates", Some(json!({"name": "base"}))).await.expect(400);
    let nobody = world.http.post(format!("{}/v3/templates", world.base)).json(&json!({"name": "mine"}));
    assert_eq!(world.send(nobody).await.status, 401);
    assert_eq!(agent.lock().creates, 1, "only the build that started made a machine");
}
