//! Every operation of the API's own description, called with keys that must not work: of another
//! workspace, of a viewer, expired, revoked, and none. Nothing may change, and the response to a
//! foreign key must not reveal whether a resource exists.
//!
//! The list comes from the description, so new routes are included. `access.rs` checks that each
//! route has a rule.

use pandastack_control::openapi_json;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::harness::World;
use crate::tenants::{key, world_with};

/// Served without a key in a header: webhooks of Git hosts, which are signed, and sign-in and
/// sign-out.
const WITHOUT_KEY: [&str; 8] = [
    "/v1/hooks/apps/{id}",
    "/v1/console/session",
    "/v1/login",
    "/v1/login/start",
    "/v1/login/callback",
    "/v1/login/device",
    "/v1/login/token",
    "/v1/login/session",
];
/// Operations of viewers that are not GET: it computes times and stores nothing.
const VIEWER_POSTS: [&str; 1] = ["/v1/schedules/preview"];
/// A value of things that may be secret.
const SECRET: &str = "hush-0815";
/// Parts of paths that lead to contents, or wake a machine.
const CONTENTS: [&str; 17] = [
    "/fs",
    "/processes",
    "/exec",
    "/repl",
    "/ports",
    "/tunnel",
    "/ssh",
    "/logs",
    "/log",
    "/code",
    "/runs",
    "/env",
    "/preview-env",
    "/runtime-logs",
    "/stats",
    "/connection",
    "/deploys/{deployment}",
];

pub struct Operation {
    pub method: Method,
    pub path: String,
    pub body: Value,
    /// Fields that the body may have.
    pub fields: Vec<String>,
}

impl Operation {
    /// The path with these names in the place of its parameters.
    pub fn filled(&self, first: &str) -> String {
        let mut first = Some(first);
        let parts = self.path.split('/').map(|part| match part {
            "{alias}" => "live",
            part if part.starts_with('{') => first.take().unwrap_or("1"),
            part => part,
        });
        // Calls that take a file or a port in the query get one.
        format!("{}?path=/etc/hostname&port=80&pattern=x", parts.collect::<Vec<_>>().join("/"))
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

pub fn operations() -> Vec<Operation> {
    let api: Value = serde_json::from_str(&openapi_json()).unwrap();
    let mut found = Vec::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        if !path.starts_with("/v1/") || WITHOUT_KEY.contains(&path.as_str()) {
            continue;
        }
        for (method, operation) in methods.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let body = match (method.as_str(), path.as_str()) {
                // A change of nothing is refused before anything is looked up.
                ("PATCH", "/v1/schedules/{id}") => json!({"paused": true}),
                _ => smallest(&api, schema, 0),
            };
            found.push(Operation { method, path: path.clone(), body, fields: fields(&api, schema) });
        }
    }
    found
}

/// Names of the fields of a schema.
fn fields(api: &Value, schema: &Value) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return fields(api, &api["components"]["schemas"][name]);
    }
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let own = schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned());
    own.chain(parts.flat_map(|part| fields(api, part))).collect()
}

