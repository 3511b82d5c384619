//! Tests of all object stores: what works in a folder works in each of them.

#[path = "../../tests/real/bucket.rs"]
mod bucket;

use jiff::SignedDuration;

use super::*;
use crate::position::{Lsn, Segment};
use crate::window::{BaseBackup, Catalog};
use bucket::Bucket;

/// The store's clock is this machine's here, but some count in seconds.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(60);

fn open(bucket: &Bucket, database: &str) -> Archive {
    Archive::open(&bucket.url, &bucket.settings, database, Key::new([1; 32])).unwrap()
}

async fn put(archive: &Archive, entry: &Entry, plain: impl Into<Bytes>) -> Result<(), ArchiveError> {
    archive.put(entry, Timestamp::now(), plain.into()).await
}

async fn entries(archive: &Archive) -> Vec<Entry> {
    archive.list().await.unwrap().into_iter().map(|listed| listed.entry).collect()
}

fn segment(number: u64) -> Segment {
    Segment { timeline: Timeline(1), number }
}

/// Incompressible bytes.
fn noise() -> Bytes {
    let mut bytes = vec![0; usize::try_from(SEGMENT_BYTES).unwrap()];
    getrandom::fill(&mut bytes).unwrap();
    bytes.into()
}

async fn what_is_there_stays(archive: &Archive) {
    let entry = Entry::History(Timeline(2));
    assert!(archive.get(&entry).await.unwrap_err().is_missing());
    archive.remove(&entry).await.unwrap();
    put(archive, &entry, "one").await.unwrap();
    put(archive, &entry, "one").await.unwrap();
    let other = put(archive, &entry, "two").await;
    assert!(matches!(other, Err(ArchiveError::Conflict(_))), "{other:?}");
    assert_eq!(archive.get(&entry).await.unwrap().plain, b"one");
    archive.remove(&entry).await.unwrap();
    assert!(archive.get(&entry).await.unwrap_err().is_missing());
}

async fn log_comes_back(archive: &Archive) {
    let (whole, noise) = (Entry::Segment(segment(1)), noise());
    put(archive, &whole, noise.clone()).await.unwrap();
    assert_eq!(archive.get(&whole).await.unwrap().plain, noise);
    let pieces = (0..10).map(|from| Entry::Piece(Piece { segment: segment(2), from, to: from + 1 }));
    let mut expected = vec![whole];
    for piece in pieces {
        put(archive, &piece, "x").await.unwrap();
        expected.push(piece);
    }
    let listed = archive.list_wal(Timeline(1)).await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.entry.clone()).collect::<Vec<_>>(), expected);
    assert!(listed[0].bytes >= SEGMENT_BYTES, "{listed:?}");
    for ArchivedObject { entry, put_at, .. } in &listed {
        let off = put_at.duration_since(Timestamp::now()).abs();
        assert!(off < CLOCK_TOLERANCE, "{entry:?} was put {off} from now");
    }
    assert!(archive.list_wal(Timeline(2)).await.unwrap().is_empty());
}

/// Puts a base that is complete with the first bytes of a segment.
async fn put_base(archive: &Archive, number: u64, stopped_at: Timestamp) -> [Entry; 2] {
    let start = segment(number).start();
    let base = BaseBackup {
        label: format!("b{number}"),
        server_version: "16.14".to_owned(),
        system_id: "7".to_owned(),
        timeline: Timeline(1),
        start,
        stop: Lsn(start.0 + 1),
        started_at: stopped_at,
        stopped_at,
        parts: 1,
        tar_bytes: 3,
    };
    let part = Entry::BasePart { label: base.label.clone(), number: 0 };
    put(archive, &part, "tar").await.unwrap();
    let description = Entry::Base { label: base.label.clone() };
    put(archive, &description, serde_json::to_vec(&base).unwrap()).await.unwrap();
    [part, description]
}

