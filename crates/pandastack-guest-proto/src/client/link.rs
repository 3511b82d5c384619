//! The two tasks of a connection and the table of calls between them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

use super::call::Inbound;
use super::error::ClientError;
use crate::frame::{Frame, FrameBuffer, FrameKind, encode, encode_credit};
use crate::limits::{
    FRAME_BYTES_MAX, STREAM_QUEUE_FRAMES_MAX, STREAM_WINDOW_BYTES, STREAMS_MAX, frame_charge,
};

/// Encoded frames that wait for the writer; each at most a request long.
const WRITE_QUEUE_FRAMES_MAX: usize = 64;
/// The writer gathers waiting frames up to this size into one system call.
const WRITE_BATCH_BYTES: usize = 256 * 1024;

/// Owns the tasks; ends them when the last handle is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    reader: AbortHandle,
    writer: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
    }
}

/// State shared by the tasks and the calls.
#[derive(Debug)]
pub(super) struct Shared {
    calls: Mutex<Calls>,
    frames: mpsc::Sender<Vec<u8>>,
    pending: Mutex<HashMap<u32, Pending>>,
    pending_changed: Notify,
    closed: watch::Sender<Option<ClientError>>,
}

#[derive(Debug)]
struct Calls {
    open: HashMap<u32, Slot>,
    next_id: u32,
}

/// The reader's view of one call.
#[derive(Debug)]
struct Slot {
    queue: mpsc::Sender<Inbound>,
    /// Bytes that the guest may still send.
    credit: u32,
    /// Bytes that the host may still send.
    send_credit: Arc<Semaphore>,
    /// Whether the caller is gone; the reply frees the slot.
    cancelled: bool,
}

/// Small frames of a call that must go out without waiting, merged so that they need no queue.
#[derive(Debug, Default)]
struct Pending {
    credit: u32,
    cancel: bool,
}

/// A call's own ends of its slot.
pub(super) struct ReservedStream {
    pub(super) id: u32,
    pub(super) queue: mpsc::Receiver<Inbound>,
    pub(super) send_credit: Arc<Semaphore>,
}

impl Connection {
    /// Starts the tasks on a connection whose handshake is done. `buffer` holds the bytes after it.
    /// `first` are calls that were sent with the handshake, numbered from 1.
    pub(super) fn start(
        read: OwnedReadHalf,
        write: OwnedWriteHalf,
        buffer: FrameBuffer,
        first: u32,
    ) -> (Arc<Self>, Vec<ReservedStream>) {
        let (frames, frames_rx) = mpsc::channel(WRITE_QUEUE_FRAMES_MAX);
        let shared = Arc::new(Shared {
            calls: Mutex::new(Calls { open: HashMap::new(), next_id: 1 }),
            frames,
            pending: Mutex::default(),
            pending_changed: Notify::new(),
            closed: watch::Sender::new(None),
        });
        let opened = (0..first).filter_map(|_| shared.reserve().ok()).collect();
        let reader = tokio::spawn(read_task(Arc::clone(&shared), read, buffer)).abort_handle();
        let writer = tokio::spawn(write_task(Arc::clone(&shared), write, frames_rx)).abort_handle();
        (Arc::new(Self { shared, reader, writer }), opened)
    }
}

impl Shared {
    pub(super) fn closed_reason(&self) -> Option<ClientError> {
        self.closed.borrow().clone()
    }

