//! Calls on trees of files, and watches.

use std::sync::Arc;

use pandastack_guest_proto::message::{ErrorBody, ErrorCode, Event, FileWatch, Request, WatchPosition};

use super::Server;
use super::completion::Completion;
use super::session::{SinkState, StreamKind};
use crate::files::{
    AttributesSource, CopySource, GrepSource, MoveSource, PackSource, Sink, UnpackSink, WalkSource,
};
use crate::watch::Watch;

/// Bytes of changes in one message; one more still fits in a frame.
const PAGE_BYTES: usize = 32 * 1024;

/// A follower of a watch.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchReader {
    pub(super) watch: u64,
    /// The last change that was sent.
    pub(super) sequence: u64,
}

impl Server {
    pub(super) fn handle_tree_request(&mut self, id: u32, request: Request) {
        let root = self.environment.root.clone();
        match request {
            Request::FileRename { from, to, make_parents } => {
                self.open_source(id, Box::new(MoveSource::new(from, to, make_parents)));
            }
            Request::FileCopy { from, to } => self.open_source(id, Box::new(CopySource::new(from, to))),
            Request::FileSetAttributes(attributes) => {
                self.open_source(id, Box::new(AttributesSource::new(attributes, root)));
            }
            Request::FileWalk(walk) => self.open_source(id, Box::new(WalkSource::new(walk, root))),
            Request::FileGrep(grep) => self.open_source(id, Box::new(GrepSource::new(grep))),
            Request::FilePack { path } => self.open_source(id, Box::new(PackSource::new(path))),
            Request::FileUnpack { path, user } => {
                self.open_sink(id, Box::new(UnpackSink::new(path, user, root)));
            }
            Request::FileWatch(watch) => self.watch(id, watch),
            _ => self.reply_error(
                id,
                &ErrorBody::new(ErrorCode::Unsupported, "this guest does not know the call"),
            ),
        }
    }

    pub(super) fn open_sink(&mut self, id: u32, sink: Box<dyn Sink>) {
        let state = SinkState { sink: Some(sink), queue: Vec::new(), ended: false };
        self.set_kind(id, StreamKind::Sink(state));
        self.session.mark_ready(id);
    }

    fn watch(&mut self, id: u32, request: FileWatch) {
        if self.watches.can_resume(&request)
            && let Some(position) = request.resume
        {
            return self.begin_watch(id, position, true);
        }
        let (wake, epoch) = (self.watches.wake(), self.session.epoch);
        self.workers.submit(move || {
            let result = Watch::start(&request, Arc::clone(&wake));
            Completion::WatchStarted { epoch, stream: id, result }
        });
    }

    pub(super) fn watch_started(&mut self, epoch: u64, id: u32, result: Result<Watch, ErrorBody>) {
        let Some(stream) = self.session.stream_mut(epoch, id) else { return };
        if stream.cancelled {
            return self.reply_cancelled(id);
        }
        let streams = &self.session.streams;
        let followed = |watch: u64| {
            streams
                .values()
                .any(|stream| matches!(&stream.kind, StreamKind::Watch(reader) if reader.watch == watch))
        };
        match result.and_then(|watch| self.watches.enter(watch, followed)) {
            Ok(watch) => self.begin_watch(id, WatchPosition { watch, sequence: 0 }, false),
            Err(error) => self.reply_error(id, &error),
        }
    }

    fn begin_watch(&mut self, id: u32, position: WatchPosition, resumed: bool) {
        let WatchPosition { watch, sequence } = position;
        self.set_kind(id, StreamKind::Watch(WatchReader { watch, sequence }));
        self.send_event(id, &Event::Watching { position, resumed });
        self.session.mark_ready(id);
    }

    /// Some watch has news: every follower looks.
    pub(super) fn wake_watchers(&mut self) {
        self.watches.clear_wake();
        let followers = self.session.streams.iter();
        let followers = followers.filter(|(_, stream)| matches!(stream.kind, StreamKind::Watch(_)));
        for id in followers.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.session.mark_ready(id);
        }
    }

    /// Sends to one follower: at most one page.
    pub(super) fn pump_watch(&mut self, id: u32, reader: WatchReader) {
        // A page's length is not known before it is made; without enough credit the next grant tries again.
        if !self.session.has_page_credit(id) {
            return;
        }
        let Some(page) = self.watches.page(reader.watch, reader.sequence, PAGE_BYTES) else {
            let gone =
                ErrorBody::new(ErrorCode::NotFound, "the watch was dropped for newer ones; start it again");
            return self.reply_error(id, &gone);
        };
        if page.ended {
            return self.reply(id, Ok(pandastack_guest_proto::message::Done {}));
        }
        let Some(last) = page.changes.last() else { return };
        let reader = WatchReader { sequence: last.sequence, ..reader };
        self.set_kind(id, StreamKind::Watch(reader));
        self.send_event(id, &Event::Changes { changes: page.changes });
        self.session.mark_ready(id);
    }
}