/// After [`log_comes_back`].
async fn what_is_expired_goes(archive: &Archive) {
    let now = Timestamp::now();
    let [part, description] = put_base(archive, 1, now - SignedDuration::from_hours(48)).await;
    let newer = put_base(archive, 2, now - SignedDuration::from_hours(24)).await;
    let catalog = Catalog::read(archive).await.unwrap();
    assert_eq!(catalog.window().bases.len(), 2);
    let expired = catalog.expired(now, now);
    assert_eq!(expired, [description, part, Entry::Segment(segment(1))]);
    let before = entries(archive).await;
    for entry in &expired {
        archive.remove(entry).await.unwrap();
    }
    let left = entries(archive).await;
    assert_eq!(left, before.into_iter().filter(|entry| !expired.contains(entry)).collect::<Vec<_>>());
    assert!(newer.iter().all(|entry| left.contains(entry)), "{left:?}");
}

async fn a_removed_database_takes_no_other_along(bucket: &Bucket, archive: &Archive) {
    // The name of one begins with that of the other.
    let other = open(bucket, "db-11");
    put(&other, &Entry::History(Timeline(2)), "mine").await.unwrap();
    assert!(!entries(archive).await.contains(&Entry::History(Timeline(2))));
    archive.remove_all().await.unwrap();
    assert_eq!(entries(archive).await, []);
    assert_eq!(entries(&other).await, [Entry::History(Timeline(2))]);
}

async fn check_archive(kind: &str) {
    let Some(bucket) = Bucket::start(kind) else { return };
    let archive = open(&bucket, "db-1");
    assert_eq!(entries(&archive).await, []);
    what_is_there_stays(&archive).await;
    log_comes_back(&archive).await;
    what_is_expired_goes(&archive).await;
    a_removed_database_takes_no_other_along(&bucket, &archive).await;
}

#[tokio::test]
async fn an_archive_is_stored_in_s3() {
    check_archive("s3").await;
}

#[tokio::test]
async fn an_archive_is_stored_in_google_cloud_storage() {
    check_archive("gs").await;
}

#[tokio::test]
async fn an_archive_is_stored_in_azure_blob_storage() {
    check_archive("az").await;
}

#[tokio::test]
async fn google_application_credentials_names_the_key_file() {
    let Some(mut bucket) = Bucket::start("gs") else { return };
    for (name, _) in bucket.settings.iter_mut().filter(|(name, _)| name == "google_service_account") {
        "google_application_credentials".clone_into(name);
    }
    let archive = open(&bucket, "db-1");
    put(&archive, &Entry::History(Timeline(2)), "mine").await.unwrap();
    assert_eq!(entries(&archive).await, [Entry::History(Timeline(2))]);
}

/// Checks that a client with a wrong key can read and write nothing, and learns so at once.
async fn check_refusal(kind: &str, wrong: (&str, &str)) {
    let Some(mut bucket) = Bucket::start(kind) else { return };
    bucket.settings.retain(|(name, _)| name != wrong.0);
    bucket.settings.push((wrong.0.to_owned(), wrong.1.to_owned()));
    let archive = open(&bucket, "db-1");
    let refused = |error: ArchiveError| match error {
        ArchiveError::Store { reason: object_store::Error::PermissionDenied { .. }, .. }
        | ArchiveError::Store { reason: object_store::Error::Unauthenticated { .. }, .. } => {}
        other => panic!("{other:?}"),
    };
    refused(put(&archive, &Entry::History(Timeline(2)), "mine").await.unwrap_err());
    refused(archive.get(&Entry::History(Timeline(2))).await.unwrap_err());
}

#[tokio::test]
async fn google_storage_rejects_invalid_credentials() {
    check_refusal("gs", ("google_bearer_token", "e30.e30.AAAA")).await;
}

#[tokio::test]
async fn azure_blob_storage_refuses_wrong_credentials() {
    check_refusal("az", ("azure_storage_account_key", "AAAA")).await;
}
