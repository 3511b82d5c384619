//! One port per database, for installations without database host names: many clients can send
//! neither a host name nor an option, and could not name their database otherwise.
//!
//! Connection strings name the port, so it is remembered in a file of this server and bound again
//! before anything is served. A database gets a port when its connection details are first shown,
//! and releases it when it is deleted.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_postgres::{Endpoint, Listener, Server};
use pandastack_types::{DatabaseId, chain};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// First port tried, and how many after it.
const PORT_FIRST: u16 = 15432;
const PORTS_TRIED: u16 = 16384;

/// The ports of all databases.
pub struct Ports {
    ip: IpAddr,
    file: PathBuf,
    shutdown: CancellationToken,
    serve: mpsc::Sender<BoundPort>,
    kept: Mutex<BTreeMap<DatabaseId, Port>>,
}

struct Port {
    number: u16,
    stop: CancellationToken,
}

/// A bound port that is not served yet.
pub struct BoundPort {
    listener: TcpListener,
    endpoint: Endpoint,
    stop: CancellationToken,
}

impl Ports {
    /// Binds the ports of `databases` that `file` remembers, on this address. Pass the bound
    /// listeners to [`serve`].
    pub async fn open(
        ip: IpAddr,
        file: PathBuf,
        databases: &[DatabaseId],
        shutdown: CancellationToken,
    ) -> io::Result<(Self, mpsc::Receiver<BoundPort>)> {
        let remembered = match std::fs::read(&file) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        // Room for as many as there can be.
        let (serve, bound) = mpsc::channel(usize::from(PORTS_TRIED));
        let ports = Self { ip, file, shutdown, serve, kept: Mutex::default() };
        let mut kept = ports.kept.lock().await;
        for (id, number) in remembered.into_iter().filter(|(id, _)| databases.contains(id)) {
            match TcpListener::bind((ip, number)).await {
                Ok(listener) => drop(kept.insert(id.clone(), ports.hand_over(&id, number, listener))),
                // The database gets another port once a client requests its connection details.
                Err(error) => {
                    tracing::warn!(
                        database = %id, port = number, error = %chain(&error),
                        "the port of a database is in use by another program"
                    );
                }
            }
        }
        drop(kept);
        Ok((ports, bound))
    }

    /// The port of a database, bound when this returns.
    pub(super) async fn of(&self, id: &DatabaseId) -> io::Result<u16> {
        let mut kept = self.kept.lock().await;
        if let Some(port) = kept.get(id) {
            return Ok(port.number);
        }
        let listener = self.bind_free(&kept).await?;
        let number = listener.local_addr()?.port();
        // Write the file first: a port must not be reported before the next start would know it.
        let numbers = kept.iter().map(|(id, port)| (id, port.number));
        self.remember(&numbers.chain([(id, number)]).collect()).await?;
        kept.insert(id.clone(), self.hand_over(id, number, listener));
        Ok(number)
    }

    /// Takes the port of a database back. Sessions end with its machine.
    pub(super) async fn close(&self, id: &DatabaseId) -> io::Result<()> {
        let mut kept = self.kept.lock().await;
        match kept.remove(id) {
            Some(port) => {
                port.stop.cancel();
                self.remember(&kept.iter().map(|(id, port)| (id, port.number)).collect()).await
            }
            None => Ok(()),
        }
    }

    async fn bind_free(&self, kept: &BTreeMap<DatabaseId, Port>) -> io::Result<TcpListener> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for number in PORT_FIRST..PORT_FIRST + PORTS_TRIED {
            // A port whose listener is just closing can be bound, but still belongs to a database.
            if kept.values().any(|port| port.number == number) {
                continue;
            }
            match TcpListener::bind(SocketAddr::new(self.ip, number)).await {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn hand_over(&self, id: &DatabaseId, number: u16, listener: TcpListener) -> Port {
        let stop = self.shutdown.child_token();
        let endpoint = Endpoint { database: id.to_string(), listener: Listener::Direct };
        // The receiver is gone when the server shuts down.
        let _ = self.serve.try_send(BoundPort { listener, endpoint, stop: stop.clone() });
        Port { number, stop }
    }

    async fn remember(&self, numbers: &BTreeMap<&DatabaseId, u16>) -> io::Result<()> {
        let (text, file) = (serde_json::to_vec(numbers)?, self.file.clone());
        tokio::task::spawn_blocking(move || replace(&file, &text)).await?
    }
}

/// Replaces a file: after a crash it has the old bytes or the new ones.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

/// Reads the port file. Without it databases get other ports, which is better than no server.
fn parse(text: &[u8]) -> BTreeMap<DatabaseId, u16> {
    serde_json::from_slice(text).unwrap_or_else(|error| {
        tracing::error!(
            error = %chain(&error),
            "the file with the ports of databases is damaged; connection strings change"
        );
        BTreeMap::new()
    })
}

/// Serves ports as they are bound, until all of them and their server have stopped.
pub async fn serve(server: Arc<Server>, mut bound: mpsc::Receiver<BoundPort>, stop: CancellationToken) {
    let listeners = TaskTracker::new();
    loop {
        let BoundPort { listener, endpoint, stop } = tokio::select! {
            next = bound.recv() => match next {
                Some(next) => next,
                None => break,
            },
            () = stop.cancelled() => break,
        };
        listeners.spawn(Arc::clone(&server).serve_one(listener, endpoint, stop));
    }
    listeners.close();
    listeners.wait().await;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;

    use super::*;

    /// An address that belongs to this test alone.
    async fn open(host: u8, file: &Path, databases: &[DatabaseId]) -> Ports {
        let ip = Ipv4Addr::new(127, 77, 1, host).into();
        // The receiver is dropped, and with it the listeners: their numbers are free for the next one.
        Ports::open(ip, file.to_owned(), databases, CancellationToken::new()).await.unwrap().0
    }

    #[tokio::test]
    async fn a_database_keeps_its_port_until_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports.json");
        let [a, b, c]: [DatabaseId; 3] = ["a1", "b2", "c3"].map(|id| id.parse().unwrap());
        let ports = open(1, &file, &[]).await;
        let (first, second) = (ports.of(&a).await.unwrap(), ports.of(&b).await.unwrap());
        assert_ne!(first, second);
        assert_eq!(ports.of(&a).await.unwrap(), first);
        let again = open(1, &file, &[a.clone(), b.clone()]).await;
        assert_eq!((again.of(&a).await.unwrap(), again.of(&b).await.unwrap()), (first, second));
        again.close(&a).await.unwrap();
        again.close(&a).await.unwrap();
        assert_eq!(again.of(&c).await.unwrap(), first, "what was given back is free");
    }

    #[tokio::test]
    async fn a_taken_or_forgotten_port_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports.json");
        let id: DatabaseId = "a1".parse().unwrap();
        std::fs::write(&file, "{\"a1\":").unwrap();
        let before = open(2, &file, std::slice::from_ref(&id)).await.of(&id).await.unwrap();
        let _other = TcpListener::bind((Ipv4Addr::new(127, 77, 1, 2), before)).await.unwrap();
        assert_ne!(open(2, &file, std::slice::from_ref(&id)).await.of(&id).await.unwrap(), before);
    }
}
