//! A tracing layer that exports closed spans.

use std::fmt::Debug;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::span::{Queue, Span};

/// Only spans of our own crates: library spans would include the exporter's own requests.
const TARGETS: &str = "pandastack";
/// The field of a request's id.
const REQUEST_ID: &str = "id";
/// Maximum bytes of one field.
const FIELD_BYTES_MAX: usize = 1024;

/// Puts closed spans into the queue.
pub struct SpanLayer {
    queue: Queue,
}

impl SpanLayer {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue }
    }
}

/// Trace id derived from a request id.
pub(super) fn trace_of(request_id: &str) -> [u8; 16] {
    let mut trace = [0; 16];
    trace.copy_from_slice(&blake3::hash(request_id.as_bytes()).as_bytes()[..16]);
    trace
}

/// State of an open span, stored in its extensions.
struct ActiveSpan {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    began: SystemTime,
    fields: Fields,
}

#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    fn set(&mut self, field: &Field, mut value: String) {
        value.truncate(value.floor_char_boundary(FIELD_BYTES_MAX));
        match self.0.iter_mut().find(|(name, _)| *name == field.name()) {
            Some((_, old)) => *old = value,
            None => self.0.push((field.name(), value)),
        }
    }

    fn request_id(&self) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == REQUEST_ID).map(|(_, value)| value.as_str())
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, format!("{value:?}"));
    }
}

/// A random id. Without randomness it may not be unique, which only affects how a trace is displayed.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [1; N];
    let _ = getrandom::fill(&mut bytes);
    bytes
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with(TARGETS)
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|_| is_ours(attributes.metadata())) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = span.scope().skip(1).find_map(|parent| {
            let extensions = parent.extensions();
            extensions.get::<ActiveSpan>().map(|active| (active.trace, active.id))
        });
        let own = || fields.request_id().map_or_else(random, trace_of);
        let trace = parent.map_or_else(own, |(trace, _)| trace);
        let (id, parent) = (random(), parent.map(|(_, parent)| parent));
        let active = ActiveSpan { trace, id, parent, began: SystemTime::now(), fields };
        span.extensions_mut().insert(active);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(active) = span.extensions_mut().get_mut::<ActiveSpan>() {
            values.record(&mut active.fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(active) = span.extensions_mut().remove::<ActiveSpan>() else { return };
        self.queue.put(Span {
            trace: active.trace,
            id: active.id,
            parent: active.parent,
            name: span.name(),
            began: active.began,
            ended: SystemTime::now(),
            fields: active.fields.0,
        });
    }
}
