//! Functions: requirements on every store; listed in `main.rs`.

use jiff::{SignedDuration, Timestamp};
use pandastack_types::api::{FunctionRunStatus, Runtime};
use pandastack_types::{FunctionId, RunId, SandboxId, WorkspaceId};

use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, FunctionSpec, RunRecord, RunSelect};
use pandastack_store::{Store, StoreError};

fn workspace() -> WorkspaceId {
    WorkspaceId::default_workspace()
}

pub(super) fn new_function(name: &str) -> FunctionRecord {
    FunctionRecord {
        id: FunctionId::random(),
        workspace: workspace(),
        name: name.to_owned(),
        version: 0,
        created_at: now(),
        updated_at: now(),
        spec: FunctionSpec { runtime: Runtime::Python, ..FunctionSpec::default() },
    }
}

async fn function(store: &dyn Store, name: &str) -> FunctionRecord {
    let record = new_function(name);
    store.insert_function(&record).await.unwrap();
    record
}

pub(super) async fn functions_are_found_by_id_and_name_and_their_changes_counted(store: &dyn Store) {
    let before = store.function_changes();
    let first = function(store, "first").await;
    // Its name is another function's id, which takes precedence.
    let second = function(store, first.id.as_str()).await;
    let found =
        async |text: &str| store.function_named(&workspace(), text).await.unwrap().map(|found| found.id);
    assert_eq!(found("first").await, Some(first.id.clone()));
    assert_eq!(found(first.id.as_str()).await, Some(first.id.clone()));
    assert_eq!(found(second.id.as_str()).await, Some(second.id.clone()));
    assert_eq!(found("third").await, None);
    let elsewhere = "another".parse().unwrap();
    assert!(store.function_named(&elsewhere, "first").await.unwrap().is_none());
    let after = store.function_changes();
    assert_eq!(after, before + 2);
    store.call_version(&first.id, 1, now()).await.unwrap();
    store.update_function(&FunctionRecord { name: "renamed".to_owned(), ..first.clone() }).await.unwrap();
    store.delete_function(&second.id).await.unwrap();
    assert_eq!(store.function_changes(), after + 3);
    assert_eq!(found(first.id.as_str()).await, Some(first.id.clone()));
    store.delete_function(&first.id).await.unwrap();
}

/// A queued call, due at that time.
pub(super) fn queued(function: &FunctionRecord, due_at: Timestamp) -> RunRecord {
    let record = RunRecord::queued(function, RunId::random(), 1, b"{}".to_vec(), now());
    RunRecord { due_at: Some(due_at), ..record }
}

fn ids(records: &[RunRecord]) -> Vec<&RunId> {
    records.iter().map(|record| &record.run.id).collect()
}

pub(super) async fn calls_are_due_in_order_and_without_those_of_full_functions(store: &dyn Store) {
    let (busy, other) = (function(store, "busy").await, function(store, "other").await);
    let at = |seconds: i64| now() + SignedDuration::from_secs(seconds);
    let (first, second, later) = (queued(&busy, at(-20)), queued(&other, at(-10)), queued(&other, at(3600)));
    for record in [&second, &later, &first] {
        store.enqueue_run(record).await.unwrap();
    }
    let due = store.runs_due(now(), 10, &[]).await.unwrap();
    assert_eq!(ids(&due), [&first.run.id, &second.run.id]);
    assert_eq!(ids(&store.runs_due(now(), 1, &[]).await.unwrap()), [&first.run.id]);
    let without = [busy.id.clone()];
    assert_eq!(ids(&store.runs_due(now(), 10, &without).await.unwrap()), [&second.run.id]);
    assert_eq!(store.next_run_due(&[]).await.unwrap(), first.due_at);
    assert_eq!(store.next_run_due(&without).await.unwrap(), second.due_at);
    // A call in progress is not due; a starting server finds it as interrupted.
    let running = RunRecord { due_at: None, ..first.clone() };
    store.put_runs(std::slice::from_ref(&running)).await.unwrap();
    assert_eq!(ids(&store.runs_interrupted().await.unwrap()), [&first.run.id]);
    store.delete_function(&busy.id).await.unwrap();
    store.put_runs(&[running]).await.unwrap();
    let gone = store.function_run(&workspace(), &busy.id, &first.run.id).await;
    assert!(matches!(gone, Err(StoreError::NotFound { .. })), "a call goes with its function");
}

pub(super) async fn dead_letters_are_found_and_used_time_is_summed(store: &dyn Store) {
    let function = function(store, "mine").await;
    let ended = |status, event: Option<&[u8]>| {
        let mut record = queued(&function, now());
        (record.queued, record.due_at, record.event) = (false, None, event.map(<[u8]>::to_vec));
        record.run.status = status;
        record.run.ended_at = Some(now());
        record.run.sandbox_id = Some(SandboxId::random());
        record
    };
    let good = RunRecord { used_ms: Some(5), ..ended(FunctionRunStatus::Success, None) };
    let failed = RunRecord { used_ms: Some(7), ..ended(FunctionRunStatus::Error, None) };
    let dead = RunRecord { used_ms: Some(30), ..ended(FunctionRunStatus::Timeout, Some(b"{}")) };
    store.put_runs(&[good.clone(), failed, dead.clone()]).await.unwrap();
    let select = RunSelect { dead_letters: true, limit: 10 };
    assert_eq!(ids(&store.function_runs(&function.id, select).await.unwrap()), [&dead.run.id]);
    assert_eq!(store.count_dead_letters(&function.id).await.unwrap(), 1);
    let all = RunSelect { dead_letters: false, limit: 10 };
    assert_eq!(store.function_runs(&function.id, all).await.unwrap().len(), 3);
    // Written again without anything new, nothing is used.
    store.put_runs(&[RunRecord { used_ms: None, ..good }]).await.unwrap();
    let (from, to) = (Timestamp::from_second(0).unwrap(), now() + SignedDuration::from_secs(60));
    let used = store.usage_by_function(&workspace(), from, to, 10).await.unwrap();
    assert_eq!(used.len(), 1);
    assert_eq!((&used[0].function_id, used[0].calls, used[0].billed_ms), (&function.id, 3, 42));
    let total = store.usage(&workspace(), from, to).await.unwrap();
    assert_eq!((total.calls, total.billed_ms, total.creates), (3, 42, 0));
    assert_eq!(store.usage_by_sandbox(&workspace(), from, to, 10).await.unwrap().len(), 3);
}
