//! The suite on PostgreSQL, and what only several servers on one database can do.

use std::time::Duration;

use pandastack_store::TokenStore;
use pandastack_store::clock::now;
use pandastack_store::replicas::{Replica, ReplicaChange, ReplicaStore, Session};
use pandastack_store::sql::SqlStore;

use super::postgres_server::Server;
use super::{run_all, running, secret, ws};

#[tokio::test]
async fn the_store_passes_the_shared_suite() {
    let Some(server) = Server::start("the store's suite on PostgreSQL") else { return };
    run_all(|| async { SqlStore::postgres(&server.database().await, &secret()).await.unwrap() }).await;
}

/// The news of a session until something of a kind is among them.
async fn wait_for_change(
    session: &mut dyn Session,
    wanted: impl Fn(&ReplicaChange) -> bool,
) -> ReplicaChange {
    loop {
        let news =
            tokio::time::timeout(Duration::from_secs(10), session.next_changes()).await.unwrap().unwrap();
        if let Some(found) = news.into_iter().find(&wanted) {
            return found;
        }
    }
}

#[tokio::test]
async fn one_server_leads_and_all_are_notified_of_commits() {
    let Some(server) = Server::start("replicas on one PostgreSQL database") else { return };
    let url = server.database().await;
    let (one, two) = (
        SqlStore::postgres(&url, &secret()).await.unwrap(),
        SqlStore::postgres(&url, &secret()).await.unwrap(),
    );
    let mut first = one.join("a", "unix:/a").await.unwrap();
    let mut second = two.join("b", "unix:/b").await.unwrap();
    assert!(first.beat().await.unwrap() && first.beat().await.unwrap());
    assert!(!second.beat().await.unwrap());
    let shown =
        |found: Vec<Replica>| found.into_iter().map(|r| (r.instance, r.address, r.leads)).collect::<Vec<_>>();
    let expect = [("a", "unix:/a", true), ("b", "unix:/b", false)].map(|(i, a, l)| (i.into(), a.into(), l));
    assert_eq!(shown(two.replicas().await.unwrap()), expect);
    // Each hears of a commit of either, the committer too.
    one.ensure_workspace(&ws(), now()).await.unwrap();
    let record = running(&one).await;
    for session in [&mut first, &mut second] {
        let created = wait_for_change(
            session.as_mut(),
            |news| matches!(news, ReplicaChange::Event(_, e) if e.kind == "created"),
        )
        .await;
        assert!(
            matches!(created, ReplicaChange::Event(of, event) if of == ws() && event.sandbox_id == record.id)
        );
    }
    two.notify_names_changed().await.unwrap();
    assert_eq!(
        wait_for_change(first.as_mut(), |news| *news == ReplicaChange::Names).await,
        ReplicaChange::Names
    );
    // The end of a session, orderly or not, releases its locks.
    first.leave().await;
    drop(first);
    assert!(second.beat().await.unwrap());
    assert_eq!(two.replicas().await.unwrap().len(), 1);
    drop(second);
    let mut third = one.join("c", "unix:/c").await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !third.beat().await.unwrap() {
        assert!(std::time::Instant::now() < deadline, "a dropped session still leads");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn usage_events_are_append_only() {
    let Some(server) = Server::start("append-only tables on PostgreSQL") else { return };
    let url = server.database().await;
    let store = SqlStore::postgres(&url, &secret()).await.unwrap();
    store.ensure_workspace(&ws(), now()).await.unwrap();
    running(&store).await;
    let pool = sqlx::AnyPool::connect(&url).await.unwrap();
    for change in ["DELETE FROM usage_events", "UPDATE usage_events SET cpu_ms = 0", "TRUNCATE usage_events"]
    {
        assert!(sqlx::query(change).execute(&pool).await.is_err(), "{change}");
    }
}
