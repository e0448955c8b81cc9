//! Background tasks that are missed when they end.
//!
//! A watch or a loop that ended, by a panic say, would leave a process that looks well and does nothing: a cache that
//! stands still, a leader that leads nowhere. So a task that ends before the process is told to is a failure of the
//! process, which ends too and is started anew.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Starts tasks and tells of the first that ended too early. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tasks {
    /// Cancelled when the process is told to end; then tasks may end.
    ending: CancellationToken,
    failed: CancellationToken,
    first: Arc<OnceLock<&'static str>>,
}

impl Tasks {
    /// Tasks that may end once `ending` is cancelled.
    pub fn new(ending: CancellationToken) -> Self {
        Self { ending, failed: CancellationToken::new(), first: Arc::default() }
    }

    /// Starts a task.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let tasks = self.clone();
        tokio::spawn(async move {
            // A panic is logged by its hook; here it only matters that the task is no more.
            let _ = AssertUnwindSafe(task).catch_unwind().await;
            if !tasks.ending.is_cancelled() {
                let _ = tasks.first.set(name);
                tasks.failed.cancel();
            }
        })
    }

    /// Waits until a task has ended too early; its name.
    pub async fn failed(&self) -> &'static str {
        self.failed.cancelled().await;
        self.first.get().copied().unwrap_or("unknown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_or_ends_too_early_is_told_by_name() {
        let tasks = Tasks::new(CancellationToken::new());
        drop(tasks.spawn("lasting", std::future::pending()));
        drop(tasks.spawn("panicking", async { panic!("a defect") }));
        assert_eq!(tasks.failed().await, "panicking");

        let tasks = Tasks::new(CancellationToken::new());
        drop(tasks.spawn("ending", async {}));
        assert_eq!(tasks.failed().await, "ending");
    }

    #[tokio::test]
    async fn a_task_may_end_when_the_process_does() {
        let ending = CancellationToken::new();
        let tasks = Tasks::new(ending.clone());
        let task = tasks.spawn("ending", ending.clone().cancelled_owned());
        ending.cancel();
        task.await.unwrap();
        assert!(tasks.failed().now_or_never().is_none());
    }
}
