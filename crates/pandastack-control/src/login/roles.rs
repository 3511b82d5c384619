//! The roles of a person, from groups and from memberships. Pure functions.

use std::collections::BTreeMap;
use std::str::FromStr;

use jiff::Timestamp;
use pandastack_oidc::Person;
use pandastack_store::members::{Identity, MemberRecord};
use pandastack_types::api::Role;
use pandastack_types::{IdError, InvalidValue, MemberId, WorkspaceId};

/// The rank of operators in a mapping.
const OPERATOR: &str = "operator";

/// A role that a group gives: `GROUP=WORKSPACE:ROLE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRole {
    /// The group, as the provider names it.
    pub group: String,
    /// Workspace in which it gives a role.
    pub workspace: WorkspaceId,
    /// The role.
    pub role: Role,
    /// Whether the role also allows managing the installation.
    pub operator: bool,
}

impl FromStr for GroupRole {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let form = || InvalidValue::new(format!("`{text}` is not a group mapping; use GROUP=WORKSPACE:ROLE"));
        // Names of groups may contain both signs.
        let (group, place) = text.rsplit_once('=').ok_or_else(form)?;
        let (workspace, role) = place.split_once(':').ok_or_else(form)?;
        if group.is_empty() {
            return Err(form());
        }
        let workspace: Result<WorkspaceId, _> = workspace.parse();
        let workspace =
            workspace.map_err(|error: IdError| InvalidValue::new(format!("{}: {error}", form())))?;
        let operator = role == OPERATOR;
        if operator && workspace != WorkspaceId::default_workspace() {
            return Err(InvalidValue::new(format!(
                "`{text}`: operators are members of workspace `default`; map the group to it"
            )));
        }
        let role = if operator { Role::Owner } else { role.parse()? };
        Ok(Self { group: group.to_owned(), workspace, role, operator })
    }
}

impl std::fmt::Display for GroupRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = if self.operator { OPERATOR } else { self.role.as_str() };
        write!(f, "{}={}:{role}", self.group, self.workspace)
    }
}

/// The highest role that a person's groups give in each workspace.
pub(super) fn granted(groups: &[String], mapping: &[GroupRole]) -> BTreeMap<WorkspaceId, (Role, bool)> {
    let mut granted = BTreeMap::new();
    for one in mapping.iter().filter(|one| groups.contains(&one.group)) {
        let best: &mut (Role, bool) =
            granted.entry(one.workspace.clone()).or_insert((one.role, one.operator));
        *best = (best.0.max(one.role), best.1 || one.operator);
    }
    granted
}

/// Changes that a sign-in makes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    /// Members to write: one in each workspace where the person has a role.
    pub(super) members: Vec<MemberRecord>,
    /// Members whose groups no longer give a role, and that no owner added.
    pub(super) gone: Vec<MemberRecord>,
}

/// Computes how a sign-in changes the memberships of a person. `known` are the members from
/// [`members_of`](pandastack_store::members::MemberStore::members_of).
pub(super) fn changes(
    person: &Person,
    known: Vec<MemberRecord>,
    mut granted: BTreeMap<WorkspaceId, (Role, bool)>,
    at: Timestamp,
) -> Changes {
    let identity = Identity { issuer: person.issuer.clone(), subject: person.subject.clone() };
    let (bound, invited): (Vec<_>, Vec<_>) =
        known.into_iter().partition(|member| member.identity.as_ref() == Some(&identity));
    let mut found = BTreeMap::new();
    // A bound member takes precedence over an invitation to the same address.
    for member in bound.into_iter().chain(invited) {
        found.entry(member.workspace.clone()).or_insert(member);
    }
    for workspace in granted.keys() {
        found.entry(workspace.clone()).or_insert_with(|| MemberRecord {
            id: MemberId::random(),
            workspace: workspace.clone(),
            identity: None,
            email: None,
            name: None,
            role: None,
            group_role: None,
            operator: false,
            created_at: at,
            last_sign_in_at: None,
        });
    }
    let mut changes = Changes::default();
    for member in found.into_values() {
        let by_groups = granted.remove(&member.workspace);
        let member = MemberRecord {
            identity: Some(identity.clone()),
            email: person.email.clone().or(member.email),
            name: person.name.clone().or(member.name),
            group_role: by_groups.map(|(role, _)| role),
            operator: by_groups.is_some_and(|(_, operator)| operator),
            last_sign_in_at: Some(at),
            ..member
        };
        let list = if member.effective_role().is_some() { &mut changes.members } else { &mut changes.gone };
        list.push(member);
    }
    changes
}

