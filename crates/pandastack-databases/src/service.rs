//! The state of the service.

use std::sync::Arc;

use pandastack_sandboxes::Sandboxes;
use pandastack_store::apps::AppStore;
use pandastack_store::databases::DatabaseStore;
use tokio::sync::Notify;

use crate::address::PublicAddress;
use crate::backups::archives::Backups;
use crate::config::BackupConfig;
use crate::full_disks::FullDisks;
use crate::ports::Ports;

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
    pub(crate) revivals: RevivalLocks,
    pub(crate) full_disks: FullDisks,
    pub(crate) backups: Backups,
}

/// Who waits for whom while a machine is replaced or a server is started again.
#[derive(Default)]
pub(crate) struct RevivalLocks {
    /// Told when a client waits.
    pub(crate) wanted: Notify,
    /// Told after each attempt.
    pub(crate) done: Notify,
}

impl ManagedDatabases {
    /// Databases in these sandboxes. Without `backups` none are made; without `address` nobody is
    /// told how to connect.
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
            revivals: RevivalLocks::default(),
            full_disks: FullDisks::default(),
            backups: Backups::new(backups),
        }
    }
}
