//! Waiting for work that continues without the command: Ctrl-C and `--timeout` end only the wait.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::progress::Progress;

/// Options of a command that waits for the operation that it starts.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct WaitArgs {
    /// Wait until the operation completes; this is the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Return immediately; the operation continues in the background
    #[arg(long, alias = "detach", short_alias = 'd', overrides_with = "wait")]
    no_wait: bool,
    /// Stop waiting after this many seconds; the operation continues
    #[arg(long = "timeout", value_name = "SECONDS", conflicts_with = "no_wait")]
    wait_seconds: Option<u64>,
}

impl WaitArgs {
    /// Whether to wait at all.
    pub fn waits(self) -> bool {
        self.wait || !self.no_wait
    }

    /// Waits for the end of `work` or for Ctrl-C, at most for the requested time.
    pub async fn until<T>(self, background: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.at_most(background, or_interrupt(background, work)).await
    }

    /// Waits for the end of `work`, which handles Ctrl-C itself, at most for the requested time.
    pub async fn at_most<T>(self, background: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(seconds) = self.wait_seconds else { return work.await };
        let late = |_| Failure::timed_out(format!("not finished within {seconds} s")).hint(background);
        tokio::time::timeout(Duration::from_secs(seconds), work).await.map_err(late)?
    }
}

/// Waits for the end of `work` or for Ctrl-C. `background` says what continues and how to follow it. If
/// `work` waits in the same way for a part of itself, that part's text is shown.
pub async fn or_interrupt<T>(background: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    tokio::select! {
        biased;
        done = work => done,
        _ = interrupt.recv() => Err(Failure::interrupted().hint(background).into()),
    }
}

/// The same for one long call: on a terminal, a line shows the operation and its duration so far.
pub async fn shown<T>(
    what: impl Into<String>,
    background: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let _progress = Progress::start(what);
    or_interrupt(background, work).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::runtime::block_on;

    #[test]
    fn a_long_wait_times_out() {
        let wait = WaitArgs { wait_seconds: Some(0), ..WaitArgs::default() };
        let error = block_on(wait.until("it continues", std::future::pending::<Result<()>>())).unwrap_err();
        assert_eq!(error.to_string(), "not finished within 0 s");
        let done = block_on(WaitArgs::default().until("it continues", async { Ok(7) }));
        assert_eq!(done.unwrap(), 7);
    }

    #[test]
    fn ctrl_c_ends_a_wait_with_the_innermost_hint() {
        let press = async {
            // The wait has registered for the signal before it polls what it waits for.
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT)?;
            std::future::pending::<Result<()>>().await
        };
        let error = block_on(or_interrupt("outer", or_interrupt("inner", press))).unwrap_err();
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::hints), Some(&["inner".to_owned()][..]));
    }

    #[test]
    fn the_last_of_wait_and_no_wait_applies() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            wait: WaitArgs,
        }
        let waits = |words: &[&str]| {
            let line = <Line as clap::Parser>::parse_from([&["x"][..], words].concat());
            line.wait.waits()
        };
        assert!(waits(&[]) && waits(&["--no-wait", "--wait"]));
        assert!(!waits(&["--no-wait"]) && !waits(&["--wait", "--no-wait"]) && !waits(&["-d"]));
    }
}
