//! `pandastack agent`: runs the agent on this host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_agent::{AgentConfig, LinkCredentials, Listen, is_advertisable};
use pandastack_types::HostId;
use pandastack_types::host_identity::HostRole;

use super::join::{JoinArgs, Joined};
use crate::failure::Failure;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use crate::supervise::lock::{Claim, Holder, UpLock};
use crate::supervise::service_user::ServiceUser;
use crate::supervise::{addresses, secret, stop_requested};
use crate::{heap_trim, trace};

/// File that stores this host's id, which must not change when the machine is renamed.
pub const HOST_ID_FILE: &str = "host-id";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    agent: AgentArgs,
    /// ID of this host [default: derived from the host name on first start]
    #[arg(long, env = "PANDASTACK_HOST", value_name = "ID")]
    host: Option<HostId>,
    /// Control server: `unix:/path` or `https://address:port`; separate several with commas
    /// [default: the control socket on this machine]
    #[arg(long, env = "PANDASTACK_CONTROL", value_name = "ADDRESS")]
    control: Option<String>,
    /// Listen for control on this address instead of a Unix socket [default: --advertise]
    #[arg(long, env = "PANDASTACK_AGENT_LISTEN", value_name = "ADDRESS")]
    agent_listen: Option<SocketAddr>,
    /// Address and port at which control and edges reach this agent [default: --agent-listen]
    #[arg(long, env = "PANDASTACK_ADVERTISE", value_name = "ADDRESS")]
    advertise: Option<String>,
    #[command(flatten)]
    join: JoinArgs,
    #[command(flatten)]
    link: super::control::LinkArgs,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    let mut settings = Settings::resolve(&args.common, &ControlArgs::default(), &args.agent)?;
    if !args.link.supervised {
        addresses::choose(&mut settings)?;
    }
    trace::init(args.link.log_file.as_deref(), trace::FILTER_SERVER, settings.export("agent", false))?;
    trace::log_panics();
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    let _lock = claim(&settings, args.link.supervised)?;
    runtime.block_on(async {
        let config = config(&args, &settings).await?;
        let shutdown = stop_requested(args.link.supervised)?;
        let (secret_file, link) = (args.link.secret_file(&settings), config.link.clone());
        let served = heap_trim::while_serving(pandastack_agent::serve(config, shutdown));
        match link {
            LinkCredentials::Secret(key) => secret::following(&secret_file, &key, served).await,
            LinkCredentials::Certificate(..) => served.await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn config(args: &Args, settings: &Settings) -> Result<AgentConfig> {
    let control = format!("unix:{}", settings.control_socket().display());
    let host = host_id(args.host.clone(), settings)?;
    let joined =
        args.join.joined(&settings.data_dir, args.control.as_deref(), HostRole::Agent, &host).await?;
    Ok(AgentConfig {
        host,
        data_dir: settings.data_dir.clone(),
        runtime_dir: settings.runtime_dir.clone(),
        cache_dir: settings.cache_dir.clone(),
        listen: listen(args, settings, joined.is_some())?,
        advertise: args.advertise.clone(),
        control: args.control.clone().unwrap_or(control),
        socket_owner: ServiceUser::resolve(settings.run_as.as_deref())?.map(|user| user.ids()),
        link: match joined {
            Some(Joined { tls, file }) => LinkCredentials::Certificate(tls, file),
            None => LinkCredentials::Secret(secret::read(&args.link.secret_file(settings))?),
        },
        engine: settings.engine.into(),
        zygotes: settings.zygotes,
        subnet: settings.subnet.clone(),
        net_prefix: settings.net_prefix.clone(),
        resolver: settings.resolver,
        reachable_private: settings.reachable_private.clone(),
        guests: settings.guests.load()?,
        mail: settings.mail.into(),
        connections_max: settings.connections_max,
        connections_per_minute: settings.connections_per_minute,
        destinations_per_minute: settings.destinations_per_minute,
        bandwidth_mbit: settings.bandwidth_mbit,
        cpu_percent: settings.cpu_percent,
        slots_ready: settings.slots_ready,
        memory_limit_mb: settings.memory_limit_mb,
        memory_promised_percent: settings.memory_promised_percent,
        warm_templates: settings.warm_templates.clone(),
        light_sleep: settings.light_sleep,
        probe_program: PathBuf::from("/proc/self/exe"),
    })
}

/// Where the agent listens. A host with a certificate is reached over the network.
fn listen(args: &Args, settings: &Settings, joined: bool) -> Result<Listen> {
    if let Some(given) = &args.advertise
        && !is_advertisable(given)
    {
        let failure = Failure::new(format!("cannot advertise `{given}`"));
        return Err(failure
            .hint("give an address and a port that control can reach, such as 10.0.0.2:7071")
            .into());
    }
    let advertised = args.advertise.as_ref().and_then(|given| given.parse().ok());
    match args.agent_listen.or(advertised) {
        Some(address) if address.ip().is_unspecified() && args.advertise.is_none() => {
            let failure = Failure::new(format!("control cannot reach this agent at {address}"));
            Err(failure.hint("give the address of this host with --advertise").into())
        }
        Some(address) => Ok(Listen::Tcp(address)),
        None if joined => {
            let failure = Failure::new("the address at which control reaches this agent is missing");
            Err(failure
                .hint("set --advertise to an address and port of this host, such as 10.0.0.2:7071")
                .into())
        }
        None => Ok(Listen::Unix(settings.agent_socket())),
    }
}

fn host_id(given: Option<HostId>, settings: &Settings) -> Result<HostId> {
    let path = settings.data_dir.join(HOST_ID_FILE);
    if let Some(id) = given {
        write_host_id(&path, &id)?;
        return Ok(id);
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            text.trim().parse().with_context(|| format!("cannot read the host ID from {}", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let system = rustix::system::uname();
            let id = host_id_from(&system.nodename().to_string_lossy(), settings.suffix().as_deref());
            write_host_id(&path, &id)?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read the host ID from {}", path.display())),
    }
}

fn write_host_id(path: &Path, id: &HostId) -> Result<()> {
    std::fs::write(path, id.as_str()).with_context(|| format!("cannot write {}", path.display()))
}

/// Locks the data directory for a standalone agent, so that `down` can find it.
fn claim(settings: &Settings, supervised: bool) -> Result<Option<UpLock>> {
    std::fs::create_dir_all(&settings.data_dir).context("cannot create the data directory")?;
    if supervised {
        return Ok(None);
    }
    let holder = Holder {
        pid: std::process::id().cast_signed(),
        api_url: String::new(),
        runtime_dir: settings.runtime_dir.clone(),
        subnet: settings.subnet.clone(),
        net_prefix: settings.net_prefix.clone(),
    };
    match UpLock::claim(&settings.data_dir, &holder)? {
        Claim::Acquired(lock) => Ok(Some(lock)),
        Claim::Held(_) => {
            let failure = Failure::new(format!(
                "data directory {} is in use by another process",
                settings.data_dir.display()
            ));
            Err(failure.hint("use another data directory with --data-dir").into())
        }
    }
}

/// Derives a host id from the machine's name and an optional suffix; random if the name has no
/// usable characters.
fn host_id_from(name: &str, suffix: Option<&str>) -> HostId {
    let label = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let label: String = label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let label = label.trim_matches('-');
    let id = suffix.map_or_else(|| label.to_owned(), |suffix| format!("{label}-{suffix}"));
    id.parse().unwrap_or_else(|_| HostId::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_become_ids() {
        assert_eq!(host_id_from("Box_7.example.org", None).as_str(), "box-7");
        assert_eq!(host_id_from("box", Some("ab12")).as_str(), "box-ab12");
        assert_eq!(host_id_from("", None).as_str().len(), 36);
        assert_eq!(host_id_from(&"x".repeat(80), None).as_str().len(), 36);
    }
}
