//! `pandastack control`: runs the control server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_control::{BackupConfig, ControlConfig, PostgresConfig};
use pandastack_edge::tls::Tls;
use pandastack_types::domains::Domains;

use crate::login_settings::OidcSettings;
use crate::settings::{AgentArgs, Backups, CommonArgs, ControlArgs, Settings};
use crate::supervise::service_user::{Needs, User};
use crate::supervise::{secret, service_user, stop_requested};
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
    /// Also listen for agents and edges on other machines at this address
    #[arg(long, env = "PANDASTACK_AGENTS_LISTEN", value_name = "ADDRESS")]
    agents_listen: Option<SocketAddr>,
    /// Address of this server for other control servers on the same database: `https://address:port`
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
        let file = self.link_secret_file.clone().unwrap_or_else(|| secret::path_in(&settings.data_dir));
        // Absolute, because the permissions of its parent directories matter too.
        std::path::absolute(&file).unwrap_or(file)
    }
}

fn postgres(settings: &Settings) -> Result<PostgresConfig> {
    let certificates = settings.tls.certificates(&settings.data_dir)?;
    let tls = Tls::with_protocols(certificates, &[pandastack_control::POSTGRES_ALPN])?;
    Ok(PostgresConfig { listen: settings.postgres_listen, domain: settings.postgres_domain.clone(), tls })
}

/// Variables that configure an object store.
fn store_variables() -> impl Iterator<Item = (String, String)> {
    let is_one = |name: &str| STORE_VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    std::env::vars().filter(move |(name, _)| is_one(name))
}

fn backups(settings: &Settings) -> Option<BackupConfig> {
    let Backups::To(url) = settings.backups.clone() else { return None };
    let store_settings = store_variables().map(|(name, value)| (name.to_lowercase(), value)).collect();
    Some(BackupConfig { url, store_settings, retention_days: settings.backup_retention_days })
}

/// Resources that control still uses as an unprivileged user.
fn needs(args: &Args, settings: &Settings) -> Needs {
    let secret = Some(args.link.secret_file(settings));
    let mut needs = Needs { listen: vec![settings.listen], secret, ..Needs::default() };
    needs.listen.extend(settings.postgres_listen.into_iter().chain(args.agents_listen));
    needs.directories.extend([settings.data_dir.join("control"), settings.control_socket_dir()]);
    if let Backups::To(url) = &settings.backups {
        let folder = url.to_file_path().ok().filter(|_| url.scheme() == "file");
        needs.chosen.extend(folder.clone().filter(|folder| !folder.starts_with(&settings.data_dir)));
        needs.directories.extend(folder);
    }
    needs.logs.extend(args.control.access_log.clone().into_iter().chain(args.link.log_file.clone()));
    needs.files.extend(settings.audit_sink.iter().filter_map(|sink| sink.file().map(Path::to_owned)));
    needs.read.extend(settings.tls.files().chain(settings.frozen.advisories.clone()));
    // Files with credentials are read again when these expire.
    let files = store_variables().map(|(_, value)| PathBuf::from(value));
    needs.read.extend(files.filter(|file| file.is_absolute() && file.is_file()));
    needs
}

/// Gives up root's privileges, where control can work without them. Returns why it cannot.
fn become_service_user(args: &Args, settings: &Settings, config: &mut ControlConfig) -> Result<User> {
    let needs = needs(args, settings);
    let user = User::prepare(settings, &needs)?;
    if let User::Service(service) = &user {
        config.internal_socket = service_user::link_control_socket(settings)?;
        service.enter(&needs)?;
    }
    Ok(user)
}

fn make_log_directories(args: &Args) -> Result<()> {
    for log in args.link.log_file.iter().chain(&args.control.access_log) {
        let parent = log.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot create the directory {}", parent.display()))?;
    }
    Ok(())
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    // Before the first thread: threads inherit it.
    rustix::thread::set_no_new_privs(true).context("cannot give up the right to gain privileges")?;
    let settings = Settings::resolve(&args.common, &args.control, &AgentArgs::default())?;
    trace::json_requested()?;
    let secret_file = args.link.secret_file(&settings);
    let key = secret::read(&secret_file)?;
    let mut config = ControlConfig {
        listen: vec![settings.listen],
        internal_socket: settings.control_socket(),
        internal_listen: args.agents_listen,
        replica_address: args.replica_address.clone(),
        database_url: settings.database_url.clone(),
        requests_per_second: settings.requests_per_second,
        tenancy: settings.tenancy,
        domains: Domains::new(&settings.domains, &settings.api_names)?,
        secret_file: Some(secret_file.clone()),
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
        ..ControlConfig::new(settings.data_dir.clone(), key.clone())
    };
    // Everything opened up to here may need root; nothing after this does.
    let user = become_service_user(&args, &settings, &mut config)?;
    make_log_directories(&args)?;
    trace::init(args.link.log_file.as_deref(), trace::FILTER_SERVER, settings.export("control", true))?;
    trace::log_panics();
    user.log("control");
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(async {
        let shutdown = stop_requested(args.link.supervised)?;
        let served = heap_trim::while_serving(pandastack_control::serve(config, shutdown));
        anyhow::Ok(secret::following(&secret_file, &key, served).await?)
    })?;
    Ok(ExitCode::SUCCESS)
}
