//! Settings of the server roles.
//!
//! A setting comes from its flag, its environment variable, the TOML file or the default, in this
//! order. The file is `/etc/pandastack/pandastack.toml` unless `--config` names another. An unknown
//! key is an error: a server that does not start is better than a misspelt limit that is silently
//! ignored.

mod args;
mod file;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pandastack_control::{AuditSink, DatabaseUrl, Tenancy};
use pandastack_types::domains::Domains;
use pandastack_types::limits::REQUESTS_PER_SECOND_DEFAULT;
use pandastack_types::network::Cidr;

pub use args::{AgentArgs, Backups, CommonArgs, ControlArgs, Engine};
use args::{databases_domain, limit_or};
use file::read_file;

use crate::failure::Failure;
use crate::frozen_settings::FrozenSettings;
use crate::guest_settings::GuestOptions;
use crate::login_settings::OidcSettings;
use crate::network_settings::MailMode;
use crate::otlp::Export;
use crate::tls::TlsArgs;

/// Default path of the settings file.
pub const CONFIG_PATH: &str = "/etc/pandastack/pandastack.toml";
/// Default data directory.
pub const DATA_DIR: &str = "/var/lib/pandastack";
/// Default directory for sockets. Short, because a socket path is limited to 108 bytes.
const RUNTIME_DIR: &str = "/run/pandastack";
/// Default subnet for sandbox addresses.
const SUBNET: &str = "10.201.0.0/16";
/// Default prefix for interface and table names.
const NET_PREFIX: &str = "pds";
/// Environment variable for the control database; its value contains a password.
pub const DATABASE_URL_VARIABLE: &str = "PANDASTACK_DATABASE_URL";
/// Default number of network slots kept ready.
const SLOTS_READY: usize = 16;
/// Environment variable for the backup location; the URL may contain a password.
pub const BACKUPS_VARIABLE: &str = "PANDASTACK_BACKUPS";
/// Environment variable for the destination of the audit log; the URL may contain a password.
pub const AUDIT_SINK_VARIABLE: &str = "PANDASTACK_AUDIT_SINK";
/// Default days of point-in-time recovery.
const BACKUP_RETENTION_DAYS: u16 = 7;
/// Default time that an idle sandbox stays in memory.
const LIGHT_SLEEP_SECONDS: u64 = 60;

/// All settings, resolved.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Data directory.
    pub data_dir: PathBuf,
    /// Directory for sockets.
    pub runtime_dir: PathBuf,
    /// User of control servers and edges; see [`crate::supervise::service_user`].
    pub run_as: Option<String>,
    /// OTLP collector for traces and metrics.
    pub otlp_endpoint: Option<String>,
    /// Address of the API.
    pub listen: SocketAddr,
    /// Control database; `None` for SQLite in the data directory.
    pub database_url: Option<DatabaseUrl>,
    /// Requests per second for each workspace; `None` for no limit.
    pub requests_per_second: Option<NonZeroU32>,
    /// Tenancy of the installation, with its restrictions.
    pub tenancy: Tenancy,
    /// Whether schedules may call loopback and private addresses.
    pub schedules_private_targets: bool,
    /// Address for PostgreSQL clients; `None` for the first free port from 5432 on.
    pub postgres_listen: Option<SocketAddr>,
    /// Domain for database host names.
    pub postgres_domain: Option<String>,
    /// Store of database backups.
    pub backups: Backups,
    /// Days of point-in-time recovery.
    pub backup_retention_days: u16,
    /// Destination of the audit log export.
    pub audit_sink: Option<AuditSink>,
    /// Domains for app host names.
    pub domains: Vec<String>,
    /// Additional host names of the API.
    pub api_names: Vec<String>,
    /// Whether a changed join secret is accepted.
    pub accept_new_link_secret: bool,
    /// DNS server for verifying ownership of custom domains.
    pub challenge_resolver: Option<SocketAddr>,
    /// The login provider; `None` for API keys only.
    pub oidc: Option<OidcSettings>,
    /// Policy for outdated frozen states.
    pub frozen: FrozenSettings,
    /// TLS on the API's address.
    pub tls: TlsArgs,
    /// Cache for built images and kernels.
    pub cache_dir: PathBuf,
    /// Subnet for sandbox addresses.
    pub subnet: String,
    /// Prefix for network interface names.
    pub net_prefix: String,
    /// DNS server for sandboxes; `None` for the host's own.
    pub resolver: Option<SocketAddr>,
    /// Private networks that policies may open.
    pub reachable_private: Vec<Cidr>,
    /// Certificates, mirrors and addresses for guests.
    pub guests: GuestOptions,
    /// Access to outbound mail ports.
    pub mail: MailMode,
    /// Maximum outbound connections per sandbox.
    pub connections_max: u32,
    /// Maximum new connections per sandbox and minute; `None` for no limit.
    pub connections_per_minute: Option<u32>,
    /// Maximum different addresses per sandbox and minute; `None` for no limit.
    pub destinations_per_minute: Option<u32>,
    /// Bandwidth limit per sandbox and direction, in Mbit/s.
    pub bandwidth_mbit: Option<u32>,
    /// CPU limit per vCPU, in percent of a host CPU.
    pub cpu_percent: Option<u32>,
    /// Number of network slots to keep ready.
    pub slots_ready: usize,
    /// Maximum memory to reserve for sandboxes, in MiB.
    pub memory_limit_mb: Option<u64>,
    /// Share of a sandbox's memory to reserve on creation, in percent.
    pub memory_promised_percent: Option<u32>,
    /// Time that an idle sandbox stays in memory.
    pub light_sleep: std::time::Duration,
    /// Virtualization engine.
    pub engine: Engine,
    /// Whether new sandboxes are forked from a prepared machine.
    pub zygotes: bool,
    /// Templates to prepare at startup.
    pub warm_templates: Vec<String>,
    /// Explicitly set values among the settings that must differ between installations.
    pub explicit: ExplicitAddresses,
}

