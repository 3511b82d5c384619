//! Members of the caller's workspace, and their sessions.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{delete, get, patch};
use axum::{Json, Router};
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_store::TokenRecord;
use pandastack_store::clock::now;
use pandastack_store::members::{Identity, MemberRecord};
use pandastack_types::api::{AddMember, Items, Member, MemberSession, PatchMember};
use pandastack_types::limits::MEMBER_TEXT_BYTES_MAX;
use pandastack_types::{Error, ErrorBody, MemberId, Result};

use crate::login;
use crate::services::{ServerState, Services};

/// Routes of members.
pub(crate) fn routes() -> Router<ServerState> {
    Router::new()
        .route("/members", get(list).post(add))
        .route("/members/{id}", patch(change).merge(delete(remove)))
        .route("/members/sessions", get(sessions))
        .route("/members/sessions/{id}", delete(revoke))
}

/// List the members of the workspace. Requires an owner key.
#[utoipa::path(get, path = "/v1/members", tag = "members", operation_id = "list_members", responses(
    (status = 200, body = Items<Member>), (status = 403, body = ErrorBody)))]
pub(crate) async fn list(
    State(services): State<Arc<Services>>,
    caller: Caller,
) -> ApiResult<Json<Items<Member>>> {
    let members = services.store.members(&caller.workspace).await?;
    Ok(Json(Items { items: members.into_iter().map(shown).collect() }))
}

/// Add a person to the workspace, by email address or by subject at the login provider. Requires an owner
/// key.
#[utoipa::path(post, path = "/v1/members", tag = "members", operation_id = "add_member",
    request_body = AddMember, responses((status = 201, body = Member), (status = 400, body = ErrorBody),
    (status = 403, body = ErrorBody),
    (status = 409, description = "The person is a member", body = ErrorBody),
    (status = 501, description = "No login provider is configured", body = ErrorBody)))]
pub(crate) async fn add(
    State(services): State<Arc<Services>>,
    caller: Caller,
    JsonBody(request): JsonBody<AddMember>,
) -> ApiResult<(StatusCode, Json<Member>)> {
    let provider = &login::configured(&services)?.config.oidc;
    let subject = text("subject", request.subject)?;
    let email = text("email", request.email)?.map(|email| email.to_lowercase());
    if email.as_deref().is_some_and(|email| !is_address(email)) {
        return Err(Error::bad_request("`email` must be an address such as ada@example.com").into());
    }
    if email.is_none() && subject.is_none() {
        return Err(Error::bad_request("`email` or `subject` is required").into());
    }
    let member = MemberRecord {
        id: MemberId::random(),
        workspace: caller.workspace,
        identity: subject.map(|subject| Identity { issuer: provider.issuer.clone(), subject }),
        email,
        name: None,
        role: Some(request.role),
        group_role: None,
        operator: false,
        created_at: now(),
        last_sign_in_at: None,
    };
    services.store.insert_member(&member).await?;
    Ok((StatusCode::CREATED, Json(shown(member))))
}

/// Change the role of a member. It applies to open sessions, too. Requires an owner key.
#[utoipa::path(patch, path = "/v1/members/{id}", tag = "members", operation_id = "change_member",
    params(("id" = String, Path)), request_body = PatchMember, responses((status = 200, body = Member),
    (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "The role comes from groups of the login provider", body = ErrorBody)))]
pub(crate) async fn change(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<MemberId>,
    JsonBody(request): JsonBody<PatchMember>,
) -> ApiResult<Json<Member>> {
    let workspace = &caller.workspace;
    if services.store.member(workspace, &id).await?.group_role.is_some() {
        let message = format!(
            "the role of member `{id}` comes from groups of the login provider; change the groups there, or \
             the mapping in the server's settings"
        );
        return Err(Error::conflict(message).into());
    }
    let member = services.store.set_member_role(workspace, &id, request.role).await?;
    // Open sessions were started with the earlier role.
    for prefix in login::sessions_of(&services, workspace, &id).await? {
        services.keys.revoke(&prefix);
    }
    Ok(Json(shown(member)))
}

/// Remove a member from the workspace. Their sessions end; API keys that they created stay. Requires an
/// owner key.
#[utoipa::path(delete, path = "/v1/members/{id}", tag = "members", operation_id = "remove_member",
    params(("id" = String, Path)), responses((status = 204), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<MemberId>,
) -> ApiResult<StatusCode> {
    login::remove_member(&services, &caller.workspace, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the sessions of members, newest first. Requires an owner key.
#[utoipa::path(get, path = "/v1/members/sessions", tag = "members", operation_id = "list_member_sessions",
    responses((status = 200, body = Items<MemberSession>), (status = 403, body = ErrorBody)))]
pub(crate) async fn sessions(
    State(services): State<Arc<Services>>,
    caller: Caller,
) -> ApiResult<Json<Items<MemberSession>>> {
    let (sessions, at) = (services.store.sessions(&caller.workspace).await?, now());
    let shown = |token: TokenRecord| {
        let (session, expires_at) = (token.session?, token.expires_at.filter(|end| at < *end)?);
        Some(MemberSession {
            id: token.prefix,
            member: session.member,
            label: token.label,
            client: session.client,
            role: token.role,
            created_at: token.created_at,
            last_used_at: token.last_used_at,
            expires_at,
        })
    };
    Ok(Json(Items { items: sessions.into_iter().filter_map(shown).collect() }))
}

/// Revoke a session. It ends immediately. Requires an owner key.
#[utoipa::path(delete, path = "/v1/members/sessions/{id}", tag = "members",
    operation_id = "revoke_member_session", params(("id" = String, Path)), responses((status = 204),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn revoke(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(id): Id<String>,
) -> ApiResult<StatusCode> {
    login::end(&services, &caller.workspace, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn text(name: &str, given: Option<String>) -> Result<Option<String>> {
    let given = given.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    match &given {
        Some(text) if text.len() > MEMBER_TEXT_BYTES_MAX => {
            Err(Error::bad_request(format!("`{name}` must be at most {MEMBER_TEXT_BYTES_MAX} bytes")))
        }
        _ => Ok(given),
    }
}

/// Whether the text has the form of an address; the login provider verifies that it is the
/// person's.
fn is_address(email: &str) -> bool {
    let named = email.split_once('@').is_some_and(|(name, domain)| !name.is_empty() && !domain.is_empty());
    named && email.matches('@').count() == 1 && !email.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn shown(member: MemberRecord) -> Member {
    Member {
        role: member.effective_role().unwrap_or(pandastack_types::api::Role::Viewer),
        from_groups: member.group_role.is_some(),
        subject: member.identity.map(|identity| identity.subject),
        id: member.id,
        email: member.email,
        name: member.name,
        operator: member.operator,
        created_at: member.created_at,
        last_sign_in_at: member.last_sign_in_at,
    }
}
