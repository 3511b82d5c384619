//! Fields and types of request bodies: every operation of the API's description that takes JSON refuses a
//! field that it does not have, and names the nearest one.

use reqwest::Method;
use serde_json::{Value, json};

use crate::every_route::{TestResources, call, operations};
use crate::harness::World;
use crate::tenants::world_with;

/// The event of a function is the caller's; nothing of it is known here.
const CALLERS_OWN: [&str; 1] = ["/v1/functions/{id}/invoke"];

#[tokio::test]
async fn an_unknown_body_field_is_refused_with_a_suggestion() {
    let (world, _agent, _) = world_with("other").await;
    let things = TestResources::make(&world).await;
    let mut wrong = Vec::new();
    let mut tried = 0;
    for mut operation in operations().into_iter().filter(|operation| !operation.fields.is_empty()) {
        if CALLERS_OWN.contains(&operation.path.as_str()) {
            continue;
        }
        tried += 1;
        let near = operation.fields[0].clone();
        let misspelt = format!("{near}x");
        operation.body[&misspelt] = Value::Null;
        let path = operation.filled(things.of(&operation).unwrap_or("1"));
        // Looked up before the body is read.
        let path = path.replace("/databases/1", "/databases/db-1");
        let (status, body) = call(&world, Some(&world.token), &operation, &path).await;
        let expected = format!("unknown field `{misspelt}`; did you mean `{near}`?");
        if status != 400 || body["error"] != expected.as_str() {
            wrong.push(format!("{}: {status} {body}, not {expected}", operation.name()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 50, "only {tried} operations have a body");
}

#[tokio::test]
async fn a_wrongly_typed_value_is_refused_with_an_explanation() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let sandbox = format!("/v1/sandboxes/{id}");
    for (method, path, body, told) in [
        (
            Method::POST,
            "/v1/sandboxes".to_owned(),
            json!({"ttl_seconds": "long"}),
            "ttl_seconds must be a positive integer, not a string",
        ),
        (
            Method::POST,
            "/v1/sandboxes".to_owned(),
            json!({"metadata": {"n": 1}}),
            "metadata.n must be a string, not 1",
        ),
        (
            Method::POST,
            "/v1/sandboxes".to_owned(),
            json!({"on_timeout": "explode"}),
            "on_timeout must be one of kill, hibernate, not `explode`",
        ),
        (
            Method::POST,
            format!("{sandbox}/exec"),
            json!({"cmd": ["ls"]}),
            "cmd must be a string, not an array",
        ),
        (
            Method::POST,
            format!("{sandbox}/processes"),
            json!({"cmd": "ls", "timeout_seconds": -1}),
            "timeout_seconds must be a positive integer, not -1",
        ),
        (
            Method::PATCH,
            format!("{sandbox}/lifecycle"),
            json!({"persistent": "yes"}),
            "persistent must be true or false, not a string",
        ),
        (
            Method::PUT,
            format!("{sandbox}/network"),
            json!({"allow": "x"}),
            "allow must be an array, not a string",
        ),
    ] {
        let answer = world.send(world.request(method, &path).json(&body)).await;
        assert_eq!(answer.refused(400, "bad_request")["error"], told, "{path} {body}");
    }
}

/// The fields that the published clients send.
#[test]
fn every_client_field_is_in_the_api_description() {
    let known = operations();
    for (method, path, fields) in [
        ("POST", "/v1/sandboxes", "template metadata ttl_seconds persistent from_snapshot volumes"),
        ("POST", "/v1/sandboxes/{id}/exec", "cmd timeout_seconds"),
        ("POST", "/v1/sandboxes/{id}/exec/stream", "cmd timeout_seconds"),
        ("POST", "/v1/sandboxes/{id}/repl/sessions", "language"),
        ("POST", "/v1/sandboxes/{id}/repl/sessions/{context}/run", "code timeout_ms"),
        ("POST", "/v1/sandboxes/{id}/fork", "metadata count"),
        ("POST", "/v1/sandboxes/{id}/fork-tree", "count metadata"),
        ("POST", "/v1/sandboxes/{id}/promote", "cleanup_siblings tree_id"),
        ("PATCH", "/v1/sandboxes/{id}/lifecycle", "ttl_seconds persistent"),
        ("POST", "/v1/volumes", "name size_mb"),
        ("POST", "/v1/databases", "label size always_on cpu memory_mb"),
        ("PATCH", "/v1/databases/{id}", "always_on"),
        ("POST", "/v1/databases/{id}/clone", "label target_time size"),
        (
            "POST",
            "/v1/apps",
            "name git_url git_branch framework install_command build_command start_command root_directory \
             port env template cpu memory_mb",
        ),
        (
            "PATCH",
            "/v1/apps/{id}",
            "git_branch framework install_command build_command start_command root_directory port env \
             template cpu memory_mb",
        ),
        ("POST", "/v1/apps/{id}/deploys", "git_ref"),
        ("POST", "/v1/apps/{id}/rollback", "deployment_id"),
        ("PUT", "/v1/apps/{id}/env/{key}", "value secret scope"),
        ("POST", "/v1/apps/{id}/env/import", "dotenv secret scope"),
        ("POST", "/v1/apps/{id}/domains", "domain"),
        ("POST", "/v1/preview-repos", "github_repo_id repo_full_name"),
        ("PUT", "/v1/repos/{repo}/preview-env/{key}", "value secret"),
        ("POST", "/v1/repos/{repo}/preview-env/import", "dotenv secret"),
        ("POST", "/v1/functions", "name runtime entrypoint template public env code"),
        ("PATCH", "/v1/functions/{id}", "name env public entrypoint template"),
        ("POST", "/v1/functions/{id}/runs", "sandbox_id status exit_code stdout stderr duration_ms"),
        ("POST", "/v1/schedules", "name function_id cron paused"),
        ("PATCH", "/v1/schedules/{id}", "name cron paused"),
        ("POST", "/v1/me/tokens", "label expires_in_days"),
    ] {
        let operation = known.iter().find(|one| one.method == method && one.path == path).expect(path);
        for field in fields.split(' ') {
            assert!(operation.fields.iter().any(|known| known == field), "{method} {path}: {field}");
        }
    }
}
