//! Runs work to completion or undoes it, even if the caller is cancelled.
//!
//! A dropped future stops at its last await, which can be between the birth of a process and the guard that would end it.
//! Such work runs as a task of the engine instead.

use std::future::Future;

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::{EngineError, Result};

/// Runs `work` to its end. If the caller is gone by then, `undo` reverts the result.
pub async fn run<T, W, U>(
    tasks: &TaskTracker,
    step: &'static str,
    work: W,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    W: Future<Output = Result<T>> + Send + 'static,
    U: Future<Output = ()> + Send,
{
    let (sender, receiver) = oneshot::channel();
    tasks.spawn(async move {
        if let Err(Ok(made)) = sender.send(work.await) {
            tracing::warn!(step, "the caller is gone; undoing the operation");
            undo(made).await;
        }
    });
    let lost =
        |_| EngineError::Vmm { step, detail: "the work ended without an outcome: it panicked".to_owned() };
    receiver.await.map_err(lost)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn abandoned_work_is_undone() {
        let tasks = TaskTracker::new();
        let (begun, go_on, undone) =
            (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let work = {
            let (begun, go_on) = (begun.clone(), go_on.clone());
            async move {
                begun.notify_one();
                go_on.notified().await;
                Ok(7)
            }
        };
        let undo = {
            let undone = undone.clone();
            |made| async move {
                assert_eq!(made, 7);
                undone.notify_one();
            }
        };
        {
            let caller = run(&tasks, "testing", work, undo);
            tokio::pin!(caller);
            tokio::select! {
                _ = &mut caller => panic!("ended too early"),
                () = begun.notified() => {}
            }
        }
        go_on.notify_one();
        undone.notified().await;
    }

    #[tokio::test]
    async fn awaited_results_are_delivered() {
        let undo = |_| async { panic!("undone") };
        assert_eq!(run(&TaskTracker::new(), "testing", async { Ok(7) }, undo).await.unwrap(), 7);
    }
}
