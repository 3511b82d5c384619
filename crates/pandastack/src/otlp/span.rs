//! Closed spans and the queue to the exporter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::SystemTime;

/// A closed span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub(super) trace: [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) name: &'static str,
    pub(super) began: SystemTime,
    pub(super) ended: SystemTime,
    pub(super) fields: Vec<(&'static str, String)>,
}

/// The sending end of the span queue.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(super) sender: SyncSender<Span>,
    pub(super) dropped: Arc<AtomicU64>,
}

impl Queue {
    /// Queues a span, or counts it as dropped if the queue is full.
    pub(super) fn put(&self, span: Span) {
        if self.sender.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
