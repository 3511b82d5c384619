//! Runs work to completion or undoes it, even if the caller is cancelled.
//!
//! A dropped future stops at its last await, which can be between the birth of a process and the guard that would end it.
//! Such work runs as a task of the engine instead.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::{EngineError, Result};

/// Runs `work` to its end. If the caller is gone before it has the result, `undo` reverts the result.
pub async fn run<T, W, U>(
    tasks: &TaskTracker,
    step: &'static str,
    work: W,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    W: Future<Output = Result<T>> + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let (undoing, runtime) = (tasks.clone(), Handle::current());
    let undo = move |made| {
        tracing::warn!(step, "the caller is gone; undoing the operation");
        undoing.spawn_on(undo(made), &runtime);
    };
    tasks.spawn(async move {
        let outcome = work.await.map(|made| Delivery { contents: Some((made, undo)) });
        // Whether the channel refuses it or the caller leaves it there: what is not taken is undone.
        drop(sender.send(outcome));
    });
    let lost =
        || EngineError::Vmm { step, detail: "the work ended without an outcome: it panicked".to_owned() };
    receiver.await.map_err(|_| lost())??.take().ok_or_else(lost)
}

/// A result on its way to the caller; undone if it is dropped before it is taken.
struct Delivery<T, U: FnOnce(T)> {
    contents: Option<(T, U)>,
}

impl<T, U: FnOnce(T)> Delivery<T, U> {
    fn take(mut self) -> Option<T> {
        self.contents.take().map(|(made, _)| made)
    }
}

impl<T, U: FnOnce(T)> Drop for Delivery<T, U> {
    fn drop(&mut self) {
        if let Some((made, undo)) = self.contents.take() {
            undo(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::Poll;
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
    async fn a_delivered_result_that_nobody_takes_is_undone() {
        let tasks = TaskTracker::new();
        let undone = Arc::new(Notify::new());
        let undo = {
            let undone = undone.clone();
            |_| async move { undone.notify_one() }
        };
        {
            let caller = run(&tasks, "testing", async { Ok(7) }, undo);
            tokio::pin!(caller);
            let polled = std::future::poll_fn(|context| Poll::Ready(caller.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            tasks.close();
            // The work has ended and its result is in the channel.
            tasks.wait().await;
        }
        undone.notified().await;
    }

    #[tokio::test]
    async fn awaited_results_are_delivered() {
        let undo = |_| async { panic!("undone") };
        assert_eq!(run(&TaskTracker::new(), "testing", async { Ok(7) }, undo).await.unwrap(), 7);
    }
}
