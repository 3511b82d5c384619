//! The state of the service.

use std::sync::Arc;

use pandastack_sandboxes::Sandboxes;
use pandastack_store::apps::AppStore;
use pandastack_store::databases::DatabaseStore;

use crate::backups::Backups;
use crate::config::BackupConfig;
use crate::ports::Ports;
use crate::revive::Revivals;
use crate::room::Rooms;
use crate::view::PublicAddress;

/// All databases of the installation.
pub struct ManagedDatabases {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) store: Arc<dyn DatabaseStore>,
    /// Asked whether a database is attached to an app.
    pub(crate) apps: Arc<dyn AppStore>,
    /// Where clients connect to.
    pub(crate) address: Option<PublicAddress>,
    /// Ports of databases that have no names.
    pub(crate) ports: Option<Ports>,
    pub(crate) revivals: Revivals,
    pub(crate) rooms: Rooms,
    pub(crate) backups: Backups,
}

impl ManagedDatabases {
    /// Databases in these sandboxes. Without `backups` none are made; without `address` nobody is told how to connect.
    pub fn new(
        sandboxes: Arc<Sandboxes>,
        backups: Option<BackupConfig>,
        address: Option<PublicAddress>,
        ports: Option<Ports>,
    ) -> Self {
        Self {
            store: Arc::clone(&sandboxes.store) as Arc<dyn DatabaseStore>,
            apps: Arc::clone(&sandboxes.store) as Arc<dyn AppStore>,
            sandboxes,
            address,
            ports,
            revivals: Revivals::default(),
            rooms: Rooms::default(),
            backups: Backups::new(backups),
        }
    }
}
