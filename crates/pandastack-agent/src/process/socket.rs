//! Many commands on one WebSocket.
//!
//! Every message is a JSON object with the caller's own `id` for a command. A message that is not
//! understood is answered with an `error` under that id and changes nothing.
//!
//! | client to server | |
//! |---|---|
//! | `{"id","cmd"...}` | starts; fields as in `POST .../processes`, and `"keep":true` to let it outlive the socket |
//! | `{"id","attach":n,"stdout_offset","stderr_offset"}` | follows a process that there is |
//! | `{"id","stdin":"text"}`, `{"id","stdin_base64":"..."}`, `{"id","eof":true}` | writes to it |
//! | `{"id","signal":"INT"}`, `{"id","resize":{"rows","cols"}}`, `{"id","cancel":true}` | `cancel` kills all it started |
//!
//! | server to client | |
//! |---|---|
//! | `{"id","process":n}` | it runs |
//! | `{"id","stream","data","offset","end"}` | output; in base64 with `?encoding=base64` |
//! | `{"id","gap":{"stream","from","to"}}` | output that is gone |
//! | `{"id","exit":n,"signal","timed_out","duration_ms"}`, `{"id","error","code"}` | the end |
//!
//! Invariants: commands that were started here without `keep` are killed when the socket ends; a
//! slow command or a full input delays no other command.

use std::collections::HashMap;

use axum::extract::ws::{Message, Utf8Bytes, WebSocket};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures::stream::SplitSink;
use futures::{SinkExt, StreamExt};
use pandastack_guest_proto::message::ProcessId;
use pandastack_types::api::{Signal, StartProcess, TerminalSize};
use pandastack_types::chain;
use pandastack_types::limits::SOCKET_COMMANDS_MAX;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::interval;

use super::events::{OutputEvents, Style, ascii_json};
use super::feed::Feed;
use super::input::Input;
use super::limits::terminal_size;
use super::lookup::named;
use super::start::Start;
use super::terminal_socket::PING_EVERY;
use crate::error::{AgentError, Result};
use crate::sandbox::handle::SandboxHandle;

/// Messages that wait for the socket; beyond it commands wait.
const OUT_QUEUE_MAX: usize = 64;
/// Orders that wait for one command; beyond it they are refused.
const ORDER_QUEUE_MAX: usize = 64;

#[derive(Deserialize)]
struct Order {
    id: String,
    #[serde(flatten)]
    start: StartProcess,
    #[serde(default)]
    keep: bool,
    attach: Option<u64>,
    #[serde(default)]
    stdout_offset: u64,
    #[serde(default)]
    stderr_offset: u64,
    stdin_base64: Option<String>,
    #[serde(default)]
    eof: bool,
    signal: Option<Signal>,
    resize: Option<TerminalSize>,
    #[serde(default)]
    cancel: bool,
}

/// Serves a socket until it ends.
pub(crate) async fn serve(handle: SandboxHandle, socket: WebSocket, style: Style) {
    let (sink, mut messages) = socket.split();
    let (out, queue) = mpsc::channel(OUT_QUEUE_MAX);
    let mut writer = tokio::spawn(write_out(sink, queue));
    let mut commands = JoinSet::new();
    let mut open: HashMap<String, mpsc::Sender<Order>> = HashMap::new();
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(Ok(Message::Text(text))) => take(&handle, style, &text, &out, &mut commands, &mut open).await,
                Some(Ok(Message::Binary(_))) => send_error(&out, "", &AgentError::BadRequest("send text messages".to_owned())).await,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
            },
            Some(done) = commands.join_next() => if let Ok(id) = done { open.remove::<String>(&id); },
            _ = &mut writer => break,
        }
    }
    // Dropping the senders signals the commands that the client is gone; they clean up and end.
    open.clear();
    writer.abort();
    drop(out);
    while commands.join_next().await.is_some() {}
}

async fn write_out(mut sink: SplitSink<WebSocket, Message>, mut queue: mpsc::Receiver<Value>) {
    let mut ping = interval(PING_EVERY);
    loop {
        let message = tokio::select! {
            value = queue.recv() => match value {
                Some(value) => Message::text(ascii_json(&value)),
                None => return,
            },
            _ = ping.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            return;
        }
    }
}

