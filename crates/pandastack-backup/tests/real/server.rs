//! A stock server of a test's own, gone with it.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use pandastack_backup::{Archive, Catalog, ConnectError, Login, Password, Restore, Slot, Target};
use pandastack_postgres::ByteStream;
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::sql::Sql;

/// Names the directory of `initdb` and `pg_ctl`; `cargo xtask test` sets it.
const PROGRAMS: &str = "PANDASTACK_TEST_POSTGRES_BIN";
/// The server refuses to run as root; the user `nobody` owns no files that it could damage.
const NOBODY: u32 = 65534;
pub const PASSWORD: &str = "a 'quoted' password";
pub const WAIT: Duration = Duration::from_secs(60);

/// Waits until a condition holds; fails the test on a timeout.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < WAIT, "not within {WAIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub struct Server {
    programs: PathBuf,
    dir: TempDir,
}

impl Server {
    /// Starts an empty server, or prints why the test is skipped.
    pub fn start(test: &str) -> Option<Self> {
        let Some(programs) = std::env::var_os(PROGRAMS).map(PathBuf::from) else {
            println!("skipped: {test} ({PROGRAMS} is not set; `cargo xtask test` brings a server)");
            return None;
        };
        let server = Self::empty(programs);
        let password = server.dir.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let password = format!("--pwfile={}", password.display());
        server.run("initdb", &["--username=postgres", "--auth=scram-sha-256", &password, "--no-sync"]);
        server.boot();
        Some(server)
    }

    fn empty(programs: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if is_root() {
            std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Self { programs, dir }
    }

    /// Restores from an archive into a fresh server.
    pub async fn restore(&self, archive: &Archive, target: Target) -> Self {
        let plan = Catalog::read(archive).await.unwrap().plan_restore(target).unwrap();
        self.restore_with(&Restore::prepare(archive, plan).await.unwrap()).await
    }

    pub async fn restore_with(&self, restore: &Restore) -> Self {
        let server = Self::empty(self.programs.clone());
        let tar: Vec<_> = restore.tar().try_collect().await.unwrap();
        server.unpack(&tar.concat());
        let log = server.dir.path().join("archive");
        std::fs::create_dir(&log).unwrap();
        for name in restore.files() {
            std::fs::write(log.join(&name), restore.file(&name).await.unwrap().unwrap()).unwrap();
        }
        let recovery = restore.recovery(&format!("cp '{}'/%f %p", log.display())).unwrap();
        let settings = server.data().join(recovery.settings_file);
        let mut settings = std::fs::OpenOptions::new().append(true).open(settings).unwrap();
        settings.write_all(recovery.settings.as_bytes()).unwrap();
        std::fs::write(server.data().join(recovery.signal_file), "").unwrap();
        server.boot();
        server.ready().await;
        server
    }

    /// Recovers in place, which starts a new timeline.
    pub async fn recover_in_place(&self) {
        self.run("pg_ctl", &["stop", "--mode=fast"]);
        std::fs::write(self.data().join("postgresql.auto.conf"), "restore_command = 'false'\n").unwrap();
        std::fs::write(self.data().join("recovery.signal"), "").unwrap();
        self.boot();
        self.ready().await;
    }

    fn unpack(&self, tar: &[u8]) {
        std::fs::create_dir(self.data()).unwrap();
        std::os::unix::fs::chown(self.data(), is_root().then_some(NOBODY), is_root().then_some(NOBODY))
            .unwrap();
        std::fs::set_permissions(self.data(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--file=-", "--directory"]).arg(self.data()).stdin(Stdio::piped());
        as_nobody(&mut unpack);
        let mut unpack = unpack.spawn().unwrap();
        unpack.stdin.take().unwrap().write_all(tar).unwrap();
        assert!(unpack.wait().unwrap().success());
    }

    fn boot(&self) {
        let options = format!("-k {} -c listen_addresses=", self.dir.path().display());
        let log = self.dir.path().join("log");
        self.run("pg_ctl", &["start", "--wait", "--log", log.to_str().unwrap(), "--options", &options]);
    }

    /// In archive recovery a server answers before it is done.
    async fn ready(&self) {
        until("the server to end its recovery", || async {
            let Ok(mut sql) = Sql::open(self.socket()).await else { return false };
            let state = sql.try_run("SELECT pg_is_in_recovery()").await;
            state.is_ok_and(|rows| rows == [[Some("f".to_owned())]])
        })
        .await;
    }

    /// Like a power loss, except that the page cache survives.
    pub fn kill(&self) {
        self.run("pg_ctl", &["stop", "--mode=immediate"]);
    }

    pub async fn sql(&self) -> Sql {
        Sql::open(self.socket()).await.unwrap()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(".s.PGSQL.5432")
    }

    fn run(&self, name: &str, args: &[&str]) {
        let mut program = Command::new(self.programs.join(name));
        program.arg("--pgdata").arg(self.data()).args(args).current_dir(self.dir.path());
        // `pg_ctl` passes its outputs to the server, so reading them would block until the server
        // ends.
        program
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .env_clear()
            .env("TZ", "UTC")
            .env("PATH", "/usr/bin:/bin");
        as_nobody(&mut program);
        let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        assert!(program.status().unwrap().success(), "{name} {args:?} failed: {}", log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.data().join("postmaster.pid").exists() {
            self.run("pg_ctl", &["stop", "--mode=immediate"]);
        }
    }
}

/// Replication login of the tests.
pub fn login() -> Login {
    let slot = Slot::new("pandastack").unwrap();
    Login { user: "postgres".to_owned(), password: Password(PASSWORD.to_owned()), slot }
}

pub async fn connect(socket: PathBuf) -> Result<Box<dyn ByteStream>, ConnectError> {
    let stream = UnixStream::connect(socket).await;
    stream.map(|stream| Box::new(stream) as _).map_err(|error| ConnectError::Failed(error.to_string()))
}

fn as_nobody(program: &mut Command) {
    if is_root() {
        program.uid(NOBODY).gid(NOBODY);
    }
}

fn is_root() -> bool {
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|own| own.uid() == 0)
}
