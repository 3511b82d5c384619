//! Names of an app beside its own, over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use pandastack_rest::url::beside;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_store::StoreError;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord, DomainRecord};
use pandastack_store::clock::now;
use pandastack_types::api::{AddAppDomain, AppDomain, AppDomainList, DnsRecord};
use pandastack_types::{Error, ErrorBody, Result};

use crate::check;
use crate::path::AppPath;
use crate::state::Apps;

/// The host name of an app, as the caller would reach it.
fn own_host(headers: &HeaderMap, app: &AppRecord) -> String {
    let own = beside(headers, &app.name);
    own.split("://").nth(1).and_then(|host| host.split(':').next()).unwrap_or_default().to_owned()
}

fn shown(headers: &HeaderMap, app: &AppRecord, record: DomainRecord) -> AppDomain {
    let target = own_host(headers, app);
    let entry = DnsRecord {
        kind: "CNAME".to_owned(),
        name: record.domain.clone(),
        value: target.clone(),
        purpose: "routing".to_owned(),
    };
    AppDomain {
        dns_note: Some(format!(
            "requests reach the app once `{}` points to this server, as `{target}` does",
            record.domain
        )),
        domain: record.domain,
        app_id: record.app,
        status: "active".to_owned(),
        records: vec![entry],
        created_at: record.created_at,
        updated_at: record.created_at,
    }
}

/// Add a custom domain to an app.
#[utoipa::path(post, path = "/v1/apps/{id}/domains", tag = "apps", params(("id" = String, Path)), request_body = AddAppDomain,
    responses((status = 201, body = AppDomain), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub async fn add(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    headers: HeaderMap,
    JsonBody(wanted): JsonBody<AddAppDomain>,
) -> ApiResult<(StatusCode, Json<AppDomain>)> {
    let record = path.find_own(&apps, &caller).await?;
    let own = own_host(&headers, &record);
    let own = own.split_once('.').map_or("localhost", |(_, own)| own);
    let domain = check::domain(&wanted.domain, own)?;
    refuse_address(&apps, &record, &domain).await?;
    let host = headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    if host.split(':').next().is_some_and(|host| host.eq_ignore_ascii_case(&domain)) {
        return Err(Error::bad_request(format!("`{domain}` is the API's host name; choose another")).into());
    }
    let new = DomainRecord { domain, app: record.id.clone(), created_at: now() };
    apps.store.insert_domain(&new).await?;
    apps.sandboxes.names_changed();
    Ok((StatusCode::CREATED, Json(shown(&headers, &record, new))))
}

/// Refuses the address of another app, by whatever name the caller reached the API: it is known from deployments of that app.
async fn refuse_address(apps: &Apps, app: &AppRecord, domain: &str) -> Result<()> {
    let label = domain.split('.').next().unwrap_or_default();
    let other = match apps.store.app(None, label).await {
        Ok(other) if other.id != app.id => other,
        Ok(_) | Err(StoreError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let is_there =
        |one: &DeploymentRecord| one.spec.address.as_deref().is_some_and(|url| leads_to(url, domain));
    match apps.store.deployments(&other.id).await?.iter().any(is_there) {
        true => Err(Error::conflict(format!("`{domain}` is used by another app; choose another"))),
        false => Ok(()),
    }
}

fn leads_to(url: &str, host: &str) -> bool {
    url::Url::parse(url).is_ok_and(|url| url.host_str() == Some(host))
}

/// List an app's custom domains.
#[utoipa::path(get, path = "/v1/apps/{id}/domains", tag = "apps", params(("id" = String, Path)), responses(
    (status = 200, body = AppDomainList), (status = 404, body = ErrorBody)))]
pub async fn list(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    headers: HeaderMap,
) -> ApiResult<Json<AppDomainList>> {
    let record = path.find(&apps, &caller).await?;
    let domains = apps.store.domains(&record.id).await?;
    Ok(Json(AppDomainList {
        domains: domains.into_iter().map(|one| shown(&headers, &record, one)).collect(),
    }))
}

/// Get a custom domain.
#[utoipa::path(get, path = "/v1/apps/{id}/domains/{domain}", tag = "apps",
    params(("id" = String, Path), ("domain" = String, Path)),
    responses((status = 200, body = AppDomain), (status = 404, body = ErrorBody)))]
pub async fn show(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
    headers: HeaderMap,
) -> ApiResult<Json<AppDomain>> {
    let record = path.find(&apps, &caller).await?;
    let domains = apps.store.domains(&record.id).await?;
    let found = domains.into_iter().find(|one| one.domain == path.second.to_ascii_lowercase());
    let found = found.ok_or_else(|| Error::not_found("domain", &path.second))?;
    Ok(Json(shown(&headers, &record, found)))
}

/// Remove a custom domain.
#[utoipa::path(delete, path = "/v1/apps/{id}/domains/{domain}", tag = "apps",
    params(("id" = String, Path), ("domain" = String, Path)), responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn remove(State(apps): State<Arc<Apps>>, caller: Caller, path: AppPath) -> ApiResult<StatusCode> {
    let record = path.find(&apps, &caller).await?;
    apps.store.delete_domain(&record.id, &path.second.to_ascii_lowercase()).await?;
    apps.sandboxes.names_changed();
    Ok(StatusCode::NO_CONTENT)
}
