//! Archiving continues after a server discarded log, and the archive reports the gap.

use pandastack_backup::{Catalog, PlanError, Target, take_base};

use crate::instants::{all, archive, archiver, instant, rows, settle, write};
use crate::server::{Server, connect, login};

#[tokio::test(flavor = "multi_thread")]
async fn lost_wal_is_reported_and_repaired_by_a_new_base_backup() {
    let Some(server) = Server::start("lost_wal_is_reported_and_repaired_by_a_new_base_backup") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let mut sql = server.sql().await;
    sql.run("CREATE TABLE t (n int)").await;
    let first = archiver(&server, &archive);
    take_base(connect(server.socket()).await.unwrap(), &login(), &archive, None).await.unwrap();
    write(&mut sql, 0..10).await;
    settle(&mut sql, &first).await;
    first.stop().await;

    // The slot is removed, and the server removes the segments that it held.
    sql.run("SELECT pg_drop_replication_slot('pandastack')").await;
    for row in 10..13 {
        write(&mut sql, row..row + 1).await;
        sql.run("SELECT pg_switch_wal()").await;
        sql.run("CHECKPOINT").await;
    }
    let second = archiver(&server, &archive);
    let mut status = second.status();
    let gap = status.wait_for(|status| status.gap.is_some()).await.unwrap().gap.unwrap();
    assert!(gap.from < gap.to, "{gap:?}");
    write(&mut sql, 13..20).await;
    settle(&mut sql, &second).await;
    let lost = instant(&mut sql).await;
    let catalog = Catalog::read(&archive).await.unwrap();
    assert_eq!(catalog.window().gaps, [gap]);
    assert!(matches!(catalog.plan_restore(Target::At(lost)), Err(PlanError::Gap { .. })));

    take_base(connect(server.socket()).await.unwrap(), &login(), &archive, None).await.unwrap();
    write(&mut sql, 20..30).await;
    settle(&mut sql, &second).await;
    second.stop().await;
    assert_eq!(rows(&server.restore(&archive, Target::Latest).await).await, all(30));
}
