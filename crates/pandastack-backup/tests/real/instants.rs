//! Any instant can be restored, even after failures of the archiver, the archive and the server.

use std::path::Path;

use jiff::Timestamp;
use pandastack_backup::{
    Archive, Archiver, Catalog, Key, Lsn, PlanError, Restore, Target, Timeline, take_base,
};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::server::{Server, connect, login};
use crate::sql::Sql;

pub const KEY: [u8; 32] = [42; 32];

pub fn archive(folder: &Path) -> Archive {
    Archive::open(&Url::from_directory_path(folder).unwrap(), &[], "db-1", Key::new(KEY)).unwrap()
}

pub fn archiver(server: &Server, archive: &Archive) -> Archiver {
    let socket = server.socket();
    Archiver::start(login(), archive.clone(), move || connect(socket.clone()), CancellationToken::new())
}

/// One commit per row.
pub async fn write(sql: &mut Sql, rows: std::ops::Range<u32>) {
    for row in rows {
        sql.run(&format!("INSERT INTO t VALUES ({row})")).await;
    }
}

pub async fn instant(sql: &mut Sql) -> Timestamp {
    let text = sql
        .value("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
        .await;
    text.parse().unwrap()
}

/// Waits until everything that is written by now is archived.
pub async fn settle(sql: &mut Sql, archiver: &Archiver) {
    let end: Lsn = sql.value("SELECT pg_current_wal_flush_lsn()").await.parse().unwrap();
    let mut status = archiver.status();
    let archived =
        status.wait_for(|status| status.last_archived.is_some_and(|(_, archived)| archived >= end));
    tokio::time::timeout(crate::server::WAIT, archived).await.expect("archived in time").unwrap();
}

pub async fn rows(server: &Server) -> Vec<u32> {
    let rows = server.sql().await.run("SELECT n FROM t ORDER BY n").await;
    rows.iter().map(|row| row.parse().unwrap()).collect()
}

pub fn all(rows: u32) -> Vec<u32> {
    (0..rows).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_instant_is_restored_exactly() {
    let Some(server) = Server::start("any_instant_is_restored_exactly") else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let archive = archive(&store);
    let mut sql = server.sql().await;
    sql.run("CREATE TABLE t (n int)").await;
    assert_eq!(Catalog::read(&archive).await.unwrap().plan_restore(Target::Latest), Err(PlanError::NoBase));

    // An archiver that is killed with its whole runtime, while a base is taken and rows are written.
    let doomed = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap();
    let first = {
        let _guard = doomed.enter();
        archiver(&server, &archive)
    };
    write(&mut sql, 0..10).await;
    let before = instant(&mut sql).await;
    let stream = connect(server.socket()).await.unwrap();
    let login = login();
    let (base, ()) = tokio::join!(take_base(stream, &login, &archive, None), write(&mut sql, 10..50));
    let base = base.unwrap();
    assert!(base.start < base.stop && base.tar_bytes > 1_000_000, "{base:?}");
    settle(&mut sql, &first).await;
    write(&mut sql, 50..60).await;
    let middle = instant(&mut sql).await;
    doomed.shutdown_background();
    write(&mut sql, 60..80).await;
    // More than a segment behind.
    sql.run("CREATE TABLE filler AS SELECT repeat(md5(n::text), 20) FROM generate_series(1, 40000) n").await;
    write(&mut sql, 80..90).await;
    let second = archiver(&server, &archive);
    settle(&mut sql, &second).await;

    // The archive is away for a while.
    let away = folder.path().join("away");
    std::fs::rename(&store, &away).unwrap();
    std::fs::write(&store, "not a folder").unwrap();
    write(&mut sql, 90..100).await;
    let mut status = second.status();
    let failing = status.wait_for(|status| status.failing_since.is_some()).await.unwrap().clone();
    assert!(failing.last_error.as_ref().unwrap().contains("could not write wal/"), "{failing:?}");
    sql.run("INSERT INTO filler SELECT repeat(md5(n::text), 20) FROM generate_series(1, 40000) n").await;
    write(&mut sql, 100..110).await;
    std::fs::remove_file(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    second.wake();
    settle(&mut sql, &second).await;
    let caught_up = second.status().borrow().clone();
    assert!(caught_up.failing_since.is_none() && caught_up.last_error.is_none(), "{caught_up:?}");
    // The server writes on by itself: it looks after the tables that were filled.
    let mut status = second.status();
    let caught_up = status.wait_for(|status| status.lag_bytes == 0);
    tokio::time::timeout(crate::server::WAIT, caught_up).await.expect("caught up in time").unwrap();
    let late = instant(&mut sql).await;

    // No transaction ends after this: the server must not get a target that it cannot reach.
    second.stop().await;
    let mut catalog = Catalog::read(&archive).await.unwrap();
    let window = catalog.window();
    assert_eq!((window.gaps.as_slice(), window.restorable.len()), (&[][..], 1), "{window:?}");
    assert!(matches!(catalog.plan_restore(Target::At(before)), Err(PlanError::TooEarly { .. })));
    let after = late.checked_add(jiff::Span::new().hours(1)).unwrap();
    assert!(matches!(catalog.plan_restore(Target::At(after)), Err(PlanError::TooLate { .. })));
    catalog.extend(window.end.unwrap(), after);
    let idle = Restore::prepare(&archive, catalog.plan_restore(Target::At(after)).unwrap()).await.unwrap();
    assert_eq!(idle.stop_at(), None);
    assert_eq!(rows(&server.restore_with(&idle).await).await, all(110));
    assert_eq!(rows(&server.restore(&archive, Target::At(middle)).await).await, all(60));

    // Across a recovery of the server itself, on the next timeline. Writes before an archiver's
    // stop are archived.
    let third = archiver(&server, &archive);
    write(&mut sql, 110..115).await;
    drop(sql);
    server.recover_in_place().await;
    let mut sql = server.sql().await;
    let mut status = third.status();
    status
        .wait_for(|status| status.last_archived.is_some_and(|(timeline, _)| timeline == Timeline(2)))
        .await
        .unwrap();
    write(&mut sql, 115..120).await;
    third.stop().await;
    let restored = server.restore(&archive, Target::Latest).await;
    assert_eq!(rows(&restored).await, all(120));
    let window = Catalog::read(&archive).await.unwrap().window();
    assert_eq!(window.end.unwrap().0, Timeline(2), "{window:?}");
    // Slots and archives of the old server are not the new one's.
    let mut sql = restored.sql().await;
    assert_eq!(sql.value("SELECT count(*) FROM pg_replication_slots").await, "0");
    assert_eq!(sql.value("SHOW archive_mode").await, "off");
}