/// The member that a sign-in is for: of the requested workspace, else of the only one, else of
/// `default`, else of the first.
pub(super) fn choose<'a>(
    members: &'a [MemberRecord],
    wanted: Option<&WorkspaceId>,
) -> Option<&'a MemberRecord> {
    let of = |workspace: &WorkspaceId| members.iter().find(|member| member.workspace == *workspace);
    match wanted {
        Some(workspace) => of(workspace),
        None => of(&WorkspaceId::default_workspace()).or_else(|| members.first()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ws(name: &str) -> WorkspaceId {
        name.parse().unwrap()
    }

    fn person(email: Option<&str>) -> Person {
        Person {
            issuer: "https://i".into(),
            subject: "ada".into(),
            email: email.map(str::to_owned),
            name: Some("Ada".into()),
            groups: Vec::new(),
        }
    }

    fn member(workspace: &str, subject: Option<&str>, role: Option<Role>) -> MemberRecord {
        let identity = |subject: &str| Identity { issuer: "https://i".into(), subject: subject.to_owned() };
        MemberRecord {
            id: MemberId::random(),
            workspace: ws(workspace),
            identity: subject.map(identity),
            email: Some("ada@example.com".into()),
            name: None,
            role,
            group_role: None,
            operator: false,
            created_at: Timestamp::UNIX_EPOCH,
            last_sign_in_at: None,
        }
    }

    #[test]
    fn group_role_mappings_round_trip() {
        for text in
            ["eng=default:developer", "cn=eng,dc=x=shop:viewer", "a:b=shop:owner", "ops=default:operator"]
        {
            assert_eq!(text.parse::<GroupRole>().unwrap().to_string(), text);
        }
        let operator: GroupRole = "ops=default:operator".parse().unwrap();
        assert_eq!((operator.role, operator.operator), (Role::Owner, true));
        for bad in [
            "",
            "eng",
            "eng=default",
            "=default:owner",
            "eng=default:admin",
            "eng=A B:owner",
            "ops=shop:operator",
        ] {
            assert!(bad.parse::<GroupRole>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_highest_role_of_all_groups_applies() {
        let mapping: Vec<GroupRole> =
            ["a=default:viewer", "b=default:owner", "b=shop:viewer", "ops=default:operator", "c=shop:owner"]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect();
        let of = |groups: &[&str]| {
            granted(&groups.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), &mapping)
        };
        assert_eq!(of(&["a"])[&ws("default")], (Role::Viewer, false));
        assert_eq!(of(&["a", "b"])[&ws("default")], (Role::Owner, false));
        assert_eq!(of(&["a", "ops"])[&ws("default")], (Role::Owner, true));
        assert_eq!(of(&["b"]).len(), 2);
        assert!(of(&["A", "unknown", ""]).is_empty());
    }

    #[test]
    fn a_sign_in_binds_invitations_and_follows_groups() {
        let (at, email) = (Timestamp::UNIX_EPOCH, Some("ada@example.com"));
        // Added by address: bound, with the role that the owner gave.
        let invited = member("default", None, Some(Role::Viewer));
        let changed = changes(&person(email), vec![invited.clone()], BTreeMap::new(), at);
        let bound = &changed.members[0];
        assert_eq!((&bound.id, bound.effective_role()), (&invited.id, Some(Role::Viewer)));
        assert_eq!(bound.identity.as_ref().unwrap().subject, "ada");
        // Groups go before it, and leave it when they end.
        let by_groups =
            BTreeMap::from([(ws("default"), (Role::Owner, true)), (ws("shop"), (Role::Viewer, false))]);
        let changed = changes(&person(email), vec![bound.clone()], by_groups, at);
        assert_eq!(changed.members.len(), 2);
        assert_eq!(
            (changed.members[0].effective_role(), changed.members[0].operator),
            (Some(Role::Owner), true)
        );
        assert_eq!(changed.members[1].workspace, ws("shop"));
        let later = changes(&person(email), changed.members, BTreeMap::new(), at);
        assert_eq!((later.members.len(), later.gone.len()), (1, 1));
        assert_eq!(
            (later.members[0].effective_role(), later.members[0].operator),
            (Some(Role::Viewer), false)
        );
        assert_eq!(later.gone[0].workspace, ws("shop"));
        // The person's own row takes precedence over an invitation to the same address.
        let own = member("default", Some("ada"), Some(Role::Owner));
        let changed = changes(&person(email), vec![invited, own.clone()], BTreeMap::new(), at);
        assert_eq!((changed.members.len(), &changed.members[0].id), (1, &own.id));
        assert_eq!(changes(&person(None), Vec::new(), BTreeMap::new(), at), Changes::default());
    }

    #[test]
    fn sign_in_uses_the_requested_workspace_or_none() {
        let members = [member("shop", None, None), member("default", None, None), member("zoo", None, None)];
        let chosen = |wanted: Option<&str>| {
            choose(&members, wanted.map(ws).as_ref()).map(|member| member.workspace.to_string())
        };
        assert_eq!(chosen(None).unwrap(), "default");
        assert_eq!(chosen(Some("zoo")).unwrap(), "zoo");
        assert_eq!(chosen(Some("other")), None);
        assert_eq!(choose(&members[..1], None).unwrap().workspace, ws("shop"));
        assert!(choose(&[], None).is_none());
    }
}