/// Settings that the operator set explicitly, by flag, variable or file. [`crate::supervise::addresses`]
/// chooses the others.
#[derive(Debug, Clone, Copy)]
pub struct ExplicitAddresses {
    /// Address of the API.
    pub listen: bool,
    /// Subnet for sandbox addresses.
    pub subnet: bool,
    /// Prefix for network interface names.
    pub net_prefix: bool,
}

impl Settings {
    /// Resolves every setting.
    pub fn resolve(common: &CommonArgs, control: &ControlArgs, agent: &AgentArgs) -> Result<Self> {
        let file = read_file(common.config.as_deref())?;
        let data_dir = common.data_dir.clone().or(file.data_dir).unwrap_or_else(|| DATA_DIR.into());
        let data_dir = std::path::absolute(&data_dir).context("cannot resolve the data directory")?;
        let runtime_dir = common.runtime_dir.clone().or(file.runtime_dir);
        let warm = [&agent.warm_templates, &file.agent.warm_templates];
        let domains = either(&control.domains, file.control.domains);
        let api_names = either(&control.api_names, file.control.api_names);
        Domains::new(&domains, &api_names).map_err(|error| {
            Failure::new(error.to_string())
                .hint("check --domain and --api-name, or `domains` and `api_names`")
        })?;
        let explicit = ExplicitAddresses {
            listen: control.listen.or(file.control.listen).is_some(),
            subnet: agent.subnet.is_some() || file.agent.subnet.is_some(),
            net_prefix: agent.net_prefix.is_some() || file.agent.net_prefix.is_some(),
        };
        let listen = control.listen.or(file.control.listen).unwrap_or_else(default_listen);
        Ok(Self {
            oidc: OidcSettings::resolve(&control.oidc, file.oidc, &api_url_of(listen))?,
            frozen: FrozenSettings::resolve(&control.frozen, file.frozen),
            explicit,
            domains,
            api_names,
            accept_new_link_secret: control.accept_new_link_secret,
            challenge_resolver: control.challenge_resolver.or(file.control.challenge_resolver),
            reachable_private: either(&agent.reachable_private, file.network.reachable_private),
            guests: GuestOptions::resolve(&agent.guests, file.guests)?,
            mail: agent.mail.or(file.network.mail).unwrap_or_default(),
            run_as: common.run_as.clone().or(file.run_as).filter(|user| !user.is_empty()),
            runtime_dir: runtime_dir.unwrap_or_else(|| runtime_dir_of(&data_dir)),
            otlp_endpoint: common.otlp_endpoint.clone().or(file.otlp_endpoint).filter(|url| !url.is_empty()),
            listen,
            database_url: control.database_url.clone().or(file.control.database_url),
            requests_per_second: NonZeroU32::new(
                control
                    .requests_per_second
                    .or(file.control.requests_per_second)
                    .unwrap_or(REQUESTS_PER_SECOND_DEFAULT),
            ),
            tenancy: Tenancy {
                mode: control.tenancy.or(file.control.tenancy).unwrap_or_default(),
                allow_emulated: control.allow_emulated_machines_between_tenants
                    || file.control.allow_emulated_machines_between_tenants,
            },
            schedules_private_targets: control.schedules_private_targets
                || file.control.schedules_private_targets,
            postgres_listen: control.postgres_listen.or(file.control.postgres_listen),
            postgres_domain: control
                .postgres_domain
                .clone()
                .or(file.control.postgres_domain)
                .filter(|text| !text.is_empty())
                .map(|text| databases_domain(&text))
                .transpose()?,
            backups: match control.backups.clone().or(file.control.backups) {
                Some(backups) => backups,
                None => Backups::To(backups_dir(&data_dir)?),
            },
            backup_retention_days: control
                .backup_retention_days
                .or(file.control.backup_retention_days)
                .unwrap_or(BACKUP_RETENTION_DAYS),
            audit_sink: control.audit_sink.clone().or(file.control.audit_sink),
            tls: control.tls.clone(),
            cache_dir: agent
                .cache_dir
                .clone()
                .or(file.agent.cache_dir)
                .unwrap_or_else(pandastack_image::default_cache_dir),
            subnet: agent.subnet.clone().or(file.agent.subnet).unwrap_or_else(|| SUBNET.to_owned()),
            net_prefix: agent
                .net_prefix
                .clone()
                .or(file.agent.net_prefix)
                .unwrap_or_else(|| NET_PREFIX.to_owned()),
            resolver: agent.resolver.or(file.agent.resolver),
            connections_max: agent
                .connections_max
                .or(file.agent.connections_max)
                .unwrap_or(pandastack_net::CONNECTIONS_PER_SLOT_DEFAULT),
            connections_per_minute: limit_or(
                agent.connections_per_minute.or(file.agent.connections_per_minute),
                pandastack_net::CONNECTIONS_PER_MINUTE_DEFAULT,
            ),
            destinations_per_minute: limit_or(
                agent.destinations_per_minute.or(file.agent.destinations_per_minute),
                pandastack_net::DESTINATIONS_PER_MINUTE_DEFAULT,
            ),
            bandwidth_mbit: agent.bandwidth_mbit.or(file.agent.bandwidth_mbit).filter(|mbit| *mbit > 0),
            cpu_percent: agent.cpu_percent.or(file.agent.cpu_percent).filter(|percent| *percent > 0),
            slots_ready: agent.slots_ready.or(file.agent.slots_ready).unwrap_or(SLOTS_READY),
            memory_limit_mb: agent.memory_limit_mb.or(file.agent.memory_limit_mb),
            memory_promised_percent: agent
                .memory_promised_percent
                .or(file.agent.memory_promised_percent)
                .map(|percent| percent.clamp(1, 100)),
            light_sleep: std::time::Duration::from_secs(
                agent.light_sleep_seconds.or(file.agent.light_sleep_seconds).unwrap_or(LIGHT_SLEEP_SECONDS),
            ),
            engine: agent.engine.or(file.agent.engine).unwrap_or_default(),
            zygotes: !agent.no_zygotes && file.agent.zygotes.unwrap_or(true),
            warm_templates: warm.into_iter().find(|list| !list.is_empty()).cloned().unwrap_or_default(),
            data_dir,
        })
    }

