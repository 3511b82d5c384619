//! Settings of the control server.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use pandastack_databases::BackupConfig;
use pandastack_rest::sse;
use pandastack_sandboxes::outdated::OutdatedPolicy;
use pandastack_sandboxes::tenancy::Tenancy;
use pandastack_types::InvalidValue;
use pandastack_types::agent_api::HOST_LOST_SECONDS;
use pandastack_types::domains::Domains;
use pandastack_types::limits::REQUESTS_PER_SECOND_DEFAULT;
use pandastack_types::link::LinkKey;

use crate::audit::sink::AuditSink;
use crate::fleet::CERTIFICATE_LIFE;
use crate::login::LoginConfig;

/// Default port of the public API.
const PORT_DEFAULT: u16 = 8080;

/// Address of a PostgreSQL database: `postgres://user:password@host/name`. Shown without its
/// content, which has a password.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The whole address.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("postgres://...")
    }
}

impl std::str::FromStr for DatabaseUrl {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for DatabaseUrl {
    type Error = InvalidValue;
    fn try_from(text: String) -> Result<Self, InvalidValue> {
        match ["postgres://", "postgresql://"].iter().any(|start| text.starts_with(start)) {
            true => Ok(Self(text)),
            false => Err(InvalidValue::new("the database URL must begin with `postgres://`")),
        }
    }
}

/// Settings of the server for databases.
#[derive(Debug, Clone)]
pub struct PostgresConfig {
    /// Listen address. `None` takes port 5432 of this machine or the next free one, and keeps to
    /// it.
    pub listen: Option<SocketAddr>,
    /// Databases are `<id>.<domain>` where names resolve; `None` where they do not.
    pub domain: Option<String>,
    /// TLS, without which no client may connect.
    pub tls: pandastack_edge::tls::Tls,
}

/// Settings of the control plane.
#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// Listen addresses of the public API. Port 0 takes any free port;
    /// [`crate::Control::addresses`] returns it.
    pub listen: Vec<SocketAddr>,
    /// Socket to which agents on this host report.
    pub internal_socket: PathBuf,
    /// Address at which hosts of other machines join and report.
    pub internal_listen: Option<SocketAddr>,
    /// Address at which other control servers on the same database reach this one:
    /// `https://address:port` or `unix:/path`. `None` for `internal_listen`, or else the socket.
    pub replica_address: Option<String>,
    /// The database and the first key live in `control/` under it.
    pub data_dir: PathBuf,
    /// A PostgreSQL database for the record of truth; `None` for a SQLite file in `data_dir`.
    pub database_url: Option<DatabaseUrl>,
    /// The join secret shared with the agents.
    pub link_key: LinkKey,
    /// File of that secret, which is read again after a rotation.
    pub secret_file: Option<PathBuf>,
    /// Accept a join secret that differs from the store's.
    pub accept_new_link_secret: bool,
    /// Requests per second of one workspace; `None` for no limit.
    pub requests_per_second: Option<NonZeroU32>,
    /// Time without a report after which a host counts as unreachable.
    pub host_lost_after: Duration,
    /// Life of a host's certificate, which the host renews by itself.
    pub host_certificate_life: Duration,
    /// A stream of events that is silent for this long gets a comment.
    pub event_comments_every: Duration,
    /// Destination of the audit log export; `None` for nowhere.
    pub audit_sink: Option<AuditSink>,
    /// Log of requests to sandboxes, one line each.
    pub access_log: Option<PathBuf>,
    /// Tenancy of the installation, with its restrictions.
    pub tenancy: Tenancy,
    /// Names of the platform, and domains below which apps have theirs.
    pub domains: Domains,
    /// The DNS server that proofs of custom domains are read from; `None` for those of this machine.
    pub challenge_resolver: Option<SocketAddr>,
    /// Schedules may call addresses that are not of the internet: loopback and private networks.
    pub schedules_private_targets: bool,
    /// TLS on the public addresses, beside plain HTTP.
    pub tls: Option<pandastack_edge::tls::Tls>,
    /// The server for databases; `None` for none.
    pub postgres: Option<PostgresConfig>,
    /// Backups of databases; `None` for none.
    pub backups: Option<BackupConfig>,
    /// The login provider; `None` for API keys only.
    pub login: Option<LoginConfig>,
    /// Policy for outdated frozen states.
    pub outdated: OutdatedPolicy,
}

impl ControlConfig {
    /// The usual settings for one box.
    pub fn new(data_dir: PathBuf, link_key: LinkKey) -> Self {
        Self {
            listen: vec![(Ipv4Addr::LOCALHOST, PORT_DEFAULT).into()],
            internal_socket: data_dir.join("control").join("internal.sock"),
            internal_listen: None,
            replica_address: None,
            data_dir,
            database_url: None,
            link_key,
            secret_file: None,
            accept_new_link_secret: false,
            requests_per_second: NonZeroU32::new(REQUESTS_PER_SECOND_DEFAULT),
            host_lost_after: Duration::from_secs(HOST_LOST_SECONDS),
            host_certificate_life: CERTIFICATE_LIFE,
            event_comments_every: sse::COMMENT_EVERY,
            audit_sink: None,
            access_log: None,
            tenancy: Tenancy::default(),
            domains: Domains::default(),
            challenge_resolver: None,
            schedules_private_targets: false,
            tls: None,
            postgres: None,
            backups: None,
            login: None,
            outdated: OutdatedPolicy::default(),
        }
    }

    /// The folder of the database.
    pub fn control_dir(&self) -> PathBuf {
        self.data_dir.join("control")
    }

    /// The file that holds the first key, written once, readable by its owner only.
    pub fn bootstrap_token_path(&self) -> PathBuf {
        self.control_dir().join("bootstrap-token")
    }
}