async fn take(
    handle: &SandboxHandle,
    style: Style,
    text: &Utf8Bytes,
    out: &mpsc::Sender<Value>,
    commands: &mut JoinSet<String>,
    open: &mut HashMap<String, mpsc::Sender<Order>>,
) {
    let order: Order = match serde_json::from_str(text) {
        Ok(order) => order,
        Err(error) => {
            let refused = AgentError::BadRequest(format!("the message is invalid: {error}"));
            return send_error(out, "", &refused).await;
        }
    };
    let id = order.id.clone();
    if let Some(command) = open.get(&id) {
        if command.try_send(order).is_err() {
            send_error(
                out,
                &id,
                &AgentError::NoCapacity(
                    "the command does not accept requests fast enough; try again".to_owned(),
                ),
            )
            .await;
        }
        return;
    }
    if open.len() >= SOCKET_COMMANDS_MAX {
        let full = format!("{SOCKET_COMMANDS_MAX} commands are running on this socket; wait for one to end");
        return send_error(out, &id, &AgentError::NoCapacity(full)).await;
    }
    let (orders, queue) = mpsc::channel(ORDER_QUEUE_MAX);
    open.insert(id.clone(), orders);
    let (handle, out) = (handle.clone(), out.clone());
    commands.spawn(async move {
        if let Err(error) = run(handle, style, order, queue, &out).await {
            send_error(&out, &id, &error).await;
        }
        id
    });
}

async fn send_error(out: &mpsc::Sender<Value>, id: &str, error: &AgentError) {
    // A closed socket needs no response.
    let text = error.logged_public_text();
    let _ = out.send(json!({ "id": id, "error": text, "code": error.code() })).await;
}

/// Runs one command until it ends or the socket closes.
async fn run(
    handle: SandboxHandle,
    style: Style,
    order: Order,
    mut orders: mpsc::Receiver<Order>,
    out: &mpsc::Sender<Value>,
) -> Result<()> {
    let (id, keep) = (order.id, order.keep || order.attach.is_some());
    let (process, offsets) = match order.attach {
        Some(process) => (ProcessId(process), (order.stdout_offset, order.stderr_offset)),
        None => (ProcessId(Start::from_request(order.start)?.run(&handle).await?.id), (0, 0)),
    };
    let feed = Feed::attach(handle.clone(), process, offsets).await?;
    let mut events = OutputEvents::new(feed, offsets, style);
    // The reader detects a closed socket.
    let _ = out.send(json!({ "id": id, "process": process.0 })).await;
    let (writes, queue) = mpsc::channel(ORDER_QUEUE_MAX);
    let typist = tokio::spawn(write_in(handle.clone(), process, queue));
    let ended = loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => { let _ = out.send(event.message(&id)).await; }
                None => break true,
            },
            order = orders.recv() => match order {
                Some(order) => if let Err(error) = run_order(&handle, process, order, &writes).await {
                    send_error(out, &id, &error).await;
                },
                None => break false,
            },
        }
    };
    typist.abort();
    if !ended && !keep {
        let lease = handle.rejoin().await?;
        lease
            .guest
            .signal(process, rustix::process::Signal::KILL.as_raw())
            .await
            .map_err(|error| named(error, process))?;
    }
    Ok(())
}

type Write = (Vec<u8>, bool);

async fn run_order(
    handle: &SandboxHandle,
    process: ProcessId,
    order: Order,
    writes: &mpsc::Sender<Write>,
) -> Result<()> {
    let bad = |what: &str| AgentError::BadRequest(what.to_owned());
    if order.start.exec.cmd.is_some() || order.start.exec.argv.is_some() || order.attach.is_some() {
        return Err(bad("a running command has this id; choose another id"));
    }
    let coded = |text: String| BASE64.decode(text).map_err(|_| bad("`stdin_base64` is not base64"));
    let bytes = match order.stdin_base64 {
        Some(text) => coded(text)?,
        None => order.start.exec.stdin.unwrap_or_default().into_bytes(),
    };
    if (!bytes.is_empty() || order.eof) && writes.try_send((bytes, order.eof)).is_err() {
        return Err(AgentError::NoCapacity(
            "the command does not read its input fast enough, or has stopped reading it".to_owned(),
        ));
    }
    let signal = if order.cancel { Some(Signal::KILL) } else { order.signal };
    if signal.is_none() && order.resize.is_none() {
        return Ok(());
    }
    let guest = handle.lease().await?.guest;
    if let Some(size) = order.resize {
        guest.resize(process, terminal_size(size)?).await.map_err(|error| named(error, process))?;
    }
    if let Some(signal) = signal {
        guest.signal(process, signal.number()).await.map_err(|error| named(error, process))?;
    }
    Ok(())
}

async fn write_in(handle: SandboxHandle, process: ProcessId, mut queue: mpsc::Receiver<Write>) {
    while let Some((bytes, close)) = queue.recv().await {
        let written = async { Input::open(handle.clone(), process).await?.write(&bytes, close).await };
        if let Err(error) = written.await {
            return tracing::debug!(error = %chain(&error), "a command accepts no more input");
        }
    }
}
