//! A PostgreSQL server of a test's own, gone with it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;

/// Names the directory of `initdb` and `pg_ctl`; `cargo xtask test` sets it.
const PROGRAMS: &str = "PANDASTACK_TEST_POSTGRES_BIN";
/// The server refuses to run as root; the user `nobody` owns no files that it could damage.
const NOBODY: u32 = 65534;

pub(super) struct Server {
    programs: PathBuf,
    dir: TempDir,
    databases: AtomicUsize,
}

impl Server {
    /// Starts a server, or prints why the test is skipped.
    pub(super) fn start(test: &str) -> Option<Self> {
        let Some(programs) = std::env::var_os(PROGRAMS).map(PathBuf::from) else {
            println!("skipped: {test} ({PROGRAMS} is not set; `cargo xtask test` brings a server)");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        if is_root() {
            std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let server = Self { programs, dir, databases: AtomicUsize::new(0) };
        server.run("initdb", &["--username=postgres", "--auth=trust", "--no-sync"]);
        let socket = format!("-k {} -c listen_addresses= -c fsync=off", server.dir.path().display());
        let log = server.dir.path().join("log");
        server.run("pg_ctl", &["start", "--wait", "--log", log.to_str().unwrap(), "--options", &socket]);
        Some(server)
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn run(&self, name: &str, args: &[&str]) {
        let mut program = Command::new(self.programs.join(name));
        program.arg("--pgdata").arg(self.data()).args(args).current_dir(self.dir.path());
        // `pg_ctl` passes its outputs to the server, so reading them would block until the server
        // ends.
        program.stdin(Stdio::null()).stdout(Stdio::null()).env_clear().env("TZ", "UTC");
        if is_root() {
            program.uid(NOBODY).gid(NOBODY);
        }
        assert!(program.status().unwrap().success(), "{name} failed");
    }

    fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?user=postgres&host={}", self.dir.path().display())
    }

    /// The address of a fresh, empty database.
    pub(super) async fn database(&self) -> String {
        let name = format!("d{}", self.databases.fetch_add(1, Ordering::Relaxed));
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(&self.url("postgres")).await.unwrap();
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.run("pg_ctl", &["stop", "--mode=immediate"]);
    }
}

fn is_root() -> bool {
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}
