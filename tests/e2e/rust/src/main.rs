//! `tokio-postgres` against a managed database: prepared statements, transactions, pipelining, cancelling, TLS with the installation's
//! authority. Run by `test_databases.py`, with the way to a server and to its pooler as connection strings and the authority's file.

#![forbid(unsafe_code)]

mod tls;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Statement};

use tls::Tls;

/// Longest time for any step; an emulated machine is slow.
const WAIT: Duration = Duration::from_secs(60);
/// Interval between checks of a server's state.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [direct, pooled, authority] = arguments.as_slice() else {
        bail!(
            "usage: pandastack-e2e-tokio-postgres DIRECT POOLED CA.pem, the first two as connection strings"
        );
    };
    let tls = Tls::trusting(Path::new(authority))?;
    tokio::time::timeout(WAIT, check(direct, pooled, &tls)).await.context("it takes too long")?
}

async fn check(direct: &str, pooled: &str, tls: &Tls) -> Result<()> {
    for (way, url) in [("direct", direct), ("pooled", pooled)] {
        let client = connect(url, tls).await.with_context(|| format!("{way}: connect"))?;
        prepared(&client).await.with_context(|| format!("{way}: prepared statements"))?;
        transactions(url, tls).await.with_context(|| format!("{way}: transactions"))?;
        cancelled(&client, url, tls).await.with_context(|| format!("{way}: cancel"))?;
        println!("{way}: ok");
    }
    let stranger = connect(direct, &Tls::trusting_nobody()?).await;
    ensure!(stranger.is_err(), "a server that nobody vouches for was taken");
    Ok(())
}

async fn connect(url: &str, tls: &Tls) -> Result<Client> {
    let config: Config = url.parse()?;
    let (client, connection) = config.connect(tls.clone()).await?;
    // Ends with its client.
    tokio::spawn(connection);
    Ok(client)
}

/// The same statement often, and several at once on one connection.
async fn prepared(client: &Client) -> Result<()> {
    let statement = client.prepare("SELECT $1::int4 * 2, $2::text").await?;
    for n in 0..10 {
        let doubled = double(client, &statement, n).await?;
        ensure!(doubled == 2 * n, "twice {n} came to {doubled}");
    }
    let (first, second, third) = tokio::try_join!(
        double(client, &statement, 1),
        double(client, &statement, 2),
        double(client, &statement, 3)
    )?;
    ensure!([first, second, third] == [2, 4, 6], "pipelined: {first}, {second}, {third}");
    Ok(())
}

async fn double(client: &Client, statement: &Statement, n: i32) -> Result<i32> {
    let row = client.query_one(statement, &[&n, &"kept"]).await?;
    ensure!(row.get::<_, &str>(1) == "kept", "{row:?}");
    Ok(row.get(0))
}

/// Rolled-back rows are gone; other connections see committed ones.
async fn transactions(url: &str, tls: &Tls) -> Result<()> {
    let mut client = connect(url, tls).await?;
    client.batch_execute("DROP TABLE IF EXISTS rust; CREATE TABLE rust (n int4)").await?;
    for (n, keep) in [(1_i32, false), (2, true)] {
        let transaction = client.transaction().await?;
        transaction.execute("INSERT INTO rust VALUES ($1)", &[&n]).await?;
        if keep { transaction.commit().await? } else { transaction.rollback().await? }
    }
    let other = connect(url, tls).await?;
    let rows = other.query("SELECT n FROM rust", &[]).await?;
    let kept: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    ensure!(kept == [2], "{kept:?}");
    Ok(other.batch_execute("DROP TABLE rust").await?)
}

/// A query that is cancelled ends with the server's error, and its session goes on.
async fn cancelled(client: &Client, url: &str, tls: &Tls) -> Result<()> {
    let token = client.cancel_token();
    let cancel = async {
        // A cancel that comes before its query does nothing.
        sees_sleeper(&connect(url, tls).await?).await?;
        Ok(token.cancel_query(tls.clone()).await?)
    };
    let sleep = async { Ok::<_, anyhow::Error>(client.batch_execute("SELECT pg_sleep(600)").await) };
    let (ended, ()) = tokio::try_join!(sleep, cancel)?;
    let error = ended.err().context("the query was not cancelled")?;
    ensure!(error.code() == Some(&SqlState::QUERY_CANCELED), "{error:?}");
    let row = client.query_one("SELECT 1::int4", &[]).await?;
    ensure!(row.get::<_, i32>(0) == 1, "{row:?}");
    Ok(())
}

async fn sees_sleeper(client: &Client) -> Result<()> {
    let sql =
        "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'";
    let looking = client.prepare(sql).await?;
    while client.query_one(&looking, &[]).await?.get::<_, i64>(0) == 0 {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
