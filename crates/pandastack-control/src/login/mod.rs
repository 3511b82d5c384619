//! People: sign-in through a login provider, and the roles that it gives.
//!
//! ```text
//!   browser: GET /v1/login/start -> provider -> GET /v1/login/callback -> console session
//!   CLI:     POST /v1/login/device -> provider -> POST /v1/login/token -> session credential
//! ```
//!
//! A sign-in makes a session: a key that belongs to a member and expires within hours. Caches, rates, audit,
//! revocation and the web console treat it as any key.
//!
//! Must hold:
//! - A sign-in needs a role: [`roles`] determines it, from groups and from memberships.
//! - A session ends with its member, and when a later sign-in finds that the groups give no role any more.
//! - Nothing about an attempt is stored: the browser's cookie and the provider have it.

mod page;
mod roles;
pub(crate) mod routes;
mod sign_in;

use std::sync::Arc;

use pandastack_oidc::{LoginError, OidcConfig, Provider};
use pandastack_store::TokenRecord;
use pandastack_types::limits::LOGIN_CALLS_MAX;
use pandastack_types::{Error, ErrorCode, MemberId, Result, WorkspaceId};
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;

use crate::services::Services;

pub use roles::GroupRole;

/// Path of the callback, below the public URL.
pub(crate) const CALLBACK: &str = "/v1/login/callback";

/// The login provider, and the roles of its users.
#[derive(Debug, Clone)]
pub struct LoginConfig {
    /// The provider. Its redirect URI is made from `public_url`.
    pub oidc: OidcConfig,
    /// Name of the provider, for display.
    pub name: String,
    /// URL at which browsers reach the API.
    pub public_url: Url,
    /// Roles of groups.
    pub groups: Vec<GroupRole>,
    /// Domains of email addresses that may sign in; any when empty.
    pub email_domains: Vec<String>,
    /// Duration of a session.
    pub session_hours: u32,
}

/// Sign-in of people.
pub(crate) struct Login {
    pub(crate) config: LoginConfig,
    provider: Provider,
    calls: Arc<Semaphore>,
}

impl Login {
    pub(crate) fn new(mut config: LoginConfig) -> std::result::Result<Self, LoginError> {
        config.oidc.redirect_uri = below(&config.public_url, CALLBACK);
        let provider = Provider::new(config.oidc.clone())?;
        Ok(Self { config, provider, calls: Arc::new(Semaphore::new(LOGIN_CALLS_MAX)) })
    }

    /// The provider, for one call.
    fn provider(&self) -> Result<(&Provider, SemaphorePermit<'_>)> {
        let busy = || Error::new(ErrorCode::Unavailable, "too many sign-ins are in progress; try again");
        Ok((&self.provider, self.calls.try_acquire().map_err(|_| busy())?))
    }
}

/// A path below the public URL, which may have one itself.
fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    url
}

/// The login provider, or the error of an installation without one.
pub(crate) fn configured(services: &Services) -> Result<&Login> {
    services.login.as_ref().ok_or_else(|| {
        let message = "this installation has no login provider; its operator can set --oidc-issuer, and API \
                       keys work without one";
        Error::new(ErrorCode::NotImplemented, message)
    })
}

/// Ends a session and its open requests and streams.
pub(crate) async fn end(services: &Services, workspace: &WorkspaceId, prefix: &str) -> Result<()> {
    services.store.delete_session(workspace, prefix).await?;
    services.keys.revoke(prefix);
    Ok(())
}

fn failed(error: LoginError) -> Error {
    let code = match &error {
        LoginError::Unavailable(_) => ErrorCode::Unavailable,
        LoginError::Refused(_) => ErrorCode::Unauthorized,
    };
    Error::new(code, error.to_string())
}

/// Removes a member, whose sessions end.
pub(crate) async fn remove_member(services: &Services, workspace: &WorkspaceId, id: &MemberId) -> Result<()> {
    let sessions = sessions_of(services, workspace, id).await?;
    services.store.delete_member(workspace, id).await?;
    for prefix in sessions {
        services.keys.revoke(&prefix);
    }
    Ok(())
}

/// The sessions of a member.
pub(crate) async fn sessions_of(
    services: &Services,
    workspace: &WorkspaceId,
    id: &MemberId,
) -> Result<Vec<String>> {
    let sessions = services.store.sessions(workspace).await?;
    let is_own = |token: &TokenRecord| token.session.as_ref().is_some_and(|session| session.member == *id);
    Ok(sessions.into_iter().filter(is_own).map(|token| token.prefix).collect())
}
