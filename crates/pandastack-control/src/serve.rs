//! Starts and stops the control server: store, sockets, background tasks.
//!
//! [`Control::bind`] does everything that can fail; when it returns, clients may connect.
//! [`Control::run`] serves until shutdown, then lets work in progress finish within [`STOP_WAIT`].

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pandastack_apps::Challenges;
use pandastack_databases::StoredDatabases;
use pandastack_e2b::Facade;
use pandastack_edge::tls::Tls;
use pandastack_edge::{AccessLog, OwnPorts, Server};
use pandastack_fleet::Control as ControlAddress;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::hosts::Hosts;
use pandastack_store::StoreError;
use pandastack_store::clock::now;
use pandastack_store::databases::{DatabaseState, DatabaseStore};
use pandastack_store::installation::{InstallationStore, SecretStore};
use pandastack_store::replicas::Session;
use pandastack_store::sql::SqlStore;
use pandastack_types::{DatabaseId, HostId, chain};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::body_budget::BodyBudget;
use crate::config::ControlConfig;
use crate::e2b_directory::StoredDirectory;
use crate::fleet::{Fleet, OpenError};
use crate::housekeeping;
use crate::leader::leader_tasks;
use crate::login::Login;
use crate::postgres_listener::PostgresListener;
use crate::private_listeners::{bind_socket, serve_hosts, serve_unix};
use crate::replicas::{self, LeadershipLost, Replicas};
use crate::services::Services;
use crate::wiring::new_services;
use crate::{bootstrap, routes};

