//! A sandbox that stands still for a moment, and goes on.
//!
//! ```text
//!   runs --freeze--> user processes frozen --stop--> processors stopped --run--> processors run --thaw--> runs
//! ```
//!
//! Frozen first, so that a copy taken in between passes the identity gate before its first user instruction.

use std::time::{Duration, Instant};

use pandastack_guest_proto::message::Identity;
use tokio::sync::oneshot;

use super::driver::Driver;
use crate::error::{AgentError, Result};
use crate::launch::{self, GUEST_ANSWER_MAX};

/// How long a guest may take to freeze its processes and write its file systems out.
const FREEZE_MAX: Duration = Duration::from_secs(120);
/// How long a guest that did not freeze is listened to after it was told to go on.
const THAW_TOLD_MAX: Duration = Duration::from_secs(2);

impl Driver {
    /// Freezes user processes, writes the guest's file systems out if told to, and stops the processors. On failure the
    /// sandbox runs as before.
    pub(super) async fn stop_guest(&mut self, sync: bool) -> Result<()> {
        let began = Instant::now();
        // For a copy nothing needs to reach the disk: what it lacks there it has in its memory, taken at the same instant.
        self.freeze(sync).await?;
        let frozen = began.elapsed();
        let Some(live) = &self.live else { return Ok(()) };
        if let Err(error) = live.machine.pause().await {
            self.run_guest().await?;
            return Err(error.into());
        }
        tracing::debug!(freeze = ?frozen, stop = ?(began.elapsed() - frozen), "the guest stands still");
        Ok(())
    }

    /// Freezes user processes, and writes the guest's file systems out if told to. A guest that does not answer in time would keep
    /// its sandbox from being deleted; should it hear of this later, it is told at once to go on.
    pub(super) async fn freeze(&mut self, sync: bool) -> Result<()> {
        let guest = self.guest().await?;
        let frozen = answered(FREEZE_MAX, guest.quiesce(sync)).await;
        if frozen.is_err()
            && let Err(error) = answered(THAW_TOLD_MAX, guest.thaw()).await
        {
            tracing::warn!(sandbox = %self.record.spec.id, %error, "its processes may be frozen");
        }
        frozen
    }

    /// Runs the processors, sets the clock, which stood still, and lets user processes go on.
    pub(super) async fn run_guest(&mut self) -> Result<()> {
        let Some(live) = &self.live else { return Ok(()) };
        let machine = live.machine.clone();
        // Sent while the processors may still be stopped, so that it is the first thing that the guest finds.
        let resuming = async { Ok(machine.resume().await?) };
        tokio::try_join!(resuming, self.thaw_guest()).map(|_| ())
    }

    /// As [`Self::run_guest`], for whoever uses the sandbox next, but without waiting for the guest's word: it takes what it is told in order,
    /// so that what it is asked for after this finds a thawed machine. The word is looked at by [`Self::thawed`].
    pub(super) async fn run_guest_ahead(&mut self) -> Result<()> {
        let guest = self.guest().await?;
        let answer = guest.begin_identity(self.stood_still()).await?;
        self.thawing = Some(tokio::spawn(answered(GUEST_ANSWER_MAX, answer.wait())));
        match &self.live {
            Some(live) => Ok(live.machine.resume().await?),
            None => Ok(()),
        }
    }

    /// Thaws the guest again if it said that it did not when it was told to.
    pub(super) async fn thawed(&mut self) -> Result<()> {
        let Some(told) = self.thawing.take_if(|told| told.is_finished()) else { return Ok(()) };
        match told.await {
            Ok(Ok(_)) => Ok(()),
            _ => self.run_guest().await,
        }
    }

    fn stood_still(&self) -> Identity {
        Identity { only_stood_still: true, ..launch::refresh(&self.record) }
    }

    /// Lets user processes go on in a machine that a fork resumes, as soon as it says so. If that does not help, it is resumed here.
    pub(super) async fn thaw_resumed(&mut self, resumed: oneshot::Receiver<()>) -> Result<()> {
        if resumed.await.is_ok() && self.thaw_guest().await.is_ok() {
            return Ok(());
        }
        self.run_guest().await
    }

    async fn thaw_guest(&mut self) -> Result<()> {
        let began = Instant::now();
        let guest = self.guest().await?;
        let applied = answered(GUEST_ANSWER_MAX, guest.set_identity(self.stood_still())).await?;
        let (thaw, in_guest) = (began.elapsed(), Duration::from_micros(applied.elapsed_us));
        tracing::debug!(?thaw, ?in_guest, "the guest goes on");
        Ok(())
    }
}

/// What a guest answers within a time.
async fn answered<T, E>(limit: Duration, asking: impl Future<Output = std::result::Result<T, E>>) -> Result<T>
where
    AgentError: From<E>,
{
    match tokio::time::timeout(limit, asking).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(AgentError::Conflict(format!(
            "the guest program did not answer within {} s; delete the sandbox if that does not change",
            limit.as_secs()
        ))),
    }
}
