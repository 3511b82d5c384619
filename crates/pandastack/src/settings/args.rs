//! Flags of the server roles, and environment variables of the same meaning.

use std::net::SocketAddr;
use std::path::PathBuf;

use pandastack_control::{AuditSink, DatabaseUrl, TenancyMode};
use pandastack_types::InvalidValue;
use pandastack_types::network::Cidr;
use serde::Deserialize;

use super::{AUDIT_SINK_VARIABLE, BACKUPS_VARIABLE, DATABASE_URL_VARIABLE};
use crate::failure::Failure;
use crate::frozen_settings::FrozenArgs;
use crate::guest_settings::GuestArgs;
use crate::login_settings::OidcArgs;
use crate::network_settings::MailMode;
use crate::tls::TlsArgs;

const BACKUP_SCHEMES: [&str; 4] = ["file", "s3", "gs", "az"];
const BACKUPS_FORM: &str = "expected file:///path, s3://, gs:// or az://bucket/path, or `off`";

/// Settings of every role.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CommonArgs {
    /// Settings file [default: /etc/pandastack/pandastack.toml]
    #[arg(long, env = "PANDASTACK_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Data directory [default: /var/lib/pandastack]
    #[arg(long, env = "PANDASTACK_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Directory for sockets [default: /run/pandastack, with a suffix for other data directories]
    #[arg(long, env = "PANDASTACK_RUNTIME_DIR", value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// User that control servers and edges run as, a name or a number; `root` keeps root's privileges
    /// [default: `pandastack` if it exists, else an unused number]
    #[arg(long, env = "PANDASTACK_RUN_AS", value_name = "USER")]
    pub run_as: Option<String>,
    /// Export traces and metrics to this OTLP/HTTP collector, such as http://localhost:4318 [default: off]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

/// Settings of the control server.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ControlArgs {
    /// Address and port of the API [default: 127.0.0.1:8080, or the next free port]
    #[arg(long, env = "PANDASTACK_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Control database, such as postgres://user:password@host/name [default: SQLite in the data directory]
    #[arg(long, env = DATABASE_URL_VARIABLE, hide_env_values = true, value_name = "URL")]
    pub database_url: Option<DatabaseUrl>,
    /// Requests per second allowed for each workspace; 0 for no limit [default: 1000]
    #[arg(long, env = "PANDASTACK_REQUESTS_PER_SECOND", value_name = "COUNT")]
    pub requests_per_second: Option<u32>,
    /// Export the audit log to file:///path, an http(s):// URL or an otlp+http(s):// collector
    #[arg(long, env = AUDIT_SINK_VARIABLE, hide_env_values = true, value_name = "URL")]
    pub audit_sink: Option<AuditSink>,
    /// Log requests to sandbox ports to this file
    #[arg(long, env = "PANDASTACK_ACCESS_LOG", value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Tenancy mode: `single`, `shared`, or `auto` (shared from the second workspace on) [default:
    /// auto]
    #[arg(long, env = "PANDASTACK_TENANCY", value_name = "MODE")]
    pub tenancy: Option<TenancyMode>,
    /// Allow emulated machines, which do not isolate tenants, in a shared installation
    #[arg(long, env = "PANDASTACK_ALLOW_EMULATED_MACHINES_BETWEEN_TENANTS")]
    pub allow_emulated_machines_between_tenants: bool,
    /// Allow schedules to call loopback and private addresses
    #[arg(long, env = "PANDASTACK_SCHEDULES_PRIVATE_TARGETS")]
    pub schedules_private_targets: bool,
    /// Address and port for PostgreSQL clients [default: 127.0.0.1:5432, or the next free port]
    #[arg(long, env = "PANDASTACK_POSTGRES_LISTEN", value_name = "ADDRESS")]
    pub postgres_listen: Option<SocketAddr>,
    /// Domain for database host names, such as pg.example.com; its wildcard DNS record must point
    /// to this server
    #[arg(long, env = "PANDASTACK_POSTGRES_DOMAIN", value_name = "DOMAIN")]
    pub postgres_domain: Option<String>,
    /// Where to store database backups: file:///path, s3://, gs:// or az://bucket/path, or `off`;
    /// credentials come from the store's standard environment variables [default: the data
    /// directory]
    #[arg(long, env = BACKUPS_VARIABLE, hide_env_values = true, value_name = "URL")]
    pub backups: Option<Backups>,
    /// Days of point-in-time recovery for databases [default: 7]
    #[arg(long, env = "PANDASTACK_BACKUP_RETENTION_DAYS", value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..=3650))]
    pub backup_retention_days: Option<u16>,
    /// Domain for app host names, such as panda.example.com; its wildcard DNS record must point to this
    /// server. Can be repeated [default: localhost only]
    #[arg(long = "domain", env = "PANDASTACK_DOMAINS", value_delimiter = ',', value_name = "DOMAIN")]
    pub domains: Vec<String>,
    /// Additional host name of the API, reserved from apps; can be repeated
    #[arg(long = "api-name", env = "PANDASTACK_API_NAMES", value_delimiter = ',', value_name = "NAME")]
    pub api_names: Vec<String>,
    /// Accept a join secret other than this installation's; backups and passwords that depend on the
    /// old one are lost
    #[arg(long, env = "PANDASTACK_ACCEPT_NEW_LINK_SECRET")]
    pub accept_new_link_secret: bool,
    /// DNS server for verifying ownership of custom domains [default: the servers in /etc/resolv.conf]
    #[arg(long, env = "PANDASTACK_CHALLENGE_RESOLVER", value_name = "ADDRESS")]
    pub challenge_resolver: Option<SocketAddr>,
    #[command(flatten)]
    pub oidc: OidcArgs,
    #[command(flatten)]
    pub frozen: FrozenArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Store of database backups.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Backups {
    /// No backups.
    Off,
    /// At this URL.
    To(url::Url),
}

