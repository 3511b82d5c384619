//! Reading the native API's event streams.

use axum::body::{Body, BodyDataStream};
use bytes::BytesMut;
use futures::StreamExt;
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
    buffer: BytesMut,
    bytes_max: usize,
}

/// The stream cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamBroken {
    #[error("the stream broke off: {0}")]
    Body(axum::Error),
    #[error("an event is longer than {0} bytes")]
    TooLong(usize),
    #[error("an event is not JSON: {0}")]
    Json(serde_json::Error),
}

impl Events {
    pub(crate) fn new(body: Body) -> Self {
        Self::with_limit(body, EVENT_BYTES_MAX)
    }

    /// The same for a stream whose events may be longer.
    pub(crate) fn with_limit(body: Body, bytes_max: usize) -> Self {
        Self { body: body.into_data_stream(), buffer: BytesMut::new(), bytes_max }
    }

    /// The next event; `None` at the end. Comments are skipped. Safe to drop and ask again.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, StreamBroken> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block = self.buffer.split_to(end + 2);
                if let Some(event) = parse(&block).map_err(StreamBroken::Json)? {
                    return Ok(Some(event));
                }
            }
            if self.buffer.len() > self.bytes_max {
                return Err(StreamBroken::TooLong(self.bytes_max));
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(StreamBroken::Body(error)),
                None => return Ok(None),
            }
        }
    }
}

fn parse(block: &[u8]) -> Result<Option<Event>, serde_json::Error> {
    let (mut name, mut data) = (String::new(), None);
    for line in block.split(|&byte| byte == b'\n') {
        if let Some(value) = line.strip_prefix(b"event:") {
            name = String::from_utf8_lossy(value).trim().to_owned();
        } else if let Some(value) = line.strip_prefix(b"data:") {
            data = Some(serde_json::from_slice(value)?);
        }
    }
    Ok(data.map(|data| Event { name, data }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_found_wherever_the_chunks_are_cut() {
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
        assert!(matches!(Events::new(Body::from(long)).next().await, Err(StreamBroken::TooLong(_))));
    }
}
