//! One terminal on one WebSocket.
//!
//! | | client to server | server to client |
//! |---|---|---|
//! | binary | input | output |
//! | text | `{"resize":{"rows","cols"}}`, `{"stdin":"..."}` | `{"process":n,"offset":n}` first, `{"gap":{"from","to"}}`, `{"exit":n}`, `{"error":"..."}` |
//!
//! A published client prints text messages on the user's screen, so its address (`/ssh`) gets none and is
//! only closed. The process continues when the socket ends, and can be attached to again from the offset
//! that was seen; on `/ssh`, which cannot say which process it means, it is hung up instead.

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use pandastack_guest_proto::client::ProcessEvent;
use pandastack_types::api::TerminalSize;
use pandastack_types::chain;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Duration, interval};

use super::feed::Feed;
use super::input::Input;
use super::limits::terminal_size;
use crate::error::{AgentError, Result};
use crate::sandbox::handle::SandboxHandle;

/// Interval of pings on quiet sockets, so that no proxy in between gives up on them.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);
/// Input messages queued for the process; while the queue is full, the socket is not read.
const INPUT_QUEUE_MAX: usize = 64;

/// A terminal and its connected client.
pub(crate) struct TerminalSocket {
    pub handle: SandboxHandle,
    pub feed: Feed,
    /// Offset at which the output begins.
    pub offset: u64,
    /// Send no text, and hang up at the end.
    pub is_plain: bool,
}

#[derive(Default, Deserialize)]
struct Order {
    resize: Option<TerminalSize>,
    stdin: Option<String>,
}

impl TerminalSocket {
    /// Serves until the process or the socket ends.
    pub(crate) async fn serve(mut self, mut socket: WebSocket) {
        let process = self.feed.process();
        let (keys, typed) = mpsc::channel(INPUT_QUEUE_MAX);
        let typist = tokio::spawn(type_in(self.handle.clone(), process, typed));
        let hello = json!({ "process": process.0, "offset": self.offset });
        let greeted = self.send_json(&mut socket, hello).await.is_ok();
        let has_ended = greeted && self.relay(&mut socket, keys).await;
        typist.abort();
        if self.is_plain && !has_ended {
            self.hang_up().await;
        }
    }

    async fn hang_up(&self) {
        let process = self.feed.process();
        let hung_up = async { Ok::<_, AgentError>(self.handle.lease().await?.guest.hang_up(process).await?) };
        if let Err(error) = hung_up.await {
            tracing::warn!(
                error = %chain(&error), %process,
                "cannot hang up a terminal after its socket closed"
            );
        }
    }

    /// Works until the process ends (true) or the socket does (false).
    async fn relay(&mut self, socket: &mut WebSocket, keys: mpsc::Sender<Bytes>) -> bool {
        let mut ping = interval(PING_EVERY);
        let mut waiting: Option<Bytes> = None;
        loop {
            let relayed = tokio::select! {
                event = self.feed.next() => match self.show(socket, event).await {
                    Ok(true) => Ok(()),
                    Ok(false) => return true,
                    Err(_) => return false,
                },
                room = keys.reserve(), if waiting.is_some() => {
                    if let (Ok(room), Some(bytes)) = (room, waiting.take()) {
                        room.send(bytes);
                    }
                    Ok(())
                }
                message = socket.recv(), if waiting.is_none() => match message {
                    Some(Ok(Message::Binary(bytes))) => {
                        waiting = Some(bytes);
                        Ok(())
                    }
                    Some(Ok(Message::Text(text))) => match self.run_order(text.as_str()).await {
                        Ok(input) => {
                            waiting = input;
                            Ok(())
                        }
                        Err(error) => {
                            self.send_json(socket, json!({ "error": error.logged_public_text() })).await
                        }
                    },
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return false,
                },
                _ = ping.tick() => socket.send(Message::Ping(Bytes::new())).await,
            };
            if relayed.is_err() {
                return false;
            }
        }
    }

    /// Forwards a process event; false after the last one.
    async fn show(
        &mut self,
        socket: &mut WebSocket,
        event: Result<Option<ProcessEvent>>,
    ) -> Result<bool, axum::Error> {
        let code = match event {
            Ok(Some(ProcessEvent::Output { bytes, .. })) => {
                return socket.send(Message::Binary(bytes)).await.map(|()| true);
            }
            Ok(Some(ProcessEvent::Gap { from, to, .. })) => {
                return self
                    .send_json(socket, json!({ "gap": { "from": from, "to": to } }))
                    .await
                    .map(|()| true);
            }
            Ok(Some(ProcessEvent::Exit(exit))) => {
                self.send_json(socket, json!({ "exit": exit.shell_code(), "signal": exit.signal })).await?;
                close_code::NORMAL
            }
            Ok(None) => close_code::NORMAL,
            Err(error) => {
                let text = error.logged_public_text();
                self.send_json(socket, json!({ "error": text, "code": error.code() })).await?;
                close_code::ERROR
            }
        };
        socket.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await?;
        Ok(false)
    }

    async fn send_json(&self, socket: &mut WebSocket, what: Value) -> Result<(), axum::Error> {
        if self.is_plain {
            return Ok(());
        }
        socket.send(Message::text(what.to_string())).await
    }

    /// Handles a text message; returns the input that it carries.
    async fn run_order(&self, text: &str) -> Result<Option<Bytes>> {
        let bad =
            |error: serde_json::Error| AgentError::BadRequest(format!("the message is invalid: {error}"));
        let order: Order = serde_json::from_str(text).map_err(bad)?;
        if let Some(size) = order.resize {
            let size = terminal_size(size)?;
            self.handle.lease().await?.guest.resize(self.feed.process(), size).await?;
        }
        Ok(order.stdin.map(Bytes::from))
    }
}

async fn type_in(
    handle: SandboxHandle,
    process: pandastack_guest_proto::message::ProcessId,
    mut typed: mpsc::Receiver<Bytes>,
) {
    let mut input = match Input::open(handle, process).await {
        Ok(input) => input,
        Err(error) => return tracing::debug!(error = %chain(&error), "a terminal accepts no input"),
    };
    while let Some(bytes) = typed.recv().await {
        if let Err(error) = input.write(&bytes, false).await {
            return tracing::debug!(error = %chain(&error), "a terminal accepts no more input");
        }
    }
}
