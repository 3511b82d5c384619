//! Sessions of the platform's own machines, which do not pass through the edge.
//!
//! There is no TLS, because the stream ends in our own processes; a client that prefers TLS is
//! refused it and continues without. The [`Databases`] that serves a session decides which
//! databases its machine may use.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::backend::Databases;
use crate::cancel::CancelTable;
use crate::endpoint::Endpoint;
use crate::limits::{CONNECTIONS_MAX, STARTUP_WAIT};
use crate::server::{refuse, refuse_startup, run_session, take_named};
use crate::startup::{Packet, Startup, StartupError, read};
use crate::wire::Fatal;

/// State shared by all sessions of machines.
#[derive(Debug)]
pub struct InsideServer {
    cancel: Arc<CancelTable>,
    room: Arc<Semaphore>,
}

impl Default for InsideServer {
    fn default() -> Self {
        Self { cancel: Arc::default(), room: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl InsideServer {
    /// Serves a connection to its end. `usual` is meant by a client that names no database.
    pub async fn serve(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        databases: &dyn Databases,
        usual: Option<Endpoint>,
    ) {
        let Ok(_place) = Arc::clone(&self.room).try_acquire_owned() else {
            let full = Fatal::new(
                "53300",
                format!("the limit of {CONNECTIONS_MAX} connections to this server is reached"),
            );
            return refuse(&mut stream, &full.hint("close some, or try again shortly")).await;
        };
        let mut startup = match tokio::time::timeout(STARTUP_WAIT, self.begin(&mut stream, databases)).await {
            Err(_) => return tracing::debug!("a machine did not send its startup packet in time"),
            Ok(Err(error)) => return tracing::debug!(%error, "a connection ended before its session"),
            Ok(Ok(None)) => return,
            Ok(Ok(Some(startup))) => startup,
        };
        let named = take_named(&mut startup);
        let endpoint = named.map_or(usual, |name| Endpoint::from_label(&name));
        let Some(endpoint) = endpoint else {
            let unnamed = Fatal::new("08004", "the client did not name a database");
            let hint = "use the connection string from the variable that attaching the database set";
            return refuse(&mut stream, &unnamed.hint(hint)).await;
        };
        run_session(stream, startup, &endpoint, databases, &self.cancel).await;
    }

    /// Reads up to the startup parameters. `None` if the session is already complete.
    async fn begin(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        databases: &dyn Databases,
    ) -> Result<Option<Startup>, StartupError> {
        let (mut tls_refused, mut gss_refused) = (false, false);
        loop {
            let refused = match read(stream).await {
                Ok(Packet::Startup(startup)) => return Ok(Some(startup)),
                Ok(Packet::Cancel { process, secret }) => {
                    self.cancel.cancel((process, secret), databases).await;
                    return Ok(None);
                }
                Ok(Packet::Tls) => &mut tls_refused,
                Ok(Packet::Gss) => &mut gss_refused,
                Err(error) => return refuse_startup(stream, error).await,
            };
            if std::mem::replace(refused, true) {
                return Err(StartupError::Malformed);
            }
            stream.write_all(b"N").await?;
            stream.flush().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use async_trait::async_trait;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;
    use crate::backend::{Backend, ConnectError};

    /// Knows one database, whose server answers with the startup that it got and hangs up.
    struct TestDatabases;

    #[async_trait]
    impl Databases for TestDatabases {
        async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
            if endpoint.database != "a1" {
                return Err(ConnectError::Refused(format!(
                    "database `{}` is not attached",
                    endpoint.database
                )));
            }
            let (ours, mut theirs) = duplex(4096);
            tokio::spawn(async move {
                let Ok(Packet::Startup(startup)) = read(&mut theirs).await else { return };
                let said = Fatal::new("00000", format!("{:?}", startup.parameters));
                let _ = theirs.write_all(&said.encode()).await;
            });
            Ok(Backend::uncounted(Box::new(ours)))
        }
    }

    fn startup(options: &str) -> Vec<u8> {
        let mut parameters = BTreeMap::from([("user".to_owned(), "app".to_owned())]);
        if !options.is_empty() {
            parameters.insert("options".to_owned(), options.to_owned());
        }
        Startup { parameters, ..Startup::default() }.encode().to_vec()
    }

    async fn answer(first: &[u8], options: &str, usual: Option<&str>) -> String {
        let (mut client, server): (DuplexStream, _) = duplex(4096);
        let usual = usual.and_then(Endpoint::from_label);
        let served =
            tokio::spawn(async move { InsideServer::default().serve(server, &TestDatabases, usual).await });
        client.write_all(first).await.unwrap();
        for _ in 0..first.len() / 8 {
            assert_eq!(client.read_u8().await.unwrap(), b'N');
        }
        client.write_all(&startup(options)).await.unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        served.await.unwrap();
        String::from_utf8_lossy(&said).into_owned()
    }

    #[tokio::test]
    async fn a_machine_reaches_only_attached_databases() {
        const TLS: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
        let reached = answer(&[], "endpoint=a1 -c x=1", None).await;
        assert!(reached.contains("-c x=1") && !reached.contains("endpoint"), "{reached}");
        assert!(answer(&TLS, "endpoint=a1", None).await.contains("app"), "it goes on without TLS");
        assert!(answer(&[], "", Some("a1")).await.contains("app"), "the only one needs no name");
        assert!(answer(&[], "", None).await.contains("did not name a database"));
        let refused = answer(&[], "endpoint=b2", Some("a1")).await;
        assert!(refused.contains("not attached") && refused.contains("app attach"), "{refused}");
    }
}
