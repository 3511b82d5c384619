//! Open connections per client, so that one client cannot take them all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::{CONNECTIONS_MAX, CONNECTIONS_PER_CLIENT_MAX};

/// Open connections, counted by client.
#[derive(Default)]
pub(crate) struct ClientConnections {
    all: AtomicUsize,
    by_client: Mutex<HashMap<IpAddr, usize>>,
}

/// One open connection, counted until this is dropped.
pub(crate) struct ConnectionSlot {
    connections: Arc<ClientConnections>,
    client: IpAddr,
}

impl ClientConnections {
    /// A slot for a connection of this client; `None` when the client, or the edge, has as many as allowed.
    pub(crate) fn enter(self: &Arc<Self>, client: IpAddr) -> Option<ConnectionSlot> {
        let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_client.get(&client).copied().unwrap_or_default();
        if count >= CONNECTIONS_PER_CLIENT_MAX || self.all.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            return None;
        }
        by_client.insert(client, count + 1);
        self.all.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionSlot { connections: Arc::clone(self), client })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut by_client = self.connections.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        self.connections.all.fetch_sub(1, Ordering::Relaxed);
        if let Some(count) = by_client.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_take_all_slots() {
        let connections = Arc::new(ClientConnections::default());
        let (greedy, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut slots: Vec<_> =
            (0..CONNECTIONS_PER_CLIENT_MAX).map(|_| connections.enter(greedy).unwrap()).collect();
        assert!(connections.enter(greedy).is_none());
        assert!(connections.enter(other).is_some());
        slots.pop();
        assert!(connections.enter(greedy).is_some());
        slots.clear();
        assert!(connections.by_client.lock().unwrap().is_empty());
    }

    #[test]
    fn a_refused_connection_leaves_no_entry() {
        let connections =
            Arc::new(ClientConnections { all: CONNECTIONS_MAX.into(), ..ClientConnections::default() });
        assert!(connections.enter([10, 0, 0, 1].into()).is_none());
        assert!(connections.by_client.lock().unwrap().is_empty());
    }
}
