//! Creates the session of a person who signed in.

use pandastack_oidc::Person;
use pandastack_store::clock::now;
use pandastack_store::members::{Identity, MemberRecord};
use pandastack_store::record::after_seconds;
use pandastack_store::{SessionRecord, StoreError, TokenRecord};
use pandastack_types::api::Role;
use pandastack_types::{Error, ErrorCode, MemberId, Result, WorkspaceId};

use super::{Login, roles};
use crate::auth::{NewKey, new_key};
use crate::services::Services;

/// Longest stored name of a browser or device.
const CLIENT_CHARS_MAX: usize = 200;

/// Opens a session for a person who proved who they are.
pub(super) async fn open(
    services: &Services,
    login: &Login,
    person: &Person,
    wanted: Option<&WorkspaceId>,
    client: &str,
) -> Result<NewKey> {
    check_domain(person, &login.config.email_domains)?;
    let (store, at) = (&services.store, now());
    let identity = Identity { issuer: person.issuer.clone(), subject: person.subject.clone() };
    let known = store.members_of(&identity, person.email.as_deref()).await?;
    let before: Vec<_> = known.iter().map(rights).collect();
    let mut granted = roles::granted(&person.groups, &login.config.groups);
    for workspace in granted.keys().cloned().collect::<Vec<_>>() {
        if let Err(StoreError::NotFound { .. }) = store.workspace(&workspace).await {
            tracing::warn!(%workspace, "a group is mapped to a workspace that does not exist");
            granted.remove(&workspace);
        }
    }
    let changes = roles::changes(person, known, granted, at);
    for member in &changes.gone {
        super::remove_member(services, &member.workspace, &member.id).await?;
    }
    let mut members = Vec::new();
    for member in changes.members {
        match store.update_member(&member).await {
            // A suspended workspace does not affect the person's other workspaces.
            Err(StoreError::Closed { .. } | StoreError::NotFound { .. })
                if wanted != Some(&member.workspace) => {}
            updated => {
                updated?;
                if !before.contains(&rights(&member)) {
                    // Open sessions were started with other rights.
                    for prefix in super::sessions_of(services, &member.workspace, &member.id).await? {
                        services.keys.revoke(&prefix);
                    }
                }
                members.push(member);
            }
        }
    }
    let member = roles::choose(&members, wanted).ok_or_else(|| no_role(person, wanted))?;
    let mut key = new_key(member.workspace.clone(), person.label().to_owned()).map_err(Error::internal)?;
    let seconds = u64::from(login.config.session_hours) * 3600;
    let client = client.chars().filter(|c| !c.is_control()).take(CLIENT_CHARS_MAX).collect();
    let session = TokenRecord {
        created_at: at,
        expires_at: after_seconds(at, seconds),
        session: Some(SessionRecord { member: member.id.clone(), client }),
        ..key.record
    };
    key.record = store.insert_session(&session).await?;
    tracing::info!(workspace = %key.record.workspace, person = %key.record.label, "a member signed in");
    Ok(key)
}

/// The rights of a member.
fn rights(member: &MemberRecord) -> (MemberId, Option<Role>, bool) {
    (member.id.clone(), member.effective_role(), member.operator)
}

fn check_domain(person: &Person, domains: &[String]) -> Result<()> {
    let domain = person.email.as_deref().and_then(|email| email.rsplit_once('@')).map(|(_, domain)| domain);
    if domains.is_empty() || domain.is_some_and(|domain| domains.iter().any(|one| one == domain)) {
        return Ok(());
    }
    let message = match domain {
        Some(domain) => format!("email addresses of `{domain}` cannot sign in to this installation"),
        None => {
            "the login provider reports no verified email address for you, which this installation requires"
                .to_owned()
        }
    };
    Err(Error::new(ErrorCode::Forbidden, format!("{message}; ask its operator")))
}

fn no_role(person: &Person, wanted: Option<&WorkspaceId>) -> Error {
    let place =
        wanted.map_or_else(|| "any workspace".to_owned(), |workspace| format!("workspace `{workspace}`"));
    let who = match &person.email {
        Some(email) => format!("`{email}`"),
        None => format!("`{}` (without a verified email address)", person.subject),
    };
    let message = format!(
        "{who} has no role in {place}; ask an owner to run `pandastack member add`, or the operator to map \
         one of your groups"
    );
    Error::new(ErrorCode::Forbidden, message)
}