    pub(super) async fn closed(&self) -> ClientError {
        let mut watch = self.closed.subscribe();
        match watch.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_else(|| ClientError::disconnected("closed")),
            Err(_) => ClientError::disconnected("the client was dropped"),
        }
    }

    /// Ends the connection for every call, once.
    pub(super) fn close(&self, reason: ClientError) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            if first {
                *closed = Some(reason);
            }
            first
        });
        for (_, slot) in lock(&self.calls).open.drain() {
            slot.send_credit.close();
        }
    }

    /// A slot for a new call.
    pub(super) fn reserve(&self) -> Result<ReservedStream, ClientError> {
        let mut calls = lock(&self.calls);
        // Checked with the table locked: `close` empties the table after it sets the reason, so a
        // call added in between would stay in a table that is not emptied again, and would never
        // end.
        if let Some(reason) = self.closed_reason() {
            return Err(reason);
        }
        if calls.open.len() >= STREAMS_MAX {
            return Err(ClientError::TooManyCalls { max: STREAMS_MAX });
        }
        let id = calls.next_id;
        // Ids are never used twice on a connection, so a late frame cannot reach the wrong call.
        calls.next_id =
            id.checked_add(1).ok_or_else(|| ClientError::disconnected("all call ids are used up"))?;
        let (queue, queue_rx) = mpsc::channel(STREAM_QUEUE_FRAMES_MAX);
        let send_credit = Arc::new(Semaphore::new(STREAM_WINDOW_BYTES as usize));
        let slot = Slot {
            queue,
            credit: STREAM_WINDOW_BYTES,
            send_credit: Arc::clone(&send_credit),
            cancelled: false,
        };
        calls.open.insert(id, slot);
        Ok(ReservedStream { id, queue: queue_rx, send_credit })
    }

    /// Releases a slot whose request was never sent.
    pub(super) fn release(&self, id: u32) {
        lock(&self.calls).open.remove(&id);
    }

    pub(super) async fn send(&self, frames: Vec<u8>) -> Result<(), ClientError> {
        let sent = tokio::select! {
            sent = self.frames.send(frames) => sent,
            reason = self.closed() => return Err(reason),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(_) => Err(self.closed().await),
        }
    }

    /// Grants the guest `bytes` more on a call. Never waits.
    pub(super) fn grant(&self, id: u32, bytes: u32) {
        if let Some(slot) = lock(&self.calls).open.get_mut(&id) {
            slot.credit = slot.credit.saturating_add(bytes);
        } else {
            return;
        }
        let mut pending = lock(&self.pending);
        let entry = pending.entry(id).or_default();
        entry.credit = entry.credit.saturating_add(bytes);
        drop(pending);
        self.pending_changed.notify_one();
    }

    /// Cancels a call that has no receiver any more. Never waits, so that `Drop` can call it.
    pub(super) fn cancel(&self, id: u32) {
        match lock(&self.calls).open.get_mut(&id) {
            Some(slot) => slot.cancelled = true,
            None => return,
        }
        lock(&self.pending).entry(id).or_default().cancel = true;
        self.pending_changed.notify_one();
    }

    /// Cancels go out only when the queue is drained: they must not overtake the request they cancel.
    fn take_pending(&self, out: &mut Vec<u8>, queue_drained: bool) {
        lock(&self.pending).retain(|&id, pending| {
            if pending.credit > 0 {
                encode_credit(out, id, pending.credit);
                pending.credit = 0;
            }
            if pending.cancel && queue_drained {
                encode(out, FrameKind::Cancel, 0, id, &[]);
            }
            pending.cancel && !queue_drained
        });
    }

    fn dispatch(&self, frame: &Frame<'_>) -> Result<(), ClientError> {
        let mut calls = lock(&self.calls);
        let Entry::Occupied(mut entry) = calls.open.entry(frame.stream) else {
            return Err(protocol(format!(
                "a {:?} frame names call {}, which is not open",
                frame.kind, frame.stream
            )));
        };
        match frame.kind {
            FrameKind::Reply => {
                let slot = entry.remove();
                slot.send_credit.close();
                deliver(&slot, Inbound::Reply(Bytes::copy_from_slice(frame.payload)))
            }
            FrameKind::Event | FrameKind::Data => {
                let slot = entry.get_mut();
                let charge = frame_charge(frame.payload.len());
                slot.credit = slot.credit.checked_sub(charge).ok_or_else(|| {
                    protocol(format!("call {} got more than its credit allows", frame.stream))
                })?;
                let payload = Bytes::copy_from_slice(frame.payload);
                deliver(
                    slot,
                    match frame.kind {
                        FrameKind::Event => Inbound::Event(payload),
                        _ => Inbound::Data { flags: frame.flags, bytes: payload },
                    },
                )
            }
            FrameKind::Credit => add_send_credit(&entry.get().send_credit, frame.credit()?),
            FrameKind::Hello | FrameKind::Request | FrameKind::End | FrameKind::Cancel => {
                Err(protocol(format!("a guest must not send {:?} frames here", frame.kind)))
            }
        }
    }
}

fn deliver(slot: &Slot, inbound: Inbound) -> Result<(), ClientError> {
    if slot.cancelled {
        return Ok(());
    }
    match slot.queue.try_send(inbound) {
        // A dropped receiver cancels the call; until the guest knows, its frames go nowhere.
        Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        Err(mpsc::error::TrySendError::Full(_)) => {
            Err(protocol("a call got more frames than its queue holds".to_owned()))
        }
    }
}

fn add_send_credit(credit: &Semaphore, bytes: u32) -> Result<(), ClientError> {
    // The guest may only release bytes that it consumed; more would eventually overflow the
    // semaphore.
    if credit.available_permits() + bytes as usize > STREAM_WINDOW_BYTES as usize {
        return Err(protocol(format!("the guest granted {bytes} bytes beyond the window")));
    }
    credit.add_permits(bytes as usize);
    Ok(())
}

fn protocol(what: String) -> ClientError {
    ClientError::Protocol(what)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while holding these locks; even then the maps would be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read_task(shared: Arc<Shared>, read: OwnedReadHalf, buffer: FrameBuffer) {
    let reason = read_frames(&shared, read, buffer).await;
    shared.close(reason);
}

async fn read_frames(shared: &Shared, mut read: OwnedReadHalf, mut buffer: FrameBuffer) -> ClientError {
    let mut bytes = vec![0; FRAME_BYTES_MAX];
    loop {
        loop {
            match buffer.next_frame() {
                Ok(Some(frame)) => {
                    if let Err(error) = shared.dispatch(&frame) {
                        return error;
                    }
                }
                Ok(None) => break,
                Err(error) => return error.into(),
            }
        }
        match read.read(&mut bytes).await {
            Ok(0) => return ClientError::disconnected("the channel was closed"),
            Ok(count) => buffer.push(&bytes[..count]),
            Err(error) => return ClientError::disconnected(error),
        }
    }
}

async fn write_task(shared: Arc<Shared>, mut write: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>) {
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            frame = frames.recv() => match frame {
                Some(frame) => batch = frame,
                None => return,
            },
            () = shared.pending_changed.notified() => {}
        }
        let mut drained = false;
        while !drained && batch.len() < WRITE_BATCH_BYTES {
            match frames.try_recv() {
                Ok(frame) => batch.extend_from_slice(&frame),
                Err(_) => drained = true,
            }
        }
        shared.take_pending(&mut batch, drained);
        if let Err(error) = write.write_all(&batch).await {
            shared.close(ClientError::disconnected(error));
            return;
        }
        batch.clear();
    }
}
