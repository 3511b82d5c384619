//! Metadata of files: headers of an upload, kept as extended attributes of the files.

use std::collections::BTreeMap;

use http::{HeaderMap, Method};
use pandastack_types::api::{FileEntry, SetAttributes};
use serde_json::{Map, Value};

use crate::error::{RestError, RestResult};
use crate::limits::METADATA_BYTES_MAX;
use crate::native_paths as paths;
use crate::session::Session;

/// The beginning of the headers, in lower case.
const HEADER: &str = "x-metadata-";
/// The beginning of the names of the extended attributes.
const ATTRIBUTE: &str = "user.e2b.";
/// Longest key: the kernel's limit of a name without the beginning.
const KEY_BYTES_MAX: usize = 255 - ATTRIBUTE.len();

/// Metadata that an upload gives to its files.
#[derive(Debug, Default)]
pub(super) struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// Reads the headers of an upload. The first of several with the same name counts.
    pub(super) fn of_upload(headers: &HeaderMap) -> RestResult<Self> {
        let mut entries = BTreeMap::new();
        let mut bytes = 0;
        for name in headers.keys() {
            let Some(key) = name.as_str().strip_prefix(HEADER) else { continue };
            let value = headers.get(name).map_or(b"".as_slice(), |value| value.as_bytes());
            let is_printable = value.iter().all(|byte| matches!(byte, b' '..=b'~'));
            let text = std::str::from_utf8(value).ok().filter(|_| is_printable && !key.is_empty());
            let text = text.ok_or_else(|| {
                RestError::bad_request(format!("`{name}` must have a key and a value of printable ASCII"))
            })?;
            bytes += ATTRIBUTE.len() + key.len() + text.len();
            if key.len() > KEY_BYTES_MAX || bytes > METADATA_BYTES_MAX {
                let what = format!(
                    "the metadata is too long; a key has at most {KEY_BYTES_MAX} bytes, all of it \
                     {METADATA_BYTES_MAX}"
                );
                return Err(RestError::bad_request(what));
            }
            entries.insert(key.to_owned(), text.to_owned());
        }
        Ok(Self(entries))
    }

    /// Sets it for a file that was just written, which has none.
    pub(super) async fn set(&self, session: &Session, path: &str) -> RestResult<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let xattrs = self.0.iter().map(|(key, value)| (format!("{ATTRIBUTE}{key}"), Some(value.clone())));
        let attributes = SetAttributes { xattrs: xattrs.collect(), ..SetAttributes::default() };
        let file = paths::file(&session.sandbox, path);
        Ok(session.native.call(Method::PATCH, &file, Some(&attributes)).await?)
    }

    /// The form that clients read; `None` if there is none.
    pub(super) fn shown(&self) -> Option<Value> {
        let shown =
            || self.0.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect::<Map<_, _>>();
        (!self.0.is_empty()).then(|| shown().into())
    }
}

impl From<&FileEntry> for Metadata {
    fn from(file: &FileEntry) -> Self {
        let own = file.xattrs.iter().filter_map(|(name, value)| Some((name.strip_prefix(ATTRIBUTE)?, value)));
        Self(own.map(|(key, value)| (key.to_owned(), value.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn read(pairs: &[(&str, &[u8])]) -> RestResult<Metadata> {
        let header = |(name, value): &(&str, &[u8])| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs.iter().map(header) {
            headers.append(name, value);
        }
        Metadata::of_upload(&headers)
    }

    #[test]
    fn headers_of_an_upload_are_its_metadata() {
        let metadata = read(&[
            ("X-Metadata-Author", b"mish"),
            ("x-metadata-author", b"another"),
            ("x-metadata-note", b""),
            ("content-type", b"text/plain"),
        ]);
        let expected = serde_json::json!({ "author": "mish", "note": "" });
        assert_eq!(metadata.unwrap().shown(), Some(expected));
        assert_eq!(read(&[]).unwrap().shown(), None);
    }

    #[test]
    fn unprintable_and_long_metadata_is_refused() {
        let (key, value) = (format!("x-metadata-{}", "k".repeat(KEY_BYTES_MAX + 1)), vec![b'v'; 4096]);
        for (name, value) in [
            ("x-metadata-a", "ü".as_bytes()),
            ("x-metadata-a", b"a\tb"),
            ("x-metadata-", b"x"),
            (key.as_str(), b"x"),
            ("x-metadata-a", &value),
        ] {
            assert_eq!(read(&[(name, value)]).unwrap_err().status, http::StatusCode::BAD_REQUEST, "{name}");
        }
    }
}
