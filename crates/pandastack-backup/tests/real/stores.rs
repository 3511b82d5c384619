//! A server's backup can be restored from every kind of store.

use pandastack_backup::{Archive, Catalog, Key, Target, take_base};

use crate::bucket::Bucket;
use crate::instants::{KEY, all, archiver, instant, rows, settle, write};
use crate::server::{Server, connect, login};

async fn check_restore(kind: &str) {
    let Some(server) = Server::start(&format!("a backup in {kind}://")) else { return };
    let Some(bucket) = Bucket::start(kind) else { return };
    let archive = Archive::open(&bucket.url, &bucket.settings, "db-1", Key::new(KEY)).unwrap();
    let mut sql = server.sql().await;
    sql.run("CREATE TABLE t (n int)").await;
    let following = archiver(&server, &archive);
    take_base(connect(server.socket()).await.unwrap(), &login(), &archive, None).await.unwrap();
    write(&mut sql, 0..10).await;
    let middle = instant(&mut sql).await;
    // More than a segment, so that a whole segment is put and its pieces are deleted.
    sql.run("CREATE TABLE filler AS SELECT repeat(md5(n::text), 20) FROM generate_series(1, 40000) n").await;
    write(&mut sql, 10..20).await;
    settle(&mut sql, &following).await;
    following.stop().await;
    let window = Catalog::read(&archive).await.unwrap().window();
    assert_eq!((window.gaps.as_slice(), window.restorable.len()), (&[][..], 1), "{window:?}");
    assert_eq!(rows(&server.restore(&archive, Target::At(middle)).await).await, all(10));
    assert_eq!(rows(&server.restore(&archive, Target::Latest).await).await, all(20));
    archive.remove_all().await.unwrap();
    assert!(archive.list().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_from_s3() {
    check_restore("s3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_from_google_cloud_storage() {
    check_restore("gs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_from_azure_blob_storage() {
    check_restore("az").await;
}
