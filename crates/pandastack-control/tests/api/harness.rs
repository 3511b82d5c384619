//! A control plane with its own data directory, and a client for it.

use std::future::Future;
use std::time::Duration;

use pandastack_control::{Control, ControlConfig, ServeError};
use pandastack_types::link::LinkKey;
use reqwest::Method;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fake_agent::{FakeAgent, SECRET};

/// Longest wait for anything in these tests. All waits end early.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A fake host reports when its test says so, and is not lost in between.
const HOST_LOST_AFTER: Duration = Duration::from_secs(3600);

pub struct World {
    dir: tempfile::TempDir,
    config: ControlConfig,
    pub base: String,
    /// Where hosts of other machines join.
    pub hosts_address: Option<std::net::SocketAddr>,
    pub token: String,
    pub http: reqwest::Client,
    running: Option<(CancellationToken, JoinHandle<Result<(), ServeError>>)>,
}

pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub json: Value,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.json);
        self.json
    }

    /// An error in our form, with that status and code.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.json["code"].as_str()), (status, Some(code)), "{}", self.json);
        assert!(self.json["error"].as_str().is_some_and(|sentence| !sentence.is_empty()), "{}", self.json);
        let id = self.headers["x-request-id"].to_str().unwrap();
        assert_eq!(self.json["request_id"], id, "{}", self.json);
        self.json
    }
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut ControlConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ControlConfig::new(dir.path().join("data"), LinkKey::new(&SECRET).unwrap());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.host_lost_after = HOST_LOST_AFTER;
        change(&mut config);
        let mut world = Self {
            dir,
            config,
            base: String::new(),
            hosts_address: None,
            token: String::new(),
            http: pandastack_http::builder_for("http:").build().unwrap(),
            running: None,
        };
        world.run().await;
        world
    }

    async fn run(&mut self) {
        let control = Control::bind(self.config.clone()).await.unwrap();
        self.base = format!("http://{}", control.addresses()[0]);
        self.hosts_address = control.hosts_address();
        // A server that joins others has no key of its own.
        if let Ok(token) = std::fs::read_to_string(self.config.bootstrap_token_path()) {
            token.trim().clone_into(&mut self.token);
        }
        let stop = CancellationToken::new();
        self.running = Some((stop.clone(), tokio::spawn(control.run(stop))));
    }

    pub async fn stop(&mut self) {
        if let Some((stop, task)) = self.running.take() {
            stop.cancel();
            task.await.unwrap().unwrap();
        }
    }

    /// Waits for the server to end by itself, and returns how.
    pub async fn ended(&mut self) -> Result<(), ServeError> {
        let (_, task) = self.running.take().unwrap();
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap()
    }

    /// Ends the server as a crash would: without finishing or reporting anything.
    pub async fn crash(&mut self) {
        if let Some((_, task)) = self.running.take() {
            task.abort();
            let _ = task.await;
        }
    }

    pub async fn restart(&mut self) {
        self.stop().await;
        self.run().await;
    }

    pub async fn start_again(&mut self) {
        self.run().await;
    }

    /// Configuration of the server.
    pub fn config(&self) -> &ControlConfig {
        &self.config
    }

    /// Directory of this world, for sockets of agents.
    pub fn directory(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Socket to which agents report.
    pub fn internal_socket(&self) -> &std::path::Path {
        &self.config.internal_socket
    }

    /// An agent that has reported once.
    pub async fn agent(&self, host: &str, memory_free_mb: u64) -> FakeAgent {
        let agent =
            FakeAgent::start(self.dir.path(), host, memory_free_mb, &self.config.internal_socket).await;
        agent.report().await;
        agent
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token).timeout(PATIENCE)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await.unwrap();
        let json = match bytes.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned())),
        };
        Answer { status, headers, json }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// A sandbox of `base` and its id.
    pub async fn create(&self) -> String {
        let made = self.post("/v1/sandboxes", serde_json::json!({"template": "base"})).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    pub async fn ids(&self) -> Vec<String> {
        let list = self.get("/v1/sandboxes").await.expect(200);
        list["items"].as_array().unwrap().iter().map(|s| s["id"].as_str().unwrap().to_owned()).collect()
    }

    /// A number from the database, for what the API does not show yet.
    pub async fn count(&self, query: &'static str) -> i64 {
        let path = self.config.control_dir().join("control.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).read_only(true);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::query_scalar(query).fetch_one(&pool).await.unwrap()
    }

    /// A text from the database.
    pub async fn text(&self, query: &str) -> String {
        let path = self.config.control_dir().join("control.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).read_only(true);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned())).fetch_one(&pool).await.unwrap()
    }

    /// Changes the database of a stopped server to the state after a crash.
    pub async fn execute(&self, statement: &'static str, values: &[&str]) {
        let path = self.config.control_dir().join("control.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let query =
            values.iter().fold(sqlx::query(statement), |query, value| query.bind((*value).to_owned()));
        query.execute(&pool).await.unwrap();
        pool.close().await;
    }

    pub async fn kinds(&self, id: &str) -> Vec<String> {
        let list = self.get(&format!("/v1/sandboxes/{id}/events")).await.expect(200);
        list["events"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap().to_owned()).collect()
    }
}

/// Waits until a condition holds. These are conditions of another task that has no event to wait for.
pub async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until this process has no open file in a directory. A server that was dropped in the middle of its work
/// ends on threads of its own, such as those that write the database; a crash would end them, too.
#[expect(clippy::disallowed_methods, reason = "no event tells that another thread has closed a file")]
pub fn wait_until_closed(dir: &std::path::Path) {
    let started = std::time::Instant::now();
    let is_open = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        descriptors.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file.starts_with(dir)))
    };
    while is_open() {
        assert!(started.elapsed() < PATIENCE, "files of the crashed server stay open");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
