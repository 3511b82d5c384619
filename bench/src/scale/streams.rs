//! Concurrent streaming commands, over several sandboxes: every byte arrives once and in order.
//!
//! Each command writes a half, waits, and writes the other. The second halves begin when all first
//! halves have arrived, so all streams are open at once.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use pandastack_client::{Client, ExecEvent, ExecStream};
use pandastack_types::SandboxId;
use pandastack_types::api::ExecRequest;

use super::sandbox::create;
use crate::api::{delete, exec};
use crate::report::Report;

/// Lines of each half.
const LINES: u32 = 500;
/// Limit of each command; all of them together are emulated on a few processors.
const TIMEOUT_SECONDS: u64 = 1800;
/// Failures that are shown; the rest is only counted.
const SHOWN: usize = 3;

/// An open stream of a command, and its output so far.
struct OpenStream {
    stream: ExecStream,
    tag: u32,
    text: String,
}

/// `count` streams over `sandboxes`.
pub async fn measure(client: &Client, (count, sandboxes): (u32, u32), report: &mut Report) -> Result<()> {
    let mut ids = Vec::new();
    for _ in 0..sandboxes {
        let id = create(client).await?.id;
        exec(client, &id, "mkfifo /tmp/go").await?;
        ids.push(id);
    }
    let began = Instant::now();
    let first_halves = (0..count).map(|tag| first_half(client, &ids[(tag % sandboxes) as usize], tag));
    let mut failures = Vec::new();
    let mut open = Vec::new();
    for outcome in join_all(first_halves).await {
        match outcome {
            Ok(stream) => open.push(stream),
            Err(error) => failures.push(error),
        }
    }
    report.sample(
        &format!("{count} streams over {sandboxes} sandboxes, all open"),
        "s",
        began.elapsed().as_secs_f64(),
    );
    // Opening the queue for writing unblocks every reader; closing it ends their input.
    join_all(ids.iter().map(|id| exec(client, id, ": > /tmp/go")))
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    failures.extend(join_all(open.into_iter().map(second_half)).await.into_iter().filter_map(Result::err));
    report.sample(
        &format!("{count} streams over {sandboxes} sandboxes, all ended"),
        "s",
        began.elapsed().as_secs_f64(),
    );
    failures.iter().take(SHOWN).for_each(|error| eprintln!("stream: {error:#}"));
    let name = format!("of {count} streams with a lost, doubled or misplaced byte");
    report.sample(&name, "count", failures.len() as f64);
    report.bar(&name, Some(failures.len() as f64), 0.0);
    for id in &ids {
        delete(client, id).await?;
    }
    Ok(())
}

fn lines(tag: u32, from: u32) -> String {
    (from..from + LINES).fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{tag} {line:06}");
        text
    })
}

async fn first_half(client: &Client, id: &SandboxId, tag: u32) -> Result<OpenStream> {
    let (one, half, two) = (0, LINES - 1, 2 * LINES - 1);
    let cmd =
        format!("seq -f '{tag} %06g' {one} {half}; read go < /tmp/go; seq -f '{tag} %06g' {LINES} {two}");
    let request =
        ExecRequest { cmd: Some(cmd), timeout_seconds: Some(TIMEOUT_SECONDS), ..ExecRequest::default() };
    let stream = client.exec_stream(id, &request).await.with_context(|| format!("begin stream {tag}"))?;
    let mut open = OpenStream { stream, tag, text: String::new() };
    let expected = lines(tag, 0);
    while open.text.len() < expected.len() {
        ensure!(open.next().await?.is_none(), "stream {tag} ended after its first half");
    }
    ensure!(open.text == expected, "the first half of stream {tag} is not what was written");
    Ok(open)
}

async fn second_half(mut open: OpenStream) -> Result<()> {
    let tag = open.tag;
    let code = loop {
        if let Some(code) = open.next().await? {
            break code;
        }
    };
    ensure!(code == 0, "the command of stream {tag} ended with {code}");
    ensure!(open.text == lines(tag, 0) + &lines(tag, LINES), "stream {tag} is not what was written");
    Ok(())
}

impl OpenStream {
    /// Reads the next event; returns the exit code at the end.
    async fn next(&mut self) -> Result<Option<i32>> {
        match self.stream.next().await.with_context(|| format!("follow stream {}", self.tag))? {
            ExecEvent::Stdout(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
            ExecEvent::Stderr(bytes) => {
                anyhow::bail!("stream {} complains: {}", self.tag, String::from_utf8_lossy(&bytes))
            }
            ExecEvent::Lost(count) => anyhow::bail!("stream {} lost {count} bytes", self.tag),
            ExecEvent::Exited(code) => return Ok(Some(code)),
        }
        Ok(None)
    }
}
