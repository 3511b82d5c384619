//! Pauses a sandbox briefly and resumes it.
//!
//! ```text
//!   runs --freeze--> user processes frozen --stop--> processors stopped --run--> processors run --thaw--> runs
//! ```
//!
//! Frozen first, so that a copy taken in between passes the identity gate before its first user instruction.

use std::time::{Duration, Instant};

use pandastack_guest_proto::message::{Identity, IdentityApplied};
use pandastack_types::{SandboxState, chain};
use tokio::sync::oneshot;

use super::driver::{Driver, STARTS_MAX};
use crate::error::{AgentError, Result};
use crate::identity::{clock_delay, settle_clock, unchanged};
use crate::launch::GUEST_ANSWER_MAX;

/// Longest time for a guest to freeze its processes and write its file systems out.
const FREEZE_MAX: Duration = Duration::from_secs(120);
/// Longest wait for starts in progress.
const STARTS_WAIT: Duration = Duration::from_secs(5);
/// Longest wait for the thaw response of a guest that did not freeze.
const THAW_TOLD_MAX: Duration = Duration::from_secs(2);
/// Delay before the thaw request is repeated.
const THAW_AGAIN_AFTER: Duration = Duration::from_secs(5);

impl Driver {
    /// Freezes user processes, with `sync` writes the guest's file systems out, and stops the
    /// processors. On failure the sandbox runs as before.
    pub(super) async fn stop_guest(&mut self, sync: bool) -> Result<()> {
        let began = Instant::now();
        // A copy needs no sync: data missing on its disk is in its memory, taken at the same
        // instant.
        self.freeze(sync).await?;
        let frozen = began.elapsed();
        let Some(live) = &self.live else { return Ok(()) };
        if let Err(error) = live.machine.pause().await {
            self.run_guest().await?;
            return Err(error.into());
        }
        tracing::debug!(freeze = ?frozen, stop = ?(began.elapsed() - frozen), "the guest is frozen");
        Ok(())
    }

    /// Freezes user processes, and with `sync` writes the guest's file systems out. The wait is
    /// bounded, because an unresponsive guest would block the deletion of its sandbox. A thaw
    /// request follows a timeout, in case the guest receives the freeze request later.
    pub(super) async fn freeze(&mut self, sync: bool) -> Result<()> {
        // Starts that take longer are cut off, like everything else.
        drop(tokio::time::timeout(STARTS_WAIT, self.starts.acquire_many(STARTS_MAX)).await);
        let guest = self.guest().await?;
        let frozen = answered(FREEZE_MAX, guest.quiesce(sync)).await;
        if frozen.is_err()
            && let Err(error) = answered(THAW_TOLD_MAX, guest.thaw()).await
        {
            tracing::warn!(
                sandbox = %self.record.spec.id, error = %chain(&error),
                "cannot thaw the guest; its processes may be frozen"
            );
        }
        frozen
    }

    /// Resumes the processors, sets the clock, which was stopped, and thaws user processes.
    pub(super) async fn run_guest(&mut self) -> Result<()> {
        self.forget_lost_guest();
        let Some(live) = &self.live else { return Ok(()) };
        let machine = live.machine.clone();
        // Sent while the processors may still be stopped, so that it is the first thing that the guest finds.
        let resuming = async { Ok(machine.resume().await?) };
        tokio::try_join!(resuming, self.thaw_guest()).map(|_| ())
    }

    /// Forgets a connection that the resume would cut, so that the guest is reconnected. A connection made
    /// while the machine is paused reaches the guest when it runs.
    fn forget_lost_guest(&mut self) {
        if !self.host.engine.capabilities().keeps_guest_streams
            && let Some(live) = &mut self.live
        {
            live.guest = None;
        }
    }

    /// Like [`Self::run_guest`], but without waiting for the emulator's or the guest's answer. The
    /// guest handles requests in order, so the next request finds a thawed machine, and is among
    /// its first instructions. [`Self::note_thaw`] checks both answers.
    pub(super) async fn run_guest_ahead(&mut self) -> Result<()> {
        self.forget_lost_guest();
        let Some(live) = &self.live else { return Ok(()) };
        let machine = live.machine.clone();
        let Some(guest) = live.guest.clone().filter(|guest| !guest.is_closed()) else {
            // A paused guest cannot complete a handshake: its vCPUs run first.
            return self.run_guest().await;
        };
        let answer = guest.begin_identity(self.unchanged_identity()).await?;
        let going_on = async move {
            let resuming = async { machine.resume().await.map_err(AgentError::from) };
            let answering = async { answer.wait().await.map_err(AgentError::from) };
            tokio::try_join!(resuming, answering).map(|((), applied)| applied)
        };
        self.thawing = Some(tokio::spawn(answered(GUEST_ANSWER_MAX, going_on)));
        Ok(())
    }

    /// Repeats the thaw request until the guest answers: its record is marked running.
    pub(super) async fn note_thaw(&mut self, told: Result<IdentityApplied>) {
        self.thawing = None;
        let is_to_run = self.live.is_some() && self.record.state == SandboxState::Running;
        let Some(error) = told.err().filter(|_| is_to_run) else { return };
        tracing::warn!(
            sandbox = %self.record.spec.id, error = %chain(&error),
            "the guest did not thaw; retrying"
        );
        if let Err(error) = self.run_guest().await {
            self.thawing = Some(tokio::spawn(async {
                tokio::time::sleep(THAW_AGAIN_AFTER).await;
                Err(error)
            }));
        }
    }

    fn unchanged_identity(&self) -> Identity {
        unchanged(&self.record, &self.host.config.guests)
    }

    /// Thaws user processes in a machine that a fork resumes, as soon as the fork reports it. If that does
    /// not help, it is resumed here.
    pub(super) async fn thaw_resumed(&mut self, resumed: oneshot::Receiver<()>) -> Result<()> {
        if resumed.await.is_ok() && self.thaw_guest().await.is_ok() {
            return Ok(());
        }
        self.run_guest().await
    }

    async fn thaw_guest(&mut self) -> Result<()> {
        let began = Instant::now();
        let guest = self.guest().await?;
        let sent = Instant::now();
        let applied = answered(GUEST_ANSWER_MAX, guest.set_identity(self.unchanged_identity())).await?;
        let (record, guests) = (&self.record, &self.host.config.guests);
        settle_clock(&guest, record, guests, clock_delay(sent, &applied)).await;
        let (thaw, in_guest) = (began.elapsed(), Duration::from_micros(applied.elapsed_us));
        tracing::debug!(?thaw, ?in_guest, "the guest is thawed");
        Ok(())
    }
}

/// A guest's answer, or an error after the limit.
async fn answered<T, E>(limit: Duration, asking: impl Future<Output = std::result::Result<T, E>>) -> Result<T>
where
    AgentError: From<E>,
{
    match tokio::time::timeout(limit, asking).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(AgentError::Conflict(format!(
            "the guest program did not respond within {} s; delete the sandbox if this continues",
            limit.as_secs()
        ))),
    }
}
