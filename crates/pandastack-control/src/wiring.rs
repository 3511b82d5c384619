//! Connects the parts of the server: each service gets only the dependencies that it uses.

use std::sync::Arc;

use pandastack_apps::{Apps, AppsParts, Challenges, NameChanges};
use pandastack_databases::{DatabasesParts, ManagedDatabases};
use pandastack_edge::{AccessLog, Edge};
use pandastack_event_webhooks::EventWebhooks;
use pandastack_functions::Functions;
use pandastack_rest::Admission;
use pandastack_sandboxes::hosts::Hosts;
use pandastack_sandboxes::{Background, Sandboxes};
use pandastack_scheduler::Scheduler;
use pandastack_store::Store;
use pandastack_templates::Templates;
use pandastack_webhooks::Webhooks;
use tokio_util::sync::CancellationToken;

use crate::app_databases::{AppDatabases, DatabaseApps};
use crate::audit::refusals::RefusalBudget;
use crate::auth::Keys;
use crate::config::ControlConfig;
use crate::fleet::Fleet;
use crate::followers::Followers;
use crate::login::Login;
use crate::postgres_listener::PostgresListener;
use crate::preview_routes::StoredRoutes;
use crate::rate::Rates;
use crate::replicas::{ReplicaPeers, Replicas};
use crate::schedule_targets::ScheduleTargets;
use crate::services::Services;

/// The services of a server on this store. `shutdown` ends them.
pub(crate) fn new_services(
    store: Arc<dyn Store>,
    (hosts, fleet): (Hosts, Fleet),
    config: &ControlConfig,
    (log, replicas, challenges, login): (AccessLog, Replicas, Challenges, Option<Login>),
    postgres: Option<&mut PostgresListener>,
    shutdown: CancellationToken,
) -> Services {
    let (hosts, link, replicas) = (Arc::new(hosts), config.link_key.clone(), Arc::new(replicas));
    let routes = StoredRoutes {
        store: Arc::clone(&store),
        hosts: Arc::clone(&hosts),
        link: link.clone(),
        domains: config.domains.clone(),
    };
    let edge = Edge::new(Arc::new(routes), log);
    let peers =
        ReplicaPeers { store: Arc::clone(&store), replicas: Arc::clone(&replicas), link: link.clone() };
    let (rates, followers) =
        (Rates::new(config.requests_per_second), Followers::new(config.event_comments_every));
    let keys = Arc::new(Keys::new(Arc::clone(&store), rates, followers, link.clone()));
    let webhooks = Arc::new(Webhooks::new(config.schedules_private_targets, config.domains.clone()));
    let background = Background::new(shutdown);
    let names = NameChanges::new(Arc::clone(&edge), store.clone(), background.clone());
    let names = Arc::new(names);
    let sandboxes = Arc::new(Sandboxes::new(
        Arc::clone(&store),
        Arc::clone(&hosts),
        Arc::clone(&edge),
        config.tenancy,
        Box::new(peers),
        background.clone(),
    ));
    let machines = sandboxes.machines();
    let (address, ports) = postgres.map(|listener| (listener.address.clone(), listener.ports.take())).unzip();
    let databases = Arc::new(ManagedDatabases::new(DatabasesParts {
        store: store.clone(),
        machines: Arc::clone(&machines),
        volumes: sandboxes.owned_volumes(),
        edge: Arc::clone(&edge),
        background: background.clone(),
        link: link.clone(),
        attachments: Arc::new(DatabaseApps(store.clone())),
        backups: config.backups.clone(),
        address,
        ports: ports.flatten(),
    }));
    let functions = Arc::new(Functions::new(
        (store.clone(), store.clone()),
        Arc::clone(&machines),
        Arc::clone(&edge),
        background.clone(),
        Arc::clone(&webhooks),
        Arc::clone(&keys) as Arc<dyn Admission>,
    ));
    let apps = Arc::new(Apps::new(AppsParts {
        store: store.clone(),
        repos: store.clone(),
        machines: Arc::clone(&machines),
        templates: hosts.clone(),
        edge: Arc::clone(&edge),
        names: Arc::clone(&names),
        background: background.clone(),
        link: link.clone(),
        webhooks: Arc::clone(&webhooks),
        databases: Arc::new(AppDatabases(Arc::clone(&databases))),
        domains: config.domains.clone(),
        challenges,
    }));
    let builders = Arc::clone(&machines);
    let templates = Templates::new(store.clone(), store.clone(), builders, hosts.clone(), background.clone());
    let templates = Arc::new(templates);
    let targets = ScheduleTargets {
        apps: Arc::clone(&apps),
        functions: Arc::clone(&functions),
        databases: Arc::clone(&databases),
        templates: Arc::clone(&templates),
    };
    let scheduler = Arc::new(Scheduler::new(
        (store.clone(), store.clone()),
        machines,
        Arc::clone(&edge),
        background.clone(),
        Arc::clone(&webhooks),
        Arc::new(targets),
        replicas.instance.clone(),
    ));
    let event_webhooks = EventWebhooks::new(store.clone(), webhooks, background.clone());
    Services {
        store,
        hosts,
        fleet: Arc::new(fleet),
        edge,
        link,
        secret_file: config.secret_file.clone(),
        names,
        background,
        sandboxes,
        templates,
        databases,
        event_webhooks: Arc::new(event_webhooks),
        keys,
        login,
        metrics: Arc::default(),
        audit: Arc::default(),
        audit_sink: config.audit_sink.clone(),
        outdated: config.outdated.clone(),
        refusals: RefusalBudget::default(),
        functions,
        scheduler,
        apps,
        replicas,
    }
}
