//! Custom domains of apps over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_store::apps::record::{AppRecord, DomainRecord};
use pandastack_store::clock::now;
use pandastack_types::api::{AddAppDomain, AppDomain, AppDomainList, DnsRecord};
use pandastack_types::{Error, ErrorBody};

use crate::path::AppPath;
use crate::state::Apps;
use crate::{check, domain_challenge};

/// The host name of an app, as the caller would reach it.
fn own_host(apps: &Apps, headers: &HeaderMap, app: &AppRecord) -> String {
    let own = apps.address(headers, &app.name);
    own.split("://").nth(1).and_then(|host| host.split(':').next()).unwrap_or_default().to_owned()
}

fn shown(apps: &Apps, headers: &HeaderMap, app: &AppRecord, record: DomainRecord) -> AppDomain {
    let target = own_host(apps, headers, app);
    let routing = DnsRecord {
        kind: "CNAME".to_owned(),
        name: record.domain.clone(),
        value: target.clone(),
        purpose: "routing".to_owned(),
    };
    let (name, value) = domain_challenge::record(&apps.link, &app.workspace, &record.domain);
    let (status, note) = match record.verified_at {
        Some(_) => {
            let domain = &record.domain;
            (
                "active",
                format!("requests reach the app once `{domain}` points to this server, as `{target}` does"),
            )
        }
        None => ("pending", format!("create the TXT record `{name}`, then add the domain again to check it")),
    };
    let proof = DnsRecord { kind: "TXT".to_owned(), name, value, purpose: "ownership".to_owned() };
    let records = [Some(routing), record.verified_at.is_none().then_some(proof)];
    AppDomain {
        dns_note: Some(note),
        domain: record.domain,
        app_id: record.app,
        status: status.to_owned(),
        records: records.into_iter().flatten().collect(),
        created_at: record.created_at,
        updated_at: record.verified_at.unwrap_or(record.created_at),
    }
}

/// Add a custom domain to an app. It is `pending` until its TXT record proves ownership. To check again,
/// add it again.
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
    let domain = check::domain(&wanted.domain, &apps.domains)?;
    let mut new = DomainRecord { domain, app: record.id.clone(), created_at: now(), verified_at: None };
    // First without proof: one that is taken, or too many, costs no lookup.
    apps.store.claim_domain(&new).await?;
    let (name, value) = domain_challenge::record(&apps.link, &record.workspace, &new.domain);
    let unproven = match apps.challenges.check(&name, &value).await {
        Ok(()) => {
            new.verified_at = Some(now());
            apps.store.claim_domain(&new).await?;
            None
        }
        Err(unproven) => Some(unproven),
    };
    apps.names.notify_all();
    let mut answer = shown(&apps, &headers, &record, new);
    if let (Some(why), Some(note)) = (unproven, &answer.dns_note) {
        answer.dns_note = Some(format!("{why}; {note}"));
    }
    Ok((StatusCode::CREATED, Json(answer)))
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
        domains: domains.into_iter().map(|one| shown(&apps, &headers, &record, one)).collect(),
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
    Ok(Json(shown(&apps, &headers, &record, found)))
}

/// Remove a custom domain.
#[utoipa::path(delete, path = "/v1/apps/{id}/domains/{domain}", tag = "apps",
    params(("id" = String, Path), ("domain" = String, Path)), responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn remove(State(apps): State<Arc<Apps>>, caller: Caller, path: AppPath) -> ApiResult<StatusCode> {
    let record = path.find(&apps, &caller).await?;
    apps.store.delete_domain(&record.id, &path.second.to_ascii_lowercase()).await?;
    apps.names.notify_all();
    Ok(StatusCode::NO_CONTENT)
}
