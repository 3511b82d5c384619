use pandastack_types::SandboxState;
use serde_json::json;

use crate::harness::{World, eventually};

#[tokio::test]
async fn a_fork_is_a_sandbox_with_a_parent() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let body = json!({"metadata": {"a": "1", "b": "1"}, "env": {"K": "v"}});
    let parent = world.post("/v1/sandboxes", body).await.expect(201);
    let id = parent["id"].as_str().unwrap();
    let child =
        world.post(&format!("/v1/sandboxes/{id}/fork"), json!({"metadata": {"b": "2"}})).await.expect(201);
    assert_eq!((&child["parent_id"], &child["status"]), (&json!(id), &json!("running")));
    let labels = &child["metadata"];
    assert_eq!(
        (&labels["a"], &labels["b"], &labels["fork_parent_id"]),
        (&json!("1"), &json!("2"), &json!(id))
    );
    assert!(labels["fork_tree_id"].is_string());
    assert_eq!(child["pause_ms"], 1.5);
    assert_eq!(agent.ids().len(), 2);
}

#[tokio::test]
async fn a_fork_with_a_count_returns_a_tree() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/fork");
    let tree = world.post(&path, json!({"count": 2, "metadata": {"a": "1"}})).await.expect(201);
    let children = tree["children"].as_array().unwrap();
    assert_eq!((children.len(), &tree["parent_id"]), (2, &json!(id)));
    assert_eq!(children[1]["metadata"]["a"], "1");
    world.post(&path, json!({"count": 0})).await.refused(400, "bad_request");
    let events = world.get(&format!("/v1/sandboxes/{id}/events")).await.expect(200);
    for event in events["events"].as_array().unwrap() {
        assert_eq!(event["type"], event["kind"], "both names of the kind");
    }
}

#[tokio::test]
async fn a_fork_tree_reports_children_and_keeps_the_winner() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    agent.lock().failing_children = [1].into();
    let labels = json!({"explore": "1", "explore_ttl": "600"});
    let tree =
        world.post(&format!("/v1/sandboxes/{id}/fork-tree"), json!({"count": 3, "metadata": labels})).await;
    let tree = tree.expect(201);
    assert_eq!(tree["children"].as_array().unwrap().len(), 2);
    assert_eq!(tree["errors"], json!([{"index": 1, "err": "no memory"}]));
    assert_eq!(tree["children"][0]["metadata"]["fork_tree_id"], tree["tree_id"]);
    assert_eq!(world.ids().await.len(), 3, "the child that failed has no row");
    let winner = tree["children"][1]["id"].as_str().unwrap();
    let sibling = tree["children"][0]["id"].as_str().unwrap();
    let ends = |shown: &serde_json::Value| shown["expires_at"].as_str().unwrap().to_owned();
    let before = world.get(&format!("/v1/sandboxes/{winner}")).await.expect(200);
    let wrong = json!({"tree_id": "another"});
    world.post(&format!("/v1/sandboxes/{winner}/promote"), wrong).await.refused(400, "bad_request");
    let promoted =
        world.post(&format!("/v1/sandboxes/{winner}/promote"), json!({"cleanup_siblings": true})).await;
    let promoted = promoted.expect(200);
    assert_eq!((&promoted["winner"], &promoted["deleted"]), (&json!(winner), &json!([sibling])));
    assert_eq!(promoted["failures"], json!({}));
    let after = world.get(&format!("/v1/sandboxes/{winner}")).await.expect(200);
    assert!(ends(&after) > ends(&before), "a winner has its full lifetime: {before} {after}");
    assert_eq!(agent.ids().len(), 2);
}

#[tokio::test]
async fn a_fork_that_creates_no_child_fails() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    agent.lock().failing_children = [0].into();
    world.post(&format!("/v1/sandboxes/{id}/fork"), json!({})).await.refused(502, "guest_unavailable");
    assert_eq!(world.ids().await, [id]);
}

#[tokio::test]
async fn unpromoted_fork_candidates_are_deleted() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let parent = world.post("/v1/sandboxes", json!({"persistent": true})).await.expect(201);
    let id = parent["id"].as_str().unwrap();
    let labels = json!({"explore": "1", "explore_ttl": "5"});
    world
        .post(&format!("/v1/sandboxes/{id}/fork-tree"), json!({"count": 2, "metadata": labels}))
        .await
        .expect(201);
    assert_eq!(agent.ids().len(), 3);
    eventually("both are gone", || async { agent.ids().len() == 1 && world.ids().await == [id] }).await;
}

#[tokio::test]
async fn failed_snapshots_leave_no_row_and_no_files() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/snapshots");
    let one = world.post(&path, json!({"name": "first"})).await.expect(201);
    assert_eq!((&one["sandbox_id"], &one["size_bytes"]), (&json!(id), &json!(4096)));
    agent.lock().refuse_snapshot = true;
    world.post(&path, json!({})).await.refused(507, "disk_full");
    assert_eq!(agent.lock().snapshots.len(), 1, "what a failed snapshot left is removed");
    let snapshot = one["id"].as_str().unwrap();
    let list = world.get(&format!("/v1/snapshots?sandbox_id={id}")).await.expect(200);
    assert_eq!(list["snapshots"].as_array().unwrap().len(), 1);
    world.delete(&format!("/v1/sandboxes/{id}")).await.expect(204);
    // A snapshot outlives its sandbox; the template that clients always send does not matter.
    let body = json!({"template": "code-interpreter", "from_snapshot": snapshot});
    let made = world.post("/v1/sandboxes", body).await.expect(201);
    assert_eq!((&made["from_snapshot"], &made["template"]), (&json!(snapshot), &json!("base")));
    world.delete(&format!("/v1/snapshots/{snapshot}")).await.expect(204);
    world.get(&format!("/v1/snapshots/{snapshot}")).await.refused(404, "not_found");
    assert!(agent.lock().snapshots.is_empty());
}

#[tokio::test]
async fn a_failed_sandbox_cannot_be_forked() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    agent.set_state(&id, SandboxState::Failed);
    agent.lock().sandboxes.get_mut(&id.parse().unwrap()).unwrap().failure =
        Some("the machine crashed".into());
    agent.report().await;
    let shown = world.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    assert_eq!((&shown["status"], &shown["failure"]), (&json!("failed"), &json!("the machine crashed")));
    let refused = world.post(&format!("/v1/sandboxes/{id}/fork"), json!({})).await;
    let refused = refused.refused(409, "sandbox_failed");
    assert!(refused["error"].as_str().unwrap().contains("the machine crashed"), "{refused}");
    world.delete(&format!("/v1/sandboxes/{id}")).await.expect(204);
}
