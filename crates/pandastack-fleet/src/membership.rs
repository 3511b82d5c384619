//! Which hosts are members now, and their open connections.
//!
//! Control holds all hosts here, an agent holds the edges, an edge holds the agents that it has routes to.
//! Control servers need no entry: the authority signs for nobody else in their role.
//!
//! Must hold: a connection is entered before its host is checked, under the same lock, so a host that is
//! removed meanwhile keeps none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pandastack_types::HostId;
use pandastack_types::host_identity::{HostIdentity, HostRole};
use tokio_util::sync::CancellationToken;

/// The members, and their connections.
#[derive(Default)]
pub struct Memberships(Mutex<State>);

#[derive(Default)]
struct State {
    members: HashMap<HostId, (HostRole, u32)>,
    open: HashMap<u64, (HostIdentity, CancellationToken)>,
    next: u64,
}

impl std::fmt::Debug for Memberships {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        write!(f, "Memberships({} members, {} connections)", state.members.len(), state.open.len())
    }
}

impl State {
    fn is_member(&self, identity: &HostIdentity) -> bool {
        identity.role == HostRole::Control
            || self.members.get(&identity.host) == Some(&(identity.role, identity.membership))
    }

    fn cut_strangers(&mut self) {
        let strangers: Vec<u64> =
            self.open.iter().filter(|(_, (of, _))| !self.is_member(of)).map(|(id, _)| *id).collect();
        for id in strangers {
            if let Some((_, cut)) = self.open.remove(&id) {
                cut.cancel();
            }
        }
    }
}

impl Memberships {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a member, or its next membership. Connections of the one before are cut.
    pub fn set(&self, member: &HostIdentity) {
        let mut state = self.lock();
        state.members.insert(member.host.clone(), (member.role, member.membership));
        state.cut_strangers();
    }

    /// Removes a member and cuts its connections.
    pub fn remove(&self, host: &HostId) {
        let mut state = self.lock();
        state.members.remove(host);
        state.cut_strangers();
    }

    /// Replaces all members. Connections of others are cut.
    pub fn replace(&self, members: impl IntoIterator<Item = HostIdentity>) {
        let mut state = self.lock();
        let entry = |member: HostIdentity| (member.host, (member.role, member.membership));
        state.members = members.into_iter().map(entry).collect();
        state.cut_strangers();
    }

    /// The membership of a host in a role.
    pub fn membership(&self, role: HostRole, host: &HostId) -> Option<u32> {
        self.lock().members.get(host).filter(|(of, _)| *of == role).map(|(_, membership)| *membership)
    }

    /// The role of a member.
    pub fn role(&self, host: &HostId) -> Option<HostRole> {
        self.lock().members.get(host).map(|(role, _)| *role)
    }

    /// Members in a role.
    pub fn members(&self, role: HostRole) -> Vec<(HostId, u32)> {
        let state = self.lock();
        let members = state.members.iter().filter(|(_, (of, _))| *of == role);
        members.map(|(host, (_, membership))| (host.clone(), *membership)).collect()
    }

    /// Whether the host is a member with that membership.
    pub fn is_member(&self, identity: &HostIdentity) -> bool {
        self.lock().is_member(identity)
    }

    /// Whether the host has a connection.
    pub fn is_connected(&self, host: &HostId) -> bool {
        self.lock().open.values().any(|(of, _)| of.host == *host)
    }

    /// Enters a connection of a host; `None` if the host is not a member.
    pub fn admit(self: &Arc<Self>, identity: &HostIdentity) -> Option<Admitted> {
        let mut state = self.lock();
        if !state.is_member(identity) {
            return None;
        }
        let (id, cut) = (state.next, CancellationToken::new());
        state.next += 1;
        state.open.insert(id, (identity.clone(), cut.clone()));
        Some(Admitted { memberships: Arc::clone(self), id, cut })
    }
}

/// An entered connection, until it is dropped.
#[derive(Debug)]
pub struct Admitted {
    memberships: Arc<Memberships>,
    id: u64,
    cut: CancellationToken,
}

impl Admitted {
    /// Cancelled when the host is removed.
    pub(crate) fn cut(&self) -> CancellationToken {
        self.cut.clone()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.memberships.lock().open.remove(&self.id);
    }
}
