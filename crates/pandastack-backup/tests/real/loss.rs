//! Data loss when a server is lost: at most a few seconds.

use std::time::{Duration, Instant};

use pandastack_backup::{Catalog, Target, take_base};

use crate::instants::{archive, archiver};
use crate::server::{Server, connect, login};

/// The promised limit.
const LOSS_MAX_MS: i64 = 5_000;

#[tokio::test(flavor = "multi_thread")]
async fn at_most_five_seconds_are_lost() {
    let Some(server) = Server::start("at_most_five_seconds_are_lost") else { return };
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let archiver = archiver(&server, &archive);
    let mut sql = server.sql().await;
    sql.run("CREATE TABLE t (n serial, at timestamptz DEFAULT clock_timestamp())").await;
    take_base(connect(server.socket()).await.unwrap(), &login(), &archive, None).await.unwrap();
    // Longer than the promised interval: otherwise an empty archive would also pass.
    let begin = Instant::now();
    // The disk of a loaded host stands still at times: then nothing is committed, and nothing is archived.
    let mut stall = Duration::ZERO;
    while begin.elapsed() < Duration::from_millis(7_500) {
        let inserting = Instant::now();
        sql.run("INSERT INTO t DEFAULT VALUES").await;
        stall = stall.max(inserting.elapsed());
    }
    let stall_ms = i64::try_from(stall.as_millis()).unwrap();
    let (rows, killed_at) =
        (sql.value("SELECT count(*) FROM t").await, sql.value("SELECT clock_timestamp()").await);
    // The archive at this instant is all there will ever be.
    let copy = tempfile::tempdir().unwrap();
    let copied =
        std::process::Command::new("cp").arg("-r").arg(folder.path().join(".")).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    server.kill();
    archiver.stop().await;

    let copy = crate::instants::archive(copy.path());
    let restored = server.restore(&copy, Target::Latest).await;
    let mut sql = restored.sql().await;
    let lost =
        format!("SELECT (extract(epoch FROM '{killed_at}'::timestamptz - max(at)) * 1000)::bigint FROM t");
    let lost_ms: i64 = sql.value(&lost).await.parse().unwrap();
    let kept = sql.value("SELECT count(*) FROM t").await;
    println!("lost: {lost_ms} ms, {kept} of {rows} rows kept; longest insert {stall_ms} ms");
    assert!(lost_ms <= LOSS_MAX_MS + stall_ms, "{lost_ms} ms were lost; longest insert {stall_ms} ms");
    assert_eq!(sql.value("SELECT count(*) = max(n) FROM t").await, "t", "rows are missing in the middle");
    // A time that is called restorable must be restorable.
    let latest = Catalog::read(&copy).await.unwrap().window().latest().unwrap();
    let slack = format!("interval '{} milliseconds'", 1_000 + stall_ms);
    let claimed = format!("SELECT '{latest}'::timestamptz <= max(at) + {slack} FROM t");
    assert_eq!(sql.value(&claimed).await, "t");
}
