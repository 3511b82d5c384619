//! Watching files.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pandastack_guest_proto::client::{ClientError, GuestClient, WatchStream};
use pandastack_guest_proto::message::{
    Change, ChangeKind, ErrorCode, FileWatch, FileWrite, RawPath, WatchPosition,
};

use crate::harness::{Guest, STEP};

fn raw(path: &Path) -> RawPath {
    path.as_os_str().as_bytes().to_vec().into()
}

async fn watch(client: &GuestClient, path: &Path, resume: Option<WatchPosition>) -> WatchStream {
    client.watch(FileWatch { path: raw(path), recursive: true, resume }).await.unwrap()
}

/// Reads until a change of that kind and path.
async fn until(stream: &mut WatchStream, kind: ChangeKind, path: &str) -> Vec<Change> {
    let mut seen: Vec<Change> = Vec::new();
    loop {
        let page = tokio::time::timeout(STEP, stream.next()).await;
        let page = page.unwrap_or_else(|_| panic!("no {kind:?} of {path} among {seen:?}")).unwrap();
        seen.extend(page.unwrap_or_else(|| panic!("the watch ended after {seen:?}")));
        if seen.iter().any(|change| change.kind == kind && change.path.to_string_lossy() == path) {
            return seen;
        }
    }
}

#[tokio::test]
async fn a_watch_covers_new_and_renamed_directories() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("watched");
    std::fs::create_dir(&root).unwrap();
    let mut stream = watch(&client, &root, None).await;
    assert!(!stream.resumed());
    std::fs::create_dir_all(root.join("a/b c")).unwrap();
    std::fs::write(root.join("a/b c/ü"), "1").unwrap();
    until(&mut stream, ChangeKind::Created, "a/b c/ü").await;
    std::fs::rename(root.join("a"), root.join("z")).unwrap();
    let seen = until(&mut stream, ChangeKind::Renamed, "a").await;
    let renamed = seen.iter().find(|change| change.kind == ChangeKind::Renamed).unwrap();
    assert_eq!(renamed.to.as_ref().unwrap().to_string_lossy(), "z");
    assert!(renamed.is_directory);
    std::fs::write(root.join("z/b c/ü"), "2").unwrap();
    until(&mut stream, ChangeKind::Modified, "z/b c/ü").await;
    std::fs::remove_file(root.join("z/b c/ü")).unwrap();
    until(&mut stream, ChangeKind::Removed, "z/b c/ü").await;
    std::fs::remove_dir_all(&root).unwrap();
    until(&mut stream, ChangeKind::Removed, "").await;
    assert!(tokio::time::timeout(STEP, stream.next()).await.unwrap().unwrap().is_none());
}

/// Contents arrive under a temporary name; a watch shows the file's own only.
#[tokio::test]
async fn an_api_file_write_reports_created_and_modified() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("watched");
    std::fs::create_dir(&root).unwrap();
    let mut stream = watch(&client, &root, None).await;
    let write = async |contents: &[u8]| {
        let request = FileWrite { path: raw(&root.join("a")), ..FileWrite::default() };
        client.write_file_whole(request, contents).await.unwrap();
    };
    write(b"1").await;
    let mut seen = until(&mut stream, ChangeKind::Modified, "a").await;
    write(b"2").await;
    seen.extend(until(&mut stream, ChangeKind::Modified, "a").await);
    std::fs::write(root.join("end"), "").unwrap();
    seen.extend(until(&mut stream, ChangeKind::Created, "end").await);
    let of_a = |change: &&Change| change.path.to_string_lossy() != "end";
    let mut changes: Vec<_> = seen
        .iter()
        .filter(of_a)
        .map(|change| (change.kind, change.path.to_string_lossy().into_owned()))
        .collect();
    changes.dedup();
    let expected = [ChangeKind::Created, ChangeKind::Modified].map(|kind| (kind, "a".to_owned()));
    assert_eq!(changes, expected, "its first and its second contents");
}

#[tokio::test]
async fn a_watch_resumes_at_its_position() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("watched");
    std::fs::create_dir(&root).unwrap();
    let mut stream = watch(&client, &root, None).await;
    std::fs::write(root.join("one"), "").unwrap();
    let seen = until(&mut stream, ChangeKind::Created, "one").await;
    let position = WatchPosition { watch: stream.position().watch, sequence: seen.last().unwrap().sequence };
    drop(stream);
    drop(client);
    std::fs::write(root.join("while away"), "").unwrap();
    let client = guest.connect().await;
    let mut stream = watch(&client, &root, Some(position)).await;
    assert!(stream.resumed());
    let seen = until(&mut stream, ChangeKind::Created, "while away").await;
    // Sequence numbers have no gap.
    assert!(seen.windows(2).all(|pair| pair[1].sequence == pair[0].sequence + 1), "{seen:?}");
    assert_eq!(seen[0].sequence, position.sequence + 1);
    // Any other watch starts again.
    for other in [
        WatchPosition { watch: position.watch + 9, sequence: 0 },
        WatchPosition { watch: position.watch, sequence: 1 << 40 },
    ] {
        assert!(!watch(&client, &root, Some(other)).await.resumed());
    }
    assert!(!watch(&client, &guest.path("."), Some(position)).await.resumed());
}

#[tokio::test]
async fn missed_changes_are_reported_as_overflow() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("watched");
    std::fs::create_dir(&root).unwrap();
    let stream = watch(&client, &root, None).await;
    let position = stream.position();
    drop(stream);
    for i in 0..3000 {
        std::fs::write(root.join(format!("{i}-{}", "x".repeat(100))), "").unwrap();
    }
    std::fs::write(root.join("last"), "").unwrap();
    let mut stream = watch(&client, &root, Some(position)).await;
    let seen = until(&mut stream, ChangeKind::Created, "last").await;
    assert!(seen.iter().any(|change| change.kind == ChangeKind::Overflow));
}

#[tokio::test]
async fn the_number_of_watches_is_limited() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("watched");
    std::fs::create_dir(&root).unwrap();
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(watch(&client, &root, None).await);
    }
    let one_more = client.watch(FileWatch { path: raw(&root), ..FileWatch::default() }).await;
    match one_more {
        Err(ClientError::Refused(body)) => assert_eq!(body.code, ErrorCode::TooMany),
        other => panic!("{other:?}"),
    }
    let missing = client.watch(FileWatch { path: raw(&root.join("no")), ..FileWatch::default() }).await;
    assert!(matches!(missing, Err(ClientError::Refused(body)) if body.code == ErrorCode::NotFound));
}
