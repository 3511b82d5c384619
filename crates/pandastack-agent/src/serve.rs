//! Starting and stopping an agent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::{ConnectInfo, Extension};
use pandastack_engine::{Engine, kvm_probe};
use pandastack_fleet::{LinkListener, Peer};
use pandastack_image::Store;
use pandastack_net::{NetConfig, SlotLimits, SlotPool};
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::cgroup::Cgroups;
use crate::config::{AgentConfig, Listen};
use crate::engine_choice::{EngineKind, EngineSearch};
use crate::host::Host;
use crate::host_resources::HostParts;
use crate::layout::Layout;
use crate::link::Link;
use crate::log_limit::LogLimit;
use crate::{databases, denials, http, pressure, recover, report, snapshot, snapshot_zygote, spares};

/// Bytes of a megabit.
const BYTES_PER_MBIT: u64 = 125_000;

/// Control group of the agent itself.
const OWN_GROUP: &str = "agent";

/// Runs an agent until `shutdown` is cancelled. Machines continue without it.
///
/// Boxed, so that the agent is compiled in this crate and not in its caller's.
pub fn serve(
    config: AgentConfig,
    shutdown: CancellationToken,
) -> Pin<Box<dyn Future<Output = anyhow::Result<()>>>> {
    Box::pin(run(config, shutdown))
}

async fn run(config: AgentConfig, shutdown: CancellationToken) -> anyhow::Result<()> {
    let host = open(config, shutdown.clone()).await?;
    recover::recover(&host).await.context("taking over the sandboxes of the previous agent")?;
    snapshot::sum_the_rest(&host.resources);
    for name in &host.config.warm_templates {
        host.templates.begin(name).with_context(|| format!("template `{name}`"))?;
    }
    host.tasks.spawn(report::run(host.clone()));
    host.tasks.spawn(denials::run(host.clone()));
    host.tasks.spawn(databases::run(host.clone()));
    host.tasks.spawn(snapshot_zygote::run(host.clone()));
    host.tasks.spawn(pressure::run(host.clone()));
    host.tasks.spawn(spares::run(host.resources.clone()));
    host.tasks.spawn(host.log_limit.clone().run(shutdown.clone()));
    let (link, control, stop) = (host.link.clone(), host.config.control.clone(), shutdown.clone());
    host.tasks.spawn(async move { link.keep_certificate(&control, &stop).await });
    let served = listen(&host, shutdown).await;
    host.tasks.close();
    host.tasks.wait().await;
    served
}

async fn open(config: AgentConfig, shutdown: CancellationToken) -> anyhow::Result<Arc<Host>> {
    let data_dir = config.data_dir.clone();
    let store = blocking(move || Store::open(&data_dir)).await.context("opening the store")?;
    store.sweep().context("removing what an interrupted write left")?;
    let layout = Layout::new(store.root(), &config.runtime_dir);
    layout.prepare().context("making the agent's directories")?;
    let engine = engine(&config).await?;
    let net = NetConfig {
        subnet: config.subnet.parse().context("the slots' subnet")?,
        name_prefix: config.net_prefix.clone(),
        ready_target: config.slots_ready,
        resolver: config.resolver,
        reachable_private: config.reachable_private.clone(),
        guest_allow: config.guests.allow.clone(),
        mirrors: config.guests.mirror_hosts(),
        mail: config.mail,
        limits: SlotLimits {
            connections_max: config.connections_max,
            connections_per_minute: config.connections_per_minute,
            destinations_per_minute: config.destinations_per_minute,
            bytes_per_second: config.bandwidth_mbit.map(|mbit| u64::from(mbit) * BYTES_PER_MBIT),
        },
        ..NetConfig::new(&config.runtime_dir)
    };
    let slots = SlotPool::open(net).context("preparing the network")?;
    let cgroups = Cgroups::open(config.host.as_str()).context("preparing control groups")?;
    let cgroups = cgroups.with_cpu_percent(config.cpu_percent);
    // Processes begin in the agent's group, so that a successor always finds them.
    let own = cgroups.create_own(OWN_GROUP);
    let own = own.and_then(|group| group.add(std::process::id()));
    own.context("entering the agent's control group")?;
    let capabilities = engine.capabilities();
    tracing::info!(
        engine = capabilities.name,
        isolation = capabilities.isolation.as_str(),
        fork = capabilities.fork,
        store = ?store.cloning(),
        cgroups = cgroups.describe(),
        "agent ready"
    );
    let store = Arc::new(store);
    let log_limit = LogLimit::new().context("preparing to bound the logs of machines")?;
    let link = Link::new(config.host.clone(), config.link.clone(), &config.data_dir);
    let link = link.context("preparing the host's certificate")?;
    Ok(Host::new(HostParts { config, engine, store, slots, cgroups, log_limit, layout, shutdown }, link))
}

async fn engine(config: &AgentConfig) -> anyhow::Result<Arc<dyn Engine>> {
    let program = config.probe_program.clone();
    let probe = move || Ok::<_, Infallible>(kvm_probe::probe_with(&program, kvm_probe::PROBE_DEADLINE));
    let kvm = blocking(probe).await?;
    tracing::info!(usable = kvm.usable, reason = kvm.reason, "probed KVM");
    let search = EngineSearch {
        choice: config.engine,
        kvm,
        data_dir: &config.data_dir,
        library_dir: config.data_dir.join("lib"),
        in_use: EngineKind::in_use(&config.data_dir),
    };
    let chosen = search.choose().await?;
    chosen.kind.record(&config.data_dir).context("recording the engine")?;
    tracing::info!(engine = chosen.engine.capabilities().name, reason = chosen.reason, "chose the engine");
    Ok(chosen.engine)
}

async fn listen(host: &Arc<Host>, shutdown: CancellationToken) -> anyhow::Result<()> {
    let router = http::router(host.clone());
    match &host.config.listen {
        Listen::Unix(path) => {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
            }
            // A predecessor's socket. The predecessor has ended: otherwise it would still hold the
            // claim on the network slots.
            let _ = std::fs::remove_file(path);
            let listener = tokio::net::UnixListener::bind(path)
                .with_context(|| format!("listening on {}", path.display()))?;
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
            if let Some((user, group)) = host.config.socket_owner {
                std::os::unix::fs::chown(path, Some(user), Some(group))
                    .with_context(|| format!("giving {} to control's user {user}", path.display()))?;
            }
            let router = router.layer(Extension(ConnectInfo(Peer::Local)));
            axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await?;
        }
        Listen::Tcp(address) => {
            let listener = tokio::net::TcpListener::bind(address)
                .await
                .with_context(|| format!("listening on {address}"))?;
            let listener = LinkListener::new(listener, host.link.clone())?;
            let router = router.into_make_service_with_connect_info::<Peer>();
            axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await?;
        }
    }
    Ok(())
}
