use std::sync::Arc;

use reqwest::Method;
use serde_json::json;
use tokio::sync::Notify;

use crate::harness::{World, eventually};

#[tokio::test]
async fn concurrent_network_changes_keep_host_and_record_consistent() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let path = format!("/v1/sandboxes/{}/network", world.create().await);
    let put = |egress: &str| world.send(world.request(Method::PUT, &path).json(&json!({ "egress": egress })));
    let gate = Arc::new(Notify::new());
    agent.lock().network_gate = Some(Arc::clone(&gate));
    // If the second change did not wait for the first, the first would be answered last.
    let second = async {
        eventually("the first is at the host", || async { !agent.lock().networks.is_empty() }).await;
        let answer = put("all").await;
        gate.notify_one();
        answer
    };
    let (first, second) = tokio::join!(put("none"), second);
    first.expect(200);
    second.expect(200);
    let record = world.get(&path).await.expect(200);
    assert_eq!(agent.lock().networks.last(), Some(&record));
}