/// A small value of a schema: an object has its required fields.
fn smallest(api: &Value, schema: &Value, depth: u32) -> Value {
    if depth > 6 {
        return Value::Null;
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return smallest(api, &api["components"]["schemas"][name], depth + 1);
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    if let Some(all) = schema["allOf"].as_array() {
        let parts = all.iter().map(|part| smallest(api, part, depth + 1));
        let fields = parts.filter_map(|part| part.as_object().cloned()).flatten();
        return Value::from(Map::from_iter(fields));
    }
    if let Some(first) = schema["oneOf"].get(0) {
        return smallest(api, first, depth + 1);
    }
    match schema["type"].as_str() {
        Some("string") => json!("x"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        _ => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let fields = required.iter().filter_map(Value::as_str);
            let filled =
                fields.map(|name| (name.to_owned(), smallest(api, &schema["properties"][name], depth + 1)));
            Value::from(Map::from_iter(filled))
        }
    }
}

/// Status and body of a response; of a stream, only the head.
pub async fn call(world: &World, key: Option<&str>, operation: &Operation, path: &str) -> (u16, Value) {
    let mut request = world.http.request(operation.method.clone(), format!("{}{path}", world.base));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    if operation.method != Method::GET {
        request = request.json(&operation.body);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.starts_with("application/json") {
        true => (status, response.json().await.unwrap_or_default()),
        false => (status, Value::Null),
    }
}

/// Things of workspace `default`, one of each kind, by the beginning of their routes.
pub struct TestResources(Vec<(&'static str, String)>);

impl TestResources {
    pub async fn make(world: &World) -> Self {
        let id = |made: Value| made["id"].as_str().unwrap().to_owned();
        let sandbox = world.create().await;
        let snapshot = world.post(&format!("/v1/sandboxes/{sandbox}/snapshots"), json!({})).await.expect(201);
        let env = json!({"KEY": SECRET});
        let app = json!({"name": "mine", "git_url": "https://git.example/a.git", "env": env});
        let app = world.post("/v1/apps", app).await.expect(201);
        let function = json!({"name": "mine", "runtime": "python", "env": env});
        let function = world.post("/v1/functions", function).await;
        assert!(function.status < 300, "{}", function.json);
        let schedule = json!({"name": "mine", "every_seconds": 86_400,
            "target": {"type": "http", "url": format!("https://example.com/{SECRET}"), "headers": env, "body": SECRET}});
        let schedule = world.post("/v1/schedules", schedule).await;
        assert!(schedule.status < 300, "{}", schedule.json);
        let volume = "INSERT INTO volumes VALUES ('vol-1', 'default', 'mine', 'host-a', 'ready', 1, 1, \
             '{\"size_bytes\":1}')";
        world.execute(volume, &[]).await;
        let database = "INSERT INTO databases (id, workspace_id, state, sandbox_id, created_at_us, spec) \
             VALUES ('db-1', 'default', 'failed', NULL, 1, '{\"size\":\"1g\"}')";
        world.execute(database, &[]).await;
        let member = "INSERT INTO members (id, workspace_id, email, role, operator, created_at_us) \
             VALUES ('member-1', 'default', 'ada@example.com', 'viewer', 0, 1)";
        world.execute(member, &[]).await;
        let session = "INSERT INTO tokens (prefix, workspace_id, hash, label, created_at_us, role, operator, \
             expires_at_us, member_id, client) VALUES ('pds_session1', 'default', x'00', 'ada@example.com', \
             1, 'viewer', 0, 9000000000000000, 'member-1', 'Test')";
        world.execute(session, &[]).await;
        Self(vec![
            ("/v1/members/{", "member-1".to_owned()),
            ("/v1/members/sessions/{", "pds_session1".to_owned()),
            ("/v1/sandboxes/{", sandbox),
            ("/v1/snapshots/{", id(snapshot)),
            ("/v1/apps/{", id(app)),
            ("/v1/functions/{", id(function.json)),
            ("/v1/schedules/{", id(schedule.json)),
            ("/v1/volumes/{", "mine".to_owned()),
            ("/v1/databases/{", "db-1".to_owned()),
            ("/v1/me/tokens/{", world.token[..12].to_owned()),
            ("/v1/workspaces/{", "default".to_owned()),
        ])
    }

    pub fn of(&self, operation: &Operation) -> Option<&str> {
        let (_, id) = self.0.iter().find(|(start, _)| operation.path.starts_with(start))?;
        Some(id)
    }
}

/// All contents of workspace `default`, as text.
async fn contents(world: &World) -> Vec<String> {
    let mut all = Vec::new();
    for (table, columns) in [
        ("sandboxes", "id || state || incarnation || COALESCE(expires_at_us, '') || metadata || spec"),
        ("snapshots", "id || spec"),
        ("volumes", "id || state || name || spec"),
        ("apps", "id || name || revision || spec"),
        ("functions", "id || spec"),
        ("schedules", "id || paused || revision || spec"),
        ("databases", "id || state || spec"),
        ("deployments", "id || status || spec"),
        ("tokens", "prefix || role || operator || COALESCE(expires_at_us, '') || label"),
        ("members", "id || role || operator || email"),
        ("preview_repos", "github_repo_id || env"),
        ("function_runs", "id || state"),
        ("schedule_runs", "id || state"),
    ] {
        let query = format!(
            "SELECT COALESCE(group_concat(row, char(10)), '') FROM (SELECT {columns} AS row FROM {table} \
             WHERE workspace_id = 'default' ORDER BY 1)"
        );
        all.push(format!("{table}: {}", world.text(&query).await));
    }
    let settings =
        "SELECT state || COALESCE(quota, '') || COALESCE(settings, '') FROM workspaces WHERE id = 'default'";
    all.push(world.text(settings).await);
    all
}

#[tokio::test]
async fn a_key_of_another_workspace_reads_and_changes_nothing() {
    let (world, agent, foreign) = world_with("other").await;
    let things = TestResources::make(&world).await;
    let (before, seen) = (contents(&world).await, agent.lock().seen.len());
    let mut wrong = Vec::new();
    for operation in operations() {
        let Some(id) = things.of(&operation) else {
            let (status, body) = call(&world, Some(&foreign), &operation, &operation.filled("1")).await;
            let text = body.to_string();
            let found = things.0.iter().find(|(_, id)| id.len() > 8 && text.contains(id.as_str()));
            // A workspace's audit log contains the calls of its own keys.
            if (found.is_some() && operation.path != "/v1/audit") || status == 500 {
                wrong.push(format!("{}: {status} {text}", operation.name()));
            }
            continue;
        };
        let unknown =
            if operation.path.contains("{name}") { "none" } else { "00000000-0000-4000-8000-000000000000" };
        let (status, mut body) = call(&world, Some(&foreign), &operation, &operation.filled(id)).await;
        let (same, mut other) = call(&world, Some(&foreign), &operation, &operation.filled(unknown)).await;
        let sentence =
            |body: &mut Value, id: &str| body["error"].as_str().unwrap_or_default().replace(id, "*");
        let (told, expected) = (sentence(&mut body, id), sentence(&mut other, unknown));
        let hidden = if operation.path.starts_with("/v1/workspaces") { 403 } else { 404 };
        if status != hidden || same != status || told != expected {
            wrong.push(format!("{}: {status} {told}, unknown {same} {expected}", operation.name()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(contents(&world).await, before);
    let sandbox = things
        .of(&operations().into_iter().find(|one| one.path.contains("/fs")).unwrap())
        .unwrap()
        .to_owned();
    let reached = agent.lock().seen[seen..].iter().filter(|call| call.contains(&sandbox)).count();
    assert_eq!(reached, 0, "no call reached the machine of another workspace");
}

#[tokio::test]
async fn a_viewer_reads_no_contents_and_changes_nothing() {
    let (world, agent, _) = world_with("other").await;
    let things = TestResources::make(&world).await;
    let viewer = key(&world, "default", json!({"role": "viewer"})).await;
    let (before, seen) = (contents(&world).await, agent.lock().seen.len());
    let mut wrong = Vec::new();
    for operation in operations() {
        let path = operation.filled(things.of(&operation).unwrap_or("1"));
        let (status, body) = call(&world, Some(&viewer), &operation, &path).await;
        let shows =
            |part: &&str| operation.path.contains(&format!("{part}/")) || operation.path.ends_with(*part);
        let contents = CONTENTS.iter().any(shows);
        let changes = operation.method != Method::GET && !VIEWER_POSTS.contains(&operation.path.as_str());
        let manages = [
            "/v1/me/tokens",
            "/v1/audit",
            "/v1/console/sessions",
            "/v1/hosts",
            "/v1/members",
            "/v1/workspaces",
        ];
        let manages = manages.iter().any(|start| operation.path.starts_with(start));
        let refused = status == 403 && body["code"] == "forbidden";
        let told = body.to_string().contains(SECRET);
        if refused != (contents || changes || manages) || status == 500 || told {
            wrong.push(format!("{}: {status} {body}", operation.name()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(contents(&world).await, before);
    let calls = agent.lock().seen[seen..].to_vec();
    // A GET that viewers may cause reads only the agent's own state, and does not wake the machine.
    let waking = calls.iter().filter(|call| !call.starts_with("GET "));
    assert_eq!(waking.count(), 0, "{calls:?}");
}

#[tokio::test]
async fn every_route_rejects_missing_expired_and_revoked_keys() {
    let (world, _agent, _) = world_with("other").await;
    let things = TestResources::make(&world).await;
    let (expired, revoked) =
        (key(&world, "default", json!({})).await, key(&world, "default", json!({})).await);
    world.execute("UPDATE tokens SET expires_at_us = 1 WHERE prefix = $1", &[&expired[..12]]).await;
    world.delete(&format!("/v1/me/tokens/{}", &revoked[..12])).await.expect(204);
    let before = contents(&world).await;
    let mut wrong = Vec::new();
    for operation in operations() {
        let path = operation.filled(things.of(&operation).unwrap_or("1"));
        for (which, key) in [("no", None), ("expired", Some(&expired)), ("revoked", Some(&revoked))] {
            let (status, body) = call(&world, key.map(String::as_str), &operation, &path).await;
            // An address that sent too many invalid keys is rate limited.
            let refused = status == 401 || (key.is_some() && status == 429 && body["code"] == "rate_limited");
            if !refused {
                wrong.push(format!("{} with {which} key: {status} {body}", operation.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(contents(&world).await, before);
}