    /// OTLP export of a role; includes metrics if the role serves `/metrics` at the API address.
    pub fn export(&self, role: &'static str, has_metrics: bool) -> Option<Export> {
        let metrics_url = has_metrics.then(|| format!("{}/metrics", self.api_url()));
        self.otlp_endpoint.clone().map(|endpoint| Export { endpoint, role, metrics_url })
    }

    /// URL of the API for clients on this machine.
    pub fn api_url(&self) -> String {
        api_url_of(self.listen)
    }

    /// Suffix that distinguishes this installation from others on the same machine.
    pub fn suffix(&self) -> Option<String> {
        suffix_of(&self.data_dir)
    }

    /// Socket on which agents report to control.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join("control.sock")
    }

    /// Directory of control's own sockets, where control runs without root's privileges.
    pub fn control_socket_dir(&self) -> PathBuf {
        self.runtime_dir.join("control")
    }

    /// Socket on which control calls the agent.
    pub fn agent_socket(&self) -> PathBuf {
        self.runtime_dir.join("agent.sock")
    }
}

/// A list from the command line, else from the file.
fn either<T: Clone>(given: &[T], file: Vec<T>) -> Vec<T> {
    if given.is_empty() { file } else { given.to_vec() }
}

fn api_url_of(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    format!("http://{address}")
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

/// A short hash of the data directory; `None` for the default one.
fn suffix_of(data_dir: &Path) -> Option<String> {
    let hash = || blake3::hash(data_dir.as_os_str().as_encoded_bytes()).to_hex()[..8].to_owned();
    (data_dir != Path::new(DATA_DIR)).then(hash)
}

/// Each data directory has its own runtime directory; its own path may be too long for sockets.
fn runtime_dir_of(data_dir: &Path) -> PathBuf {
    match suffix_of(data_dir) {
        None => RUNTIME_DIR.into(),
        Some(suffix) => format!("{RUNTIME_DIR}-{suffix}").into(),
    }
}

/// Default backup location: protects against the loss of a machine, not of the host's disk.
fn backups_dir(data_dir: &Path) -> Result<url::Url> {
    let dir = data_dir.join("backups");
    url::Url::from_directory_path(&dir)
        .map_err(|()| anyhow::anyhow!("cannot store backups in {}: not an absolute path", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(toml: &str, control: ControlArgs, agent: AgentArgs) -> Result<Settings> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), toml).unwrap();
        let common = CommonArgs { config: Some(file.path().to_owned()), ..Default::default() };
        Settings::resolve(&common, &control, &agent)
    }

    #[test]
    fn flags_override_the_file_and_the_file_overrides_defaults() {
        let toml =
            "data_dir = '/srv/pds'\n[control]\nlisten = '0.0.0.0:9000'\n[agent]\nsubnet = '10.9.0.0/16'\n";
        let flag = AgentArgs { subnet: Some("10.8.0.0/16".into()), ..Default::default() };
        let settings = settings(toml, ControlArgs::default(), flag).unwrap();
        assert_eq!(settings.data_dir, Path::new("/srv/pds"));
        assert_eq!(settings.api_url(), "http://127.0.0.1:9000");
        assert_eq!(settings.subnet, "10.8.0.0/16");
        assert_eq!(settings.net_prefix, NET_PREFIX);
    }

    #[test]
    fn network_limits_come_from_the_network_section() {
        let file = "[control]\ndomains = ['*.panda.example']\n[network]\nmail = 'closed'\n\
                    reachable_private = ['10.9.0.0/16']\n";
        let found = settings(file, Default::default(), Default::default()).unwrap();
        assert_eq!(found.reachable_private, [Cidr::literal([10, 9, 0, 0], 16)]);
        assert_eq!((found.mail, found.domains), (MailMode::Closed, vec!["*.panda.example".to_owned()]));
        let none = settings("", Default::default(), Default::default()).unwrap();
        assert!(none.reachable_private.is_empty() && none.mail == MailMode::ByPolicy);
        let wrong = ControlArgs { domains: vec!["https://a.b".into()], ..Default::default() };
        assert!(settings("", wrong, Default::default()).is_err());
    }

    #[test]
    fn a_misspelt_key_is_an_error() {
        let error = settings("[agent]\nsubnett = 'x'\n", Default::default(), Default::default()).unwrap_err();
        assert!(error.to_string().contains("subnett"), "{error}");
    }

    #[test]
    fn the_postgres_domain_setting_accepts_only_host_names() {
        for (given, expect) in [
            ("pg.example.com", Some("pg.example.com")),
            ("*.Data.Example.com.", Some("data.example.com")),
            ("localhost", Some("localhost")),
            ("", None),
            ("10.0.0.1", None),
            ("https://pg.example.com", None),
            ("pg.example.com:5432", None),
            ("-pg.example.com", None),
        ] {
            let control = ControlArgs { postgres_domain: Some(given.into()), ..Default::default() };
            let found = settings("", control, Default::default()).map(|settings| settings.postgres_domain);
            assert_eq!(found.ok().flatten().as_deref(), expect, "{given}");
        }
    }

    #[test]
    fn two_data_directories_have_two_runtime_directories() {
        assert_eq!(runtime_dir_of(Path::new(DATA_DIR)), Path::new(RUNTIME_DIR));
        assert_ne!(runtime_dir_of(Path::new("/a")), runtime_dir_of(Path::new("/b")));
    }
}