impl std::fmt::Debug for Backups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may contain a password.
        f.write_str(if *self == Backups::Off { "Off" } else { "To(..)" })
    }
}

impl std::str::FromStr for Backups {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == "off" {
            return Ok(Backups::Off);
        }
        let url: url::Url = text.parse().map_err(|_| InvalidValue::new(BACKUPS_FORM))?;
        match BACKUP_SCHEMES.contains(&url.scheme()) {
            true => Ok(Backups::To(url)),
            false => Err(InvalidValue::new(BACKUPS_FORM)),
        }
    }
}

impl TryFrom<String> for Backups {
    type Error = InvalidValue;
    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

/// Settings of an agent.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct AgentArgs {
    /// Cache for built images and kernels, shared by all agents on this machine [default:
    /// /var/cache/pandastack]
    #[arg(long, env = "PANDASTACK_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Subnet for sandbox addresses on this host [default: 10.201.0.0/16, or a free one]
    #[arg(long, env = "PANDASTACK_SUBNET", value_name = "CIDR")]
    pub subnet: Option<String>,
    /// Prefix for network interface names; must be unique for each agent on a machine [default: pds, or a
    /// free one]
    #[arg(long, env = "PANDASTACK_NET_PREFIX", value_name = "NAME")]
    pub net_prefix: Option<String>,
    /// DNS server for sandboxes [default: the servers in /etc/resolv.conf]
    #[arg(long, env = "PANDASTACK_RESOLVER", value_name = "ADDRESS:PORT")]
    pub resolver: Option<SocketAddr>,
    /// Maximum outbound connections per sandbox [default: 8192]
    #[arg(long, env = "PANDASTACK_CONNECTIONS_MAX", value_name = "COUNT")]
    pub connections_max: Option<u32>,
    /// Maximum new connections per sandbox and minute; 0 for no limit [default: 6000]
    #[arg(long, env = "PANDASTACK_CONNECTIONS_PER_MINUTE", value_name = "COUNT")]
    pub connections_per_minute: Option<u32>,
    /// Maximum different addresses that a sandbox connects to in a minute; 0 for no limit [default: 1000]
    #[arg(long, env = "PANDASTACK_DESTINATIONS_PER_MINUTE", value_name = "COUNT")]
    pub destinations_per_minute: Option<u32>,
    /// Bandwidth limit per sandbox and direction, in Mbit/s [default: no limit]
    #[arg(long, env = "PANDASTACK_BANDWIDTH_MBIT", value_name = "MBIT", value_parser = clap::value_parser!(u32).range(1..))]
    pub bandwidth_mbit: Option<u32>,
    /// CPU limit per vCPU, in percent of a host CPU [default: 100 per vCPU, plus one host CPU for
    /// the emulator]
    #[arg(long, env = "PANDASTACK_CPU_PERCENT", value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub cpu_percent: Option<u32>,
    /// Number of network slots to keep ready [default: 16]
    #[arg(long, env = "PANDASTACK_SLOTS_READY", value_name = "COUNT")]
    pub slots_ready: Option<usize>,
    /// Maximum memory to reserve for sandboxes, in MiB [default: all but 1 GiB]
    #[arg(long, env = "PANDASTACK_MEMORY_LIMIT_MB", value_name = "MIB")]
    pub memory_limit_mb: Option<u64>,
    /// Share of a sandbox's memory to reserve on creation, in percent; the sandbox can still use all
    /// its memory [default: 8, and 100 once there are several workspaces]
    #[arg(long, env = "PANDASTACK_MEMORY_PROMISED_PERCENT", value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub memory_promised_percent: Option<u32>,
    /// Seconds that an idle sandbox stays suspended in memory before it is written to disk [default: 60]
    #[arg(long, env = "PANDASTACK_LIGHT_SLEEP_SECONDS", value_name = "SECONDS")]
    pub light_sleep_seconds: Option<u64>,
    /// Virtualization engine [default: auto]
    #[arg(long, env = "PANDASTACK_ENGINE", value_name = "ENGINE")]
    pub engine: Option<Engine>,
    /// Restore new sandboxes from a snapshot instead of forking a prepared machine; for benchmarks
    #[arg(long, env = "PANDASTACK_NO_ZYGOTES")]
    pub no_zygotes: bool,
    /// Private network that sandbox network policies can allow; can be repeated [default: none]
    #[arg(long, env = "PANDASTACK_REACHABLE_PRIVATE", value_delimiter = ',', value_name = "CIDR")]
    pub reachable_private: Vec<Cidr>,
    #[command(flatten)]
    pub guests: GuestArgs,
    /// Access to outbound mail ports 25, 465 and 587 [default: by-policy]
    #[arg(long, env = "PANDASTACK_MAIL", value_name = "MODE")]
    pub mail: Option<MailMode>,
    /// Template to prepare at startup; can be repeated
    #[arg(long = "warm", env = "PANDASTACK_WARM", value_delimiter = ',', value_name = "TEMPLATE")]
    pub warm_templates: Vec<String>,
}

