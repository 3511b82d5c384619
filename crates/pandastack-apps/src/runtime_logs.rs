//! Output of the live version, over HTTP.
//!
//! A follower continues with the next version once that serves, after a deployment, restart,
//! rollback or change of the number of machines: [`Activity::follow`](crate::activity::Activity::follow)
//! reports all of them.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use pandastack_rest::extract::is_set;
use pandastack_rest::{ApiResult, Caller, Query, sse};
use pandastack_sandboxes::output::{Events, Lines, OutputEvent};
use pandastack_store::apps::record::AppRecord;
use pandastack_types::{DeploymentId, Error, ErrorBody, Result, SandboxId};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::log::OURS;
use crate::machine::{self, Machine};
use crate::path::AppPath;
use crate::serve::SERVE_TAG;
use crate::state::Apps;

/// Lines without a `tail`.
const TAIL_DEFAULT: usize = 1_000;
/// Most lines of one answer.
const TAIL_MAX: usize = 20_000;
/// The end of an answer.
const DONE: &str = "event: done\ndata: end\n\n";

/// Query parameters of runtime logs.
#[derive(Deserialize)]
pub struct Args {
    follow: Option<String>,
    tail: Option<usize>,
    search: Option<String>,
    instance: Option<SandboxId>,
}

/// Stream the live version's output as server-sent events, one line each. With `follow=1`, continue with
/// new output and with later versions. Wakes the app.
#[utoipa::path(get, path = "/v1/apps/{id}/runtime-logs", tag = "apps",
    params(("id" = String, Path), ("follow" = Option<String>, Query), ("tail" = Option<usize>, Query),
        ("search" = Option<String>, Query, description = "Return only lines that contain this text"),
        ("instance" = Option<String>, Query, description = "Instance to read from. Default: the first")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub async fn runtime_logs(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    Query(args): Query<Args>,
) -> ApiResult<Response> {
    // Before the live version is read, so that no later change is missed.
    let news = apps.activity.follow();
    let record = path.find(&apps, &caller).await?;
    let live = LiveVersion::of(&apps, &record).await?;
    let place = match &args.instance {
        Some(wanted) => live.place_of(wanted).ok_or_else(|| Error::not_found("instance", wanted.as_str()))?,
        None => 0,
    };
    let (machine, process) = live.process(&apps, &record, place).await?;
    let matches =
        move |line: &String| args.search.as_ref().is_none_or(|search| line.contains(search.as_str()));
    if !is_set(args.follow.as_deref()) {
        let tail = args.tail.unwrap_or(TAIL_DEFAULT).min(TAIL_MAX);
        let lines = machine.last_lines(process, tail, matches).await?;
        let mut frames: String = lines.iter().map(|line| sse::line_frame(line)).collect();
        frames.push_str(DONE);
        return Ok(sse::respond(futures::stream::iter([frames])));
    }
    let output = Output::of(&machine, process).await?;
    let follower = Follower { apps, record, live, place, output, news, ended: false };
    let frames = futures::stream::unfold((follower, matches), |(mut follower, matches)| async move {
        let lines = follower.next().await?;
        let frames =
            lines.iter().filter(|line| matches(line)).map(|line| sse::line_frame(line)).collect::<String>();
        let frames = match (frames.is_empty(), follower.ended) {
            (_, true) => frames + DONE,
            (true, false) => sse::COMMENT.to_owned(),
            (false, false) => frames,
        };
        Some((frames, (follower, matches)))
    });
    Ok(sse::respond(frames))
}

/// The version that serves.
#[derive(Debug)]
struct LiveVersion {
    deployment: DeploymentId,
    machines: Vec<SandboxId>,
}

impl LiveVersion {
    async fn of(apps: &Apps, record: &AppRecord) -> Result<Self> {
        let deployment = record.active.clone().ok_or_else(|| not_live(record))?;
        let machines =
            apps.store.deployment(&record.id, &deployment).await?.spec.machines().cloned().collect();
        Ok(Self { deployment, machines })
    }

    fn place_of(&self, machine: &SandboxId) -> Option<usize> {
        self.machines.iter().position(|one| one == machine)
    }

    /// Index at which a follower of the previous version's machine `place` continues: the same
    /// machine if it still serves, otherwise its replacement, or the first if there are fewer now.
    fn place_after(&self, before: &Self, place: usize) -> usize {
        let same = before.machines.get(place).and_then(|machine| self.place_of(machine));
        same.unwrap_or(if place < self.machines.len() { place } else { 0 })
    }

    /// One of its machines, and the process that serves there.
    async fn process(&self, apps: &Arc<Apps>, record: &AppRecord, place: usize) -> Result<(Machine, u64)> {
        let machine = machine::open(
            apps.machines.as_ref(),
            record,
            self.machines.get(place).ok_or_else(|| not_live(record))?,
        )
        .await?;
        let mut processes = machine.processes().await?.into_iter();
        let process =
            processes.rfind(|one| one.tag.as_deref() == Some(SERVE_TAG)).ok_or_else(|| not_live(record))?;
        Ok((machine, process.id))
    }
}

fn not_live(record: &AppRecord) -> Error {
    Error::conflict(format!("app `{}` has no live deployment; deploy it first", record.name))
}

/// The output of one process.
struct Output {
    body: Incoming,
    events: Events,
    lines: Lines,
    ended: bool,
}

impl Output {
    async fn of(machine: &Machine, process: u64) -> Result<Self> {
        let body = machine.output(process).await?;
        Ok(Self { body, events: Events::default(), lines: Lines::default(), ended: false })
    }

    /// Waits for more output; returns the lines that it completes. Cancel-safe.
    async fn next(&mut self) -> Vec<String> {
        match self.body.frame().await {
            Some(Ok(frame)) => {
                let sound = frame.into_data().is_ok_and(|bytes| self.events.push(&bytes));
                self.ended = !sound;
            }
            _ => self.ended = true,
        }
        let mut lines = Vec::new();
        while let Some(event) = self.events.pop() {
            match event {
                OutputEvent::Text(text) => lines.extend(self.lines.push(&text)),
                OutputEvent::Exit(_) | OutputEvent::Failed(_) => self.ended = true,
            }
        }
        if self.ended {
            lines.extend(self.lines.take_rest());
        }
        lines
    }
}

struct Follower {
    apps: Arc<Apps>,
    record: AppRecord,
    live: LiveVersion,
    /// Index of the machine that is followed.
    place: usize,
    output: Output,
    news: watch::Receiver<u64>,
    ended: bool,
}

impl Follower {
    /// The next lines, none of them as a sign of life; `None` after the end.
    async fn next(&mut self) -> Option<Vec<String>> {
        if self.ended {
            return None;
        }
        let quiet_until = Instant::now() + sse::COMMENT_EVERY;
        loop {
            let (mut lines, is_told) = tokio::select! {
                // First what was printed, then what comes after it.
                biased;
                () = self.apps.background.shutdown.cancelled() => return None,
                lines = self.output.next() => (lines, false),
                _ = self.news.changed() => (Vec::new(), true),
                () = tokio::time::sleep_until(quiet_until) => return Some(Vec::new()),
            };
            // A process that prints without a pause must not keep the news waiting.
            if is_told || self.output.ended || self.news.has_changed().unwrap_or(false) {
                self.news.mark_unchanged();
                self.follow_live(&mut lines).await;
            }
            if !lines.is_empty() || self.ended {
                return Some(lines);
            }
        }
    }

    /// Switches to the currently serving process if it changed; ends if no process serves.
    async fn follow_live(&mut self, lines: &mut Vec<String>) {
        match self.changed().await {
            Ok(None) => self.ended = self.output.ended,
            Ok(Some((live, place))) => {
                if let Err(error) = self.switch_to(live, place, lines).await {
                    lines.push(format!("{OURS}cannot follow the live deployment: {error}"));
                    self.ended = true;
                }
            }
            Err(error) => {
                lines.push(format!("{OURS}cannot find the live deployment: {error}"));
                self.ended = true;
            }
        }
    }

    /// The version that serves, and the machine to follow there, unless it is the same version.
    async fn changed(&mut self) -> Result<Option<(LiveVersion, usize)>> {
        self.record = self.apps.store.app(None, self.record.id.as_str()).await?;
        if self.record.active.as_ref() == Some(&self.live.deployment) {
            return Ok(None);
        }
        let live = LiveVersion::of(&self.apps, &self.record).await?;
        let place = live.place_after(&self.live, self.place);
        Ok(Some((live, place)))
    }

    async fn switch_to(&mut self, live: LiveVersion, place: usize, lines: &mut Vec<String>) -> Result<()> {
        let is_same = live.machines.get(place) == self.live.machines.get(self.place);
        if !is_same || self.output.ended {
            let (machine, process) = live.process(&self.apps, &self.record, place).await?;
            let output = Output::of(&machine, process).await?;
            lines.extend(self.output.lines.take_rest());
            let (deployment, id) = (&live.deployment, machine.id());
            lines.push(format!(
                "{OURS}deployment {deployment} is live now; output of its machine {id} follows"
            ));
            self.output = output;
        }
        (self.live, self.place) = (live, place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_follower_continues_with_the_machine_or_its_replacement() {
        let ids: Vec<_> = (0..6).map(|_| SandboxId::random()).collect();
        let live = |which: &[usize]| LiveVersion {
            deployment: DeploymentId::random(),
            machines: which.iter().map(|one| ids[*one].clone()).collect(),
        };
        for (before, place, after, expect) in [
            (&[0][..], 0, &[1][..], 0),
            (&[0, 1], 1, &[2, 3], 1),
            (&[0, 1], 1, &[1, 2], 0),
            (&[0, 1, 2], 2, &[0, 1], 0),
            (&[0, 1], 0, &[0, 1, 2], 0),
        ] {
            assert_eq!(live(after).place_after(&live(before), place), expect, "{before:?} {place} {after:?}");
        }
    }
}
