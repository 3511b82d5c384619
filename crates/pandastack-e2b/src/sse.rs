//! Reading the native API's event streams.

use axum::body::{Body, BodyDataStream};
use futures::StreamExt;
use pandastack_types::sse::{EventTooLarge, Reader};
use serde_json::Value;

use crate::limits::EVENT_BYTES_MAX;

/// One event: its name and its JSON.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// Events of a native stream, in order.
pub(crate) struct Events {
    body: BodyDataStream,
    reader: Reader,
}

/// The stream cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamBroken {
    #[error("the stream was interrupted")]
    Body(#[source] axum::Error),
    #[error(transparent)]
    TooLarge(#[from] EventTooLarge),
    #[error("an event is not JSON")]
    Json(#[source] serde_json::Error),
}

impl Events {
    pub(crate) fn new(body: Body) -> Self {
        Self::with_limit(body, EVENT_BYTES_MAX)
    }

    /// The same for a stream whose events may be longer.
    pub(crate) fn with_limit(body: Body, bytes_max: usize) -> Self {
        Self { body: body.into_data_stream(), reader: Reader::new(bytes_max) }
    }

    /// The next event; `None` at the end. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, StreamBroken> {
        loop {
            if let Some(event) = self.reader.next_event()? {
                let data = serde_json::from_str(&event.data).map_err(StreamBroken::Json)?;
                return Ok(Some(Event { name: event.name, data }));
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.reader.push(&bytes),
                Some(Err(error)) => return Err(StreamBroken::Body(error)),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_parsed_at_any_chunk_split() {
        let text = ": hello\n\nid: 1-0\nevent: stdout\ndata: {\"data\":\"YQ==\"}\n\nevent: exit\ndata: {\"exit_code\":0}\n\n";
        for cut in 1..text.len() {
            let chunks = [&text[..cut], &text[cut..]].map(|part| Ok::<_, std::io::Error>(part.to_owned()));
            let mut events = Events::new(Body::from_stream(futures::stream::iter(chunks)));
            let names: Vec<_> = [events.next().await, events.next().await, events.next().await]
                .into_iter()
                .map(|event| event.unwrap().map(|event| event.name))
                .collect();
            assert_eq!(names, [Some("stdout".to_owned()), Some("exit".to_owned()), None], "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn an_endless_event_is_refused() {
        let long = vec![b'x'; EVENT_BYTES_MAX + 1];
        assert!(matches!(Events::new(Body::from(long)).next().await, Err(StreamBroken::TooLarge(_))));
    }
}
