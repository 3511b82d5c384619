//! Resolves host names to apps: an app's own (`<name>.<domain>`, `<id>.<domain>`) below a
//! configured domain, or a custom domain that was proven. Names of the platform belong to no app.

use std::sync::Arc;

use pandastack_edge::{AppRoute, Instances, RouteUnavailable};
use pandastack_sandboxes::why_closed;
use pandastack_store::StoreError;
use pandastack_store::apps::AppStore;
use pandastack_store::apps::record::AppRecord;
use pandastack_store::workspaces::WorkspaceStore;
use pandastack_types::domains::Domains;

/// Route of a host name; `None` if it belongs to no app.
pub async fn find(
    store: &dyn AppStore,
    workspaces: &dyn WorkspaceStore,
    domains: &Domains,
    name: &str,
) -> Result<Option<AppRoute>, RouteUnavailable> {
    let unavailable = |error: StoreError| RouteUnavailable(error.to_string());
    let Some(app) = app_of(store, domains, name).await.map_err(unavailable)? else { return Ok(None) };
    if why_closed(workspaces, &app.workspace).await.map_err(unavailable)?.is_some() {
        // Visitors are not told why: that is between the operator and the workspace.
        return Ok(Some(AppRoute::Suspended(format!("app `{}` is suspended", app.name))));
    }
    let Some(active) = &app.active else {
        let why = format!("app `{}` has no live deployment yet; deploy it first", app.name);
        return Ok(Some(AppRoute::NotServing(why)));
    };
    let live = store.deployment(&app.id, active).await.map_err(unavailable)?;
    let port = live.spec.start.as_ref().map_or(app.spec.port, |start| start.port);
    let sandboxes: Arc<[_]> = live.spec.machines().cloned().collect();
    let always = app.spec.min_instances as usize;
    let own_domain = !domains.covers(name);
    let route = AppRoute::Serving(Instances { sandboxes, always, port, own_domain });
    Ok(Some(route).filter(|_| live.spec.machines().next().is_some()))
}

async fn app_of(
    store: &dyn AppStore,
    domains: &Domains,
    name: &str,
) -> Result<Option<AppRecord>, StoreError> {
    let id = match domains.app_label(name) {
        Some(label) => label.to_owned(),
        None if domains.covers(name) => return Ok(None),
        None => match store.app_of_domain(name).await? {
            Some(id) => id.to_string(),
            None => return Ok(None),
        },
    };
    match store.app(None, &id).await {
        Ok(app) => Ok(Some(app).filter(|app| !app.spec.deleting)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
