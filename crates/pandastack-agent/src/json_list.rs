//! Long lists as JSON: held within a budget, and sent in pieces.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use pandastack_types::limits::LIST_BYTES_MAX;
use serde::Serialize;

use crate::budget::OutputLease;

/// Size from which a piece is sent.
const PIECE_BYTES: usize = 32 * 1024;

/// Entries that a guest listed.
pub(crate) struct List<T> {
    pub items: Vec<T>,
    lease: OutputLease,
    bytes: usize,
}

impl<T: Serialize + Send + 'static> List<T> {
    pub(crate) fn new(lease: OutputLease) -> Self {
        Self { items: Vec::new(), lease, bytes: 0 }
    }

    /// Reserves memory for a page: `json_bytes` from the guest, and for each item its decoded size
    /// plus `added_bytes` of text. Returns false if the page does not fit.
    pub(crate) fn has_room(&mut self, items: usize, json_bytes: usize, added_bytes: usize) -> bool {
        let bytes = json_bytes + items * (size_of::<T>() + added_bytes);
        let fits = self.bytes + bytes <= LIST_BYTES_MAX && self.lease.take(bytes).is_ok();
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    /// The answer. `frame` is the same value without items, in whose text `field` is an empty list.
    pub(crate) fn into_response(
        self,
        frame: &impl Serialize,
        field: &str,
    ) -> Result<Response, serde_json::Error> {
        let frame = serde_json::to_string(frame)?;
        // Quotes inside of strings are escaped: only the field itself reads so.
        let open = format!("\"{field}\":[");
        let cut = frame.find(&open).map_or(frame.len(), |at| at + open.len());
        let (before, after) = frame.split_at(cut);
        let (mut before, mut after) = (Some(before.to_owned().into_bytes()), Some(after.to_owned()));
        let Self { items, lease, .. } = self;
        let (mut items, mut is_first) = (items.into_iter(), true);
        let pieces = std::iter::from_fn(move || {
            // Held until all is sent: items are freed together.
            let _ = &lease;
            let mut piece = before.take().unwrap_or_default();
            while piece.len() < PIECE_BYTES {
                let Some(item) = items.next() else {
                    piece.extend(after.take()?.into_bytes());
                    return Some(Ok::<_, Infallible>(Bytes::from(piece)));
                };
                if !std::mem::take(&mut is_first) {
                    piece.push(b',');
                }
                // The item was parsed from JSON, so serializing it cannot fail.
                let _ = serde_json::to_writer(&mut piece, &item);
            }
            Some(Ok(Bytes::from(piece)))
        });
        let mut response = Body::from_stream(futures::stream::iter(pieces)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;
    use pandastack_guest_proto::message as guest;
    use pandastack_types::api::DirectoryListing;

    use super::*;
    use crate::budget::{HeldOutput, OutputBudget};
    use crate::files;

    fn list<T: Serialize + Send + 'static>(held: &Arc<HeldOutput>) -> List<T> {
        List::new(OutputBudget::new(held, &"s".parse().unwrap(), None).begin().unwrap())
    }

    fn entry(name: String) -> guest::FileEntry {
        let entry = serde_json::json!({
            "name": name, "kind": "file", "size": 1, "mode": 420, "uid": 0, "gid": 0, "mtime_s": 0
        });
        serde_json::from_value(entry).unwrap()
    }

    #[tokio::test]
    async fn a_streamed_list_is_complete() {
        // A path that looks like the field, and more items than one piece holds.
        let path = "/a\"entries\":[/b";
        for count in [0, 1, 3000] {
            let mut found = list(&Arc::default());
            let page = (0..count).map(|number| entry(format!("file {number}"))).collect();
            assert!(files::keep(&mut found, path, page, 100));
            let body = files::answer(found, path, true).unwrap().into_body();
            let listing: DirectoryListing =
                serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
            assert!(listing.path == path && listing.truncated && listing.entries.len() == count);
            assert!(listing.entries.last().is_none_or(|last| last.name == format!("file {}", count - 1)));
        }
    }

    /// Names are short, the path before each of them is as long as a path can be.
    #[test]
    fn listings_with_long_paths_stay_within_their_budget() {
        let held = Arc::default();
        let (path, mut kept) = (format!("/{}", "p".repeat(4000)), 0);
        let mut found = list(&held);
        let page = || (0..100).map(|number| entry(number.to_string())).collect::<Vec<_>>();
        while files::keep(&mut found, &path, page(), 100 * 70) {
            kept += 100;
        }
        let text_bytes: usize = found.items.iter().map(|item| item.path.len() + item.name.len()).sum();
        assert!((5000..50_000).contains(&kept) && found.items.len() == kept, "{kept}");
        assert!(text_bytes < LIST_BYTES_MAX, "{text_bytes}");
        let mut second = list(&held);
        while files::keep(&mut second, &path, page(), 100 * 70) {}
        assert!(
            OutputBudget::new(&held, &"s".parse().unwrap(), None).begin().unwrap().take(1 << 20).is_err()
        );
    }
}
