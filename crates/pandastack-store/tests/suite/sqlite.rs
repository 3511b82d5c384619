//! The suite on SQLite.

use pandastack_store::TokenStore;
use pandastack_store::clock::now;
use pandastack_store::sql::SqlStore;

use super::{run_all, running, secret, ws};

#[tokio::test]
async fn the_store_passes_the_shared_suite() {
    let dir = tempfile::tempdir().unwrap();
    let next = std::sync::atomic::AtomicUsize::new(0);
    run_all(|| {
        let name = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
        let path = dir.path().join(name);
        async move { SqlStore::sqlite(&path, &secret()).await.unwrap() }
    })
    .await;
}

#[tokio::test]
async fn usage_events_are_append_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let store = SqlStore::sqlite(&path, &secret()).await.unwrap();
    store.ensure_workspace(&ws(), now()).await.unwrap();
    running(&store).await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let creates: i64 =
        sqlx::query_scalar("SELECT SUM(creates) FROM usage_events").fetch_one(&pool).await.unwrap();
    assert_eq!(creates, 1);
    assert!(sqlx::query("DELETE FROM usage_events").execute(&pool).await.is_err());
    assert!(sqlx::query("UPDATE usage_events SET cpu_ms = 0").execute(&pool).await.is_err());
}
