//! Targets for `cargo xtask fuzz`.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use pandastack_types::limits::BUNDLE_ENTRIES_MAX;

use crate::bundle::{BundleRefused, check, kept};
use crate::connection::{Connection, RuntimeFrame};

/// A bundle, tar or zip. A converted zip is readable, and has no more entries than a bundle may
/// have.
pub fn bundle(data: &[u8]) {
    let Ok(packed) = kept(data.to_vec()) else { return };
    let is_zip = packed != data;
    match check(&packed) {
        Ok(checked) => {
            assert!(checked.files.len() <= BUNDLE_ENTRIES_MAX);
            assert!(checked.files.iter().all(|name| !name.starts_with('/') && name != ".."));
            let _ = checked.requirements();
        }
        Err(BundleRefused::NotAnArchive(why)) => assert!(!is_zip, "a zip became no archive: {why}"),
        Err(_) => {}
    }
}

/// Frames of a function's machine, up to the first error.
pub fn runtime_frames(data: &[u8]) {
    let mut connection = Connection::over(tokio::io::join(data, tokio::io::sink()), "fuzz");
    let mut bytes = 0;
    let read = async {
        while let Ok(frame) = connection.next().await {
            bytes += match frame {
                RuntimeFrame::Log(_, text) => text.len(),
                RuntimeFrame::Data(part) => part.len(),
                RuntimeFrame::Head(_) | RuntimeFrame::End(_) => 0,
            };
        }
    };
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(pin!(read).poll(&mut context), Poll::Ready(()), "bytes in memory never wait");
    assert!(bytes <= data.len());
}
