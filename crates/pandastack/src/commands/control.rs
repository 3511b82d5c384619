//! `pandastack control`: runs the control server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_control::{BackupConfig, ControlConfig, PostgresConfig};
use pandastack_edge::tls::Tls;
use pandastack_types::domains::Domains;

use crate::login_settings::OidcSettings;
use crate::settings::{AgentArgs, Backups, CommonArgs, ControlArgs, Settings};
use crate::supervise::{secret, stop_requested};
use crate::{heap_trim, trace};

/// Prefixes of the environment variables that configure an object store.
const STORE_VARIABLES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    control: ControlArgs,
    /// Also listen for agents on other machines at this address; use a private network
    #[arg(long, env = "PANDASTACK_AGENTS_LISTEN", value_name = "ADDRESS")]
    agents_listen: Option<SocketAddr>,
    /// Address of this server for other control servers on the same database: `http://address:port`
    /// or `unix:/path` [default: --agents-listen, or the control socket]
    #[arg(long, env = "PANDASTACK_REPLICA_ADDRESS", value_name = "ADDRESS")]
    replica_address: Option<String>,
    #[command(flatten)]
    link: LinkArgs,
}

/// Options of every server role: the join secret, and how the process runs.
#[derive(Debug, Clone, clap::Args)]
pub struct LinkArgs {
    /// File with the join secret shared by control and agents [default: link-secret in the data directory]
    #[arg(long, env = "PANDASTACK_LINK_SECRET_FILE", value_name = "FILE")]
    link_secret_file: Option<PathBuf>,
    /// Log to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Stop when standard input closes; set by `up`
    #[arg(long, hide = true)]
    pub supervised: bool,
}

impl LinkArgs {
    /// Path of the join secret.
    pub fn secret_file(&self, settings: &Settings) -> PathBuf {
        self.link_secret_file.clone().unwrap_or_else(|| secret::path_in(&settings.data_dir))
    }
}

fn postgres(settings: &Settings) -> Result<PostgresConfig> {
    let certificates = settings.tls.certificates(&settings.data_dir)?;
    let tls = Tls::with_protocols(certificates, &[pandastack_control::POSTGRES_ALPN])?;
    Ok(PostgresConfig { listen: settings.postgres_listen, domain: settings.postgres_domain.clone(), tls })
}

fn backups(settings: &Settings) -> Option<BackupConfig> {
    let Backups::To(url) = settings.backups.clone() else { return None };
    let is_store_variable = |name: &str| STORE_VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    let store_settings = std::env::vars().filter(|(name, _)| is_store_variable(name));
    let store_settings = store_settings.map(|(name, value)| (name.to_lowercase(), value)).collect();
    Some(BackupConfig { url, store_settings, retention_days: settings.backup_retention_days })
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    let settings = Settings::resolve(&args.common, &args.control, &AgentArgs::default())?;
    trace::init(args.link.log_file.as_deref(), trace::FILTER_SERVER, settings.export("control", true))?;
    trace::log_panics();
    let key = secret::read(&args.link.secret_file(&settings))?;
    let config = ControlConfig {
        listen: vec![settings.listen],
        internal_socket: settings.control_socket(),
        internal_listen: args.agents_listen,
        replica_address: args.replica_address.clone(),
        database_url: settings.database_url.clone(),
        requests_per_second: settings.requests_per_second,
        tenancy: settings.tenancy,
        domains: Domains::new(&settings.domains, &settings.api_names)?,
        accept_new_link_secret: settings.accept_new_link_secret,
        challenge_resolver: settings.challenge_resolver,
        schedules_private_targets: settings.schedules_private_targets,
        access_log: args.control.access_log.clone(),
        audit_sink: settings.audit_sink.clone(),
        tls: args.control.tls.open(&settings.data_dir)?,
        postgres: Some(postgres(&settings)?),
        backups: backups(&settings),
        outdated: settings.frozen.open()?,
        login: settings.oidc.as_ref().map(OidcSettings::open).transpose()?,
        ..ControlConfig::new(settings.data_dir.clone(), key)
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(async {
        let shutdown = stop_requested(args.link.supervised)?;
        anyhow::Ok(heap_trim::while_serving(pandastack_control::serve(config, shutdown)).await?)
    })?;
    Ok(ExitCode::SUCCESS)
}
