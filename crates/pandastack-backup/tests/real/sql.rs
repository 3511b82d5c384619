//! Statements of tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use pandastack_postgres::{
    Backend, Bounds, ConnectError, Credentials, Databases, Endpoint, Listener, LoginError, RunError, Session,
    Statement,
};
use tokio::net::UnixStream;

use crate::server::PASSWORD;

const WAIT: Duration = Duration::from_secs(60);

struct Socket(PathBuf);

#[async_trait]
impl Databases for Socket {
    async fn connect(&self, _endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        let stream = UnixStream::connect(&self.0).await;
        let stream = stream.map_err(|error| ConnectError::Unavailable(error.to_string()))?;
        Ok(Backend::uncounted(Box::new(stream)))
    }
}

/// A session.
pub struct Sql {
    session: Session,
    socket: Socket,
    endpoint: Endpoint,
}

impl Sql {
    pub async fn open(socket: PathBuf) -> Result<Self, LoginError> {
        let (socket, endpoint) =
            (Socket(socket), Endpoint { database: "test".to_owned(), listener: Listener::Direct });
        let credentials = Credentials {
            user: "postgres".to_owned(),
            password: PASSWORD.to_owned(),
            database: "postgres".to_owned(),
            parameters: BTreeMap::new(),
        };
        let session = Session::open(&socket, &endpoint, &credentials).await?;
        Ok(Self { session, socket, endpoint })
    }

    pub async fn try_run(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, RunError> {
        let statement = Statement { sql: sql.to_owned(), parameters: Vec::new() };
        let bounds = Bounds { rows_max: 0, wait: WAIT };
        let outcomes = self.session.run(&self.socket, &self.endpoint, &[statement], None, bounds).await?;
        Ok(outcomes.into_iter().next().map(|outcome| outcome.rows).unwrap_or_default())
    }

    /// First column of all rows.
    pub async fn run(&mut self, sql: &str) -> Vec<String> {
        let rows = self.try_run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
    }

    pub async fn value(&mut self, sql: &str) -> String {
        self.run(sql).await.into_iter().next().unwrap_or_else(|| panic!("{sql}: no row"))
    }
}