/// Time for work in progress to end after a stop was requested. Streams are cut then.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Reason why the control server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A directory or file in the data directory cannot be used.
    #[error("cannot use `{path}`; check that it exists and is writable")]
    DataDir {
        /// The path.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// Another control server uses the same data.
    #[error("another control process uses `{0}`; stop it, or choose another data directory")]
    InUse(PathBuf),
    /// An address cannot be used.
    #[error("cannot listen on {address}; another program may use it; choose another with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The join secret differs from the one that the store was created with.
    #[error(
        "the join secret (fingerprint {ours}) is not the one of this installation ({kept}); restore the file \
         `link-secret` from a backup. If it is lost, start once with --accept-new-link-secret: \
         database backups then stay unreadable, database passwords, deploy keys and access tokens change, \
         and stored secrets, such as app variables, are removed"
    )]
    SecretChanged {
        /// Fingerprint of the secret that was given.
        ours: String,
        /// Fingerprint of the expected secret.
        kept: String,
    },
    /// The authority that signs certificates of hosts cannot be used.
    #[error("the certificate authority of hosts cannot be used")]
    Fleet(#[from] OpenError),
    /// The machine's DNS settings are not usable.
    #[error(
        "cannot read the DNS settings of this machine; fix /etc/resolv.conf, or set --challenge-resolver"
    )]
    Resolver(#[source] std::io::Error),
    /// The client of the login provider could not be made.
    #[error("cannot use the login provider; check the `oidc` settings")]
    Login(#[source] pandastack_oidc::LoginError),
    /// The store failed.
    #[error("the control database could not be opened")]
    Store(#[from] StoreError),
    /// The server lost the database session by which it led: another server may lead now.
    #[error("the database session was lost, and another control server may be the leader; restart this one")]
    LeadershipLost(#[source] StoreError),
}

/// A control plane that is ready to serve.
pub struct Control {
    services: Arc<Services>,
    public: Vec<(SocketAddr, TcpListener)>,
    internal_socket: UnixListener,
    internal_tcp: Option<TcpListener>,
    tls: Option<Tls>,
    postgres: Option<PostgresListener>,
    session: Box<dyn Session>,
    /// Whether this server leads from the start.
    leads: bool,
    /// Held, not read.
    _lock: DataDirLock,
}

/// The lock on a data directory. It ends with the process, however that ends.
struct DataDirLock(File);

impl Drop for DataDirLock {
    /// Unlocks by name: a child process that has been forked and has not executed its program yet has the file open,
    /// too, so closing it here would not end the lock.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Binds and serves until `shutdown`.
///
/// Boxed, so that the server is compiled in this crate and not in its caller's.
pub fn serve(
    config: ControlConfig,
    shutdown: CancellationToken,
) -> Pin<Box<dyn Future<Output = Result<(), ServeError>>>> {
    Box::pin(async { Control::bind(config).await?.run(shutdown).await })
}

impl Control {
    /// Opens the store, creates the first key if none exists, and binds all sockets.
    pub async fn bind(config: ControlConfig) -> Result<Self, ServeError> {
        let dir = config.control_dir();
        let usable = |path: &Path| {
            let path = path.to_owned();
            move |source| ServeError::DataDir { path, source }
        };
        make_private_dir(&dir).map_err(usable(&dir))?;
        let lock = lock(&dir.join("lock"))?;
        let store = match &config.database_url {
            Some(url) => SqlStore::postgres(url.expose(), &config.link_key).await?,
            None => SqlStore::sqlite(&dir.join("control.db"), &config.link_key).await?,
        };
        require_same_secret(&store, &config).await?;
        seal_rows(&store).await?;
        let instance = HostId::random();
        let listens = config.internal_listen.is_some();
        let fleet = Fleet::open(&store, instance.clone(), config.host_certificate_life, listens).await?;
        let hosts = Hosts::new(fleet.agent_link(config.link_key.clone()), config.host_lost_after);
        hosts.load(pandastack_store::HostStore::hosts(&store).await?, now());
        let mut public = Vec::new();
        for address in &config.listen {
            let listener = listen(*address).await?;
            public.push((listener.local_addr().unwrap_or(*address), listener));
        }
        let internal_tcp = match config.internal_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let socket = &config.internal_socket;
        if let Some(parent) = socket.parent() {
            make_private_dir(parent).map_err(usable(parent))?;
        }
        let internal_socket = bind_socket(socket).map_err(usable(socket))?;
        let log = AccessLog::open(config.access_log.as_deref())
            .map_err(usable(config.access_log.as_deref().unwrap_or(&dir)))?;
        let shutdown = CancellationToken::new();
        let mut postgres = match &config.postgres {
            Some(postgres) => {
                let ready = DatabaseStore::databases_in(&store, DatabaseState::Ready).await?;
                let ids: Vec<DatabaseId> = ready.into_iter().map(|record| record.id).collect();
                Some(PostgresListener::bind(postgres, &dir, &ids, shutdown.clone()).await?)
            }
            None => None,
        };
        let address = advertised(&config, internal_tcp.as_ref());
        let replicas = Replicas::new(instance.to_string(), address, fleet.tls.clone());
        let mut session = replicas::join(&store, &replicas).await?;
        let leads = session.beat().await?;
        if leads {
            replicas.lead();
            bootstrap::ensure_first_key(&store, &config.bootstrap_token_path()).await?;
        }
        let challenges = Challenges::new(config.challenge_resolver).map_err(ServeError::Resolver)?;
        let login = config.login.clone().map(Login::new).transpose().map_err(ServeError::Login)?;
        let (parts, hosts) = ((log, replicas, challenges, login), (hosts, fleet));
        let services = new_services(Arc::new(store), hosts, &config, parts, postgres.as_mut(), shutdown);
        let (services, tls) = (Arc::new(services), config.tls);
        Ok(Self {
            services,
            public,
            internal_socket,
            internal_tcp,
            tls,
            postgres,
            session,
            leads,
            _lock: lock,
        })
    }

    /// Addresses of the public API.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.public.iter().map(|(address, _)| *address).collect()
    }

    /// Address at which hosts of other machines reach this server.
    pub fn hosts_address(&self) -> Option<SocketAddr> {
        self.internal_tcp.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until `shutdown`, then finishes what is in progress. A leader that lost the database exits
    /// immediately and finishes nothing: another server now leads.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let services = self.services;
        let Background { tasks: background, shutdown: stop, .. } = services.background.clone();
        let mut servers = JoinSet::new();
        let native = routes::public(Arc::clone(&services));
        let directory = StoredDirectory {
            store: Arc::clone(&services.store),
            sandboxes: Arc::clone(&services.sandboxes),
            keys: Arc::clone(&services.keys),
        };
        let e2b = Facade::new(native.clone(), Arc::new(directory), &services.link);
        let budget = Arc::new(BodyBudget::default());
        let own_ports = OwnPorts {
            ports: &pandastack_e2b::PORTS,
            router: routes::within_budget(routes::facade(e2b.sandbox_ports()), &budget),
        };
        let databases = Arc::new(StoredDatabases(Arc::clone(&services.databases)));
        let api = native
            .merge(routes::facade(e2b.control_plane()))
            .merge(routes::facade(pandastack_postgres::http_router(databases.clone())));
        let api = routes::with_refusals_audited(api, Arc::clone(&services));
        let api = routes::with_functions_by_host(api, Arc::clone(&services));
        let api = routes::within_budget(api, &budget);
        if let Some(listener) = self.postgres {
            servers.spawn(listener.serve(databases, stop.clone()));
        }
        for (_, listener) in self.public {
            let server = Server::new(Arc::clone(&services.edge), api.clone())
                .with_own_ports(own_ports.clone())
                .with_tls(self.tls.clone());
            servers.spawn(server.serve(listener, stop.clone()));
        }
        let private = routes::private(Arc::clone(&services), api);
        if let Some(listener) = self.internal_tcp {
            servers.spawn(serve_hosts(listener, Arc::clone(&services.fleet), private.clone(), stop.clone()));
        }
        servers.spawn(serve_unix(self.internal_socket, private, stop.clone()));
        servers.spawn(Arc::clone(&services.fleet).keep_own_certificate(stop.clone()));
        servers.spawn(housekeeping::keep_keys(Arc::clone(&services.keys), stop.clone()));
        servers.spawn(housekeeping::end_revoked(Arc::clone(&services.keys), stop.clone()));
        // Stopped last: answers that are still being given are written down, too.
        let audit_stop = CancellationToken::new();
        let auditor = {
            let (services, stop) = (Arc::clone(&services), audit_stop.clone());
            tokio::spawn(async move {
                let store = services.store.as_ref();
                tokio::join!(services.audit.write(store, &stop), services.functions.runs.write(store, &stop));
            })
        };
        let (leave, tasks, member) = (CancellationToken::new(), leader_tasks(&services), services.member());
        let mut membership = std::pin::pin!(replicas::run(&member, self.session, self.leads, &leave, &tasks));
        tokio::select! {
            () = shutdown.cancelled() => {}
            Err(LeadershipLost(error)) = &mut membership => return Err(ServeError::LeadershipLost(error)),
        }
        stop.cancel();
        background.close();
        let finish = async {
            while servers.join_next().await.is_some() {}
            background.wait().await;
        };
        tokio::select! {
            finished = tokio::time::timeout(STOP_WAIT, finish) => if finished.is_err() {
                tracing::info!("stopped with operations in progress; the next start resumes them");
            },
            Err(LeadershipLost(error)) = &mut membership => return Err(ServeError::LeadershipLost(error)),
        }
        servers.shutdown().await;
        services.edge.shut_down().await;
        audit_stop.cancel();
        if let Err(failed) = auditor.await {
            tracing::error!(%failed, "cannot write the end of the audit log");
        }
        if let Err(error) = services.keys.write_last_used().await {
            tracing::debug!(error = %chain(&error), "cannot record last-used times of keys");
        }
        // Last, so that no other replica starts work that is still being finished here.
        leave.cancel();
        let left = membership.await;
        services.store.close().await;
        left.map_err(|LeadershipLost(error)| ServeError::LeadershipLost(error))
    }
}

/// Refuses a join secret that is not this installation's: with another, derived passwords are wrong
/// and backups cannot be read, which would be noticed too late. After a rotation, the fingerprint
/// is that of the newest generation, so a copy of the file from before the rotation is refused,
/// too.
async fn require_same_secret(store: &SqlStore, config: &ControlConfig) -> Result<(), ServeError> {
    let ours = config.link_key.fingerprint();
    let kept = store.secret_fingerprint(&ours).await?;
    let generations = config.link_key.fingerprints();
    let (place_of_kept, place_of_ours) =
        [&kept, &ours].map(|one| generations.iter().position(|print| print == one)).into();
    let is_known = place_of_kept.is_some();
    // Another control server uses a generation that is only accepted here.
    let is_ahead = place_of_kept > place_of_ours;
    match (kept == ours || is_ahead, is_known || config.accept_new_link_secret) {
        (true, _) => Ok(()),
        (false, false) => Err(ServeError::SecretChanged { ours, kept }),
        (false, true) => {
            tracing::warn!(%ours, %kept, "the join secret was replaced");
            if !is_known {
                let rows = store.drop_unreadable().await?;
                tracing::warn!(rows, "secrets that were sealed with the lost secret were removed");
            }
            Ok(store.replace_secret_fingerprint(&ours).await?)
        }
    }
}

/// Seals secrets in rows that are not sealed with the current generation, as after an upgrade.
async fn seal_rows(store: &SqlStore) -> Result<(), ServeError> {
    let done = store.seal_rows().await?;
    if done.sealed > 0 {
        tracing::info!(rows = done.rows, sealed = done.sealed, "secrets in the database were sealed");
    }
    Ok(())
}

/// Address at which other replicas reach this one.
fn advertised(config: &ControlConfig, internal: Option<&TcpListener>) -> String {
    let listening = internal.and_then(|listener| listener.local_addr().ok());
    match (&config.replica_address, listening) {
        (Some(given), _) => ControlAddress::secure(given),
        (None, Some(address)) => format!("https://{address}"),
        (None, None) => format!("unix:{}", config.internal_socket.display()),
    }
}

/// Creates a directory that only its owner can access; an existing one is not changed.
fn make_private_dir(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn lock(path: &Path) -> Result<DataDirLock, ServeError> {
    let unusable = |source| ServeError::DataDir { path: path.to_owned(), source };
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(DataDirLock(file)),
        Err(std::fs::TryLockError::WouldBlock) => Err(ServeError::InUse(path.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(unusable(source)),
    }
}

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}
