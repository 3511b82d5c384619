//! Uploads: one file as the body, or several as parts of a form. All of them are streamed.

use std::io::Write as _;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use flate2::write::GzDecoder;
use futures::{Stream, StreamExt};
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::metadata::Metadata;
use crate::error::{RestError, RestResult};
use crate::native_paths as paths;
use crate::session::Session;
use crate::user::User;

/// Pieces of a part on their way to the guest.
const PIECES_BUFFERED_MAX: usize = 4;
/// Compressed bytes unpacked at once: at gzip's best they become a thousand times as many.
const PACKED_BYTES_AT_ONCE: usize = 4 * 1024;

/// Stores the files of a request, and returns the result.
pub(super) async fn store(
    session: &Session,
    user: &User,
    path: Option<&str>,
    request: Request,
) -> RestResult<Vec<Value>> {
    let metadata = Metadata::of_upload(request.headers())?;
    let to = Target { session, user, metadata: &metadata };
    let kind =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("multipart/form-data") {
        return store_parts(&to, path, request).await;
    }
    let path = path.ok_or_else(|| RestError::bad_request("`path` is missing; give the path to write to"))?;
    let body = match encoding(request.headers())? {
        Encoding::Identity => request.into_body(),
        Encoding::Gzip => Body::from_stream(unpacked(request.into_body())),
    };
    Ok(vec![to.put(path, body).await?])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

fn encoding(headers: &HeaderMap) -> RestResult<Encoding> {
    match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => Ok(Encoding::Identity),
        Some(b"gzip") => Ok(Encoding::Gzip),
        Some(_) => {
            let what = "unsupported Content-Encoding; use `gzip` or none";
            Err(RestError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what))
        }
    }
}

/// Decompresses a gzip stream; a damaged or truncated stream fails the upload, and nothing is
/// written.
fn unpacked(body: Body) -> impl Stream<Item = std::io::Result<Bytes>> {
    let start = (body.into_data_stream(), Some(GzDecoder::new(Vec::new())), Bytes::new());
    futures::stream::try_unfold(start, |(mut body, decoder, mut packed)| async move {
        let Some(mut decoder) = decoder else { return Ok(None) };
        loop {
            if packed.is_empty() {
                packed = match body.next().await {
                    Some(piece) => piece.map_err(std::io::Error::other)?,
                    None => {
                        let rest = Bytes::from(decoder.finish()?);
                        return Ok(Some((rest, (body, None, Bytes::new()))));
                    }
                };
            }
            let piece = packed.split_to(packed.len().min(PACKED_BYTES_AT_ONCE));
            decoder.write_all(&piece)?;
            let out = std::mem::take(decoder.get_mut());
            if !out.is_empty() {
                return Ok(Some((Bytes::from(out), (body, Some(decoder), packed))));
            }
        }
    })
}

async fn store_parts(to: &Target<'_>, path: Option<&str>, mut request: Request) -> RestResult<Vec<Value>> {
    // The native write has the limit of a file.
    DefaultBodyLimit::disable().apply(&mut request);
    let broken = |error: String| RestError::bad_request(format!("invalid form: {error}"));
    let mut form = Multipart::from_request(request, &()).await.map_err(|error| broken(error.body_text()))?;
    let mut stored = Vec::new();
    while let Some(mut part) = form.next_field().await.map_err(|error| broken(error.body_text()))? {
        if part.name() != Some("file") {
            continue;
        }
        if path.is_some() && !stored.is_empty() {
            return Err(RestError::bad_request(
                "`path` names one file but the form has several; leave out `path`",
            ));
        }
        // The whole name counts: it is a path, not only its last part.
        let target = path.or(part.file_name()).map(str::to_owned);
        let target = target
            .ok_or_else(|| RestError::bad_request("a part has no file name; add one, or set `path`"))?;
        let (sender, receiver) = mpsc::channel(PIECES_BUFFERED_MAX);
        let pump = async {
            while let Some(piece) = part.chunk().await.transpose() {
                let is_last = piece.is_err();
                // The write was refused; its response has the reason.
                if sender.send(piece).await.is_err() || is_last {
                    break;
                }
            }
            drop(sender);
        };
        let pieces =
            futures::stream::unfold(
                receiver,
                |mut pieces| async move { Some((pieces.recv().await?, pieces)) },
            );
        let (entry, ()) = tokio::join!(to.put(&target, Body::from_stream(pieces)), pump);
        stored.push(entry?);
    }
    match stored.is_empty() {
        true => Err(RestError::bad_request("the form has no part named `file`; add one")),
        false => Ok(stored),
    }
}

/// Where an upload goes, and the metadata of its files.
struct Target<'a> {
    session: &'a Session,
    user: &'a User,
    metadata: &'a Metadata,
}

impl Target<'_> {
    /// Writes one file.
    async fn put(&self, path: &str, body: Body) -> RestResult<Value> {
        let path = self.user.absolute(path);
        let uri = paths::file_of_user(&self.session.sandbox, &path, &self.user.name);
        let request = http::Request::builder().method(Method::PUT).uri(uri);
        let request = request.body(body).map_err(|error| RestError::bad_request(error.to_string()))?;
        self.session.native.send(request).await?;
        self.metadata.set(self.session, &path).await?;
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut stored = json!({ "path": path, "name": name, "type": "file" });
        if let Some(metadata) = self.metadata.shown() {
            stored["metadata"] = metadata;
        }
        Ok(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    async fn unpack(bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
        let pieces: Vec<_> = unpacked(Body::from(bytes)).collect().await;
        pieces.into_iter().try_fold(Vec::new(), |mut all, piece| {
            all.extend_from_slice(&piece?);
            Ok(all)
        })
    }

    fn pack(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn gzip_uploads_are_decompressed_and_corruption_is_detected() {
        let text: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(unpack(pack(&text)).await.unwrap(), text);
        assert_eq!(unpack(pack(b"")).await.unwrap(), b"");
        let mut cut = pack(&text);
        cut.truncate(cut.len() / 2);
        assert!(unpack(cut).await.is_err());
    }
}