/// The engine that runs machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Use Firecracker if it is installed and KVM works, QEMU otherwise
    #[default]
    Auto,
    /// Use Firecracker, which needs KVM
    Firecracker,
    /// Use QEMU, with KVM if it works
    Qemu,
    /// Use QEMU with emulation, even if KVM works
    Emulated,
}

impl From<Engine> for pandastack_agent::EngineChoice {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Auto => Self::Auto,
            Engine::Firecracker => Self::Firecracker,
            Engine::Qemu => Self::Qemu,
            Engine::Emulated => Self::Emulated,
        }
    }
}

/// A limit; 0 means unlimited.
pub(super) fn limit_or(given: Option<u32>, default: u32) -> Option<u32> {
    Some(given.unwrap_or(default)).filter(|count| *count > 0)
}

/// Normalizes the domain for databases: lowercase, without the `*.` of the wildcard record.
pub(super) fn databases_domain(text: &str) -> anyhow::Result<String> {
    let name = text.trim().trim_start_matches("*.").trim_end_matches('.').to_ascii_lowercase();
    let label = |label: &str| {
        let fits = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (1..=63).contains(&label.len()) && fits && !label.starts_with('-') && !label.ends_with('-')
    };
    // Of the 253 bytes of a host name, the database's label and a dot take 64.
    if name.len() > 189 || !name.split('.').all(label) || name.parse::<std::net::IpAddr>().is_ok() {
        let failure = Failure::new(format!("invalid --postgres-domain `{text}`"));
        return Err(failure
            .hint("use a domain such as pg.example.com, and point *.pg.example.com to this server")
            .into());
    }
    Ok(name)
}
