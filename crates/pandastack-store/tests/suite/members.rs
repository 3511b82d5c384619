//! Members and their sessions.

use pandastack_store::members::{Identity, MemberRecord};
use pandastack_store::record::after_seconds;
use pandastack_store::*;
use pandastack_types::api::Role;
use pandastack_types::limits::SESSIONS_PER_MEMBER_MAX;
use pandastack_types::{MemberId, SandboxId, WorkspaceId};

use super::{now, ws};

fn ada() -> Identity {
    Identity { issuer: "https://i".into(), subject: "ada".into() }
}

fn member(email: &str) -> MemberRecord {
    MemberRecord {
        id: MemberId::random(),
        workspace: ws(),
        identity: None,
        email: Some(email.into()),
        name: None,
        role: Some(Role::Viewer),
        group_role: None,
        operator: false,
        created_at: now(),
        last_sign_in_at: None,
    }
}

fn session(member: &MemberRecord, at: jiff::Timestamp) -> TokenRecord {
    TokenRecord {
        prefix: format!("pds_{}", SandboxId::random()),
        workspace: member.workspace.clone(),
        hash: vec![7; 32],
        label: "ada@example.com".into(),
        role: Role::Owner,
        operator: true,
        allow_from: Vec::new(),
        created_at: at,
        expires_at: after_seconds(at, 60),
        last_used_at: None,
        session: Some(SessionRecord { member: member.id.clone(), client: "é".into() }),
    }
}

pub(super) async fn members_are_found_by_person_and_by_address(store: &dyn Store) {
    let invited = member("ada@example.com");
    store.insert_member(&invited).await.unwrap();
    assert_eq!(store.members(&ws()).await.unwrap(), std::slice::from_ref(&invited));
    let again = store.insert_member(&member("ada@example.com")).await;
    assert!(matches!(again, Err(StoreError::Held(_))), "{again:?}");
    assert!(store.members_of(&ada(), None).await.unwrap().is_empty(), "without the address it is nobody");
    let found = store.members_of(&ada(), Some("ada@example.com")).await.unwrap();
    assert_eq!(found, std::slice::from_ref(&invited));
    let bound = MemberRecord {
        identity: Some(ada()),
        name: Some("Ada".into()),
        group_role: Some(Role::Owner),
        operator: true,
        last_sign_in_at: after_seconds(invited.created_at, 5),
        ..invited.clone()
    };
    store.update_member(&bound).await.unwrap();
    assert_eq!(store.member(&ws(), &bound.id).await.unwrap(), bound);
    assert_eq!(bound.effective_role(), Some(Role::Owner));
    assert_eq!(store.members_of(&ada(), None).await.unwrap(), std::slice::from_ref(&bound));
    // Once a member is bound, no other identity gets it by the address.
    let eve = Identity { subject: "eve".into(), ..ada() };
    assert!(store.members_of(&eve, Some("ada@example.com")).await.unwrap().is_empty());
    // A second row of the same person in one workspace, by a sign-in at the same time.
    let twin = MemberRecord { id: MemberId::random(), role: None, ..bound.clone() };
    assert!(matches!(store.update_member(&twin).await, Err(StoreError::Held(_))));
    let other: WorkspaceId = "other".parse().unwrap();
    assert!(matches!(store.member(&other, &bound.id).await, Err(StoreError::NotFound { .. })));
    assert!(store.delete_member(&other, &bound.id).await.is_err());
    store.delete_member(&ws(), &bound.id).await.unwrap();
    // A sign-in that started earlier does not restore the member.
    assert!(matches!(store.update_member(&bound).await, Err(StoreError::Held(_))));
    assert!(store.members(&ws()).await.unwrap().is_empty());
}

pub(super) async fn sessions_follow_their_member_and_are_no_keys(store: &dyn Store) {
    let ada = member("ada@example.com");
    store.insert_member(&ada).await.unwrap();
    let at = now();
    let opened = store.insert_session(&session(&ada, at)).await.unwrap();
    assert_eq!((opened.role, opened.operator), (Role::Viewer, false), "the member's role, not another");
    assert_eq!(store.token(&opened.prefix).await.unwrap(), Some(opened.clone()));
    assert_eq!(store.sessions(&ws()).await.unwrap(), std::slice::from_ref(&opened));
    store.set_member_role(&ws(), &ada.id, Role::Owner).await.unwrap();
    assert_eq!(store.token(&opened.prefix).await.unwrap().unwrap().role, Role::Owner);
    // A session is not a key: it cannot be deleted or rotated as one, and does not count as an
    // owner's key.
    let key = TokenRecord { session: None, operator: false, ..session(&ada, at) };
    store.insert_token(&key, None).await.unwrap();
    let last = store.delete_token(&ws(), &key.prefix).await;
    assert!(matches!(last, Err(StoreError::LastToken { .. })), "{last:?}");
    assert!(matches!(store.delete_token(&ws(), &opened.prefix).await, Err(StoreError::NotFound { .. })));
    let new = TokenRecord { prefix: "pds_new".into(), ..key.clone() };
    let rotated = store.rotate_token(&opened.prefix, at, &new, None).await;
    assert!(matches!(rotated, Err(StoreError::NotFound { .. })), "{rotated:?}");
    assert!(matches!(store.delete_session(&ws(), &key.prefix).await, Err(StoreError::NotFound { .. })));
    for number in 1..=SESSIONS_PER_MEMBER_MAX {
        let later = after_seconds(at, u64::from(number)).unwrap();
        store.insert_session(&session(&ada, later)).await.unwrap();
    }
    assert_eq!(store.sessions(&ws()).await.unwrap().len(), SESSIONS_PER_MEMBER_MAX as usize);
    assert_eq!(store.token(&opened.prefix).await.unwrap(), None, "the oldest has ended");
    store.prune_sessions(after_seconds(at, 61).unwrap()).await.unwrap();
    let kept = store.sessions(&ws()).await.unwrap();
    assert_eq!(kept.len(), SESSIONS_PER_MEMBER_MAX as usize - 1, "one has expired");
    store.delete_session(&ws(), &kept[0].prefix).await.unwrap();
    assert_eq!(store.token(&kept[0].prefix).await.unwrap(), None);
    store.delete_member(&ws(), &ada.id).await.unwrap();
    assert!(store.sessions(&ws()).await.unwrap().is_empty(), "sessions end with their member");
    assert!(matches!(store.insert_session(&session(&ada, at)).await, Err(StoreError::NotFound { .. })));
    assert!(store.token(&key.prefix).await.unwrap().is_some());
}
