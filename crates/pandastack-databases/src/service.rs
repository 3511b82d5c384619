//! The state of the service.

use std::sync::Arc;

use pandastack_edge::Edge;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::volumes::owned::OwnedVolumes;
use pandastack_store::databases::{DatabaseRecord, DatabaseState, DatabaseStore};
use pandastack_types::link::LinkKey;
use pandastack_types::{DatabaseId, Error, Result, WorkspaceId};
use tokio::sync::Notify;

use crate::address::PublicAddress;
use crate::attachments::Attachments;
use crate::backups::archives::Backups;
use crate::config::BackupConfig;
use crate::full_disks::FullDisks;
use crate::ports::Ports;

/// Dependencies of the service, from the server.
pub struct DatabasesParts {
    /// Records of databases.
    pub store: Arc<dyn DatabaseStore>,
    /// The machines that databases run in.
    pub machines: Arc<dyn Machines>,
    /// The volumes with their data.
    pub volumes: Arc<dyn OwnedVolumes>,
    /// Connects to servers in machines.
    pub edge: Arc<Edge>,
    /// Work beside requests.
    pub background: Background,
    /// Derives passwords and keys of archives.
    pub link: LinkKey,
    /// Lookup of whether a database is attached to an app.
    pub attachments: Arc<dyn Attachments>,
    /// Without it no backups are made.
    pub backups: Option<BackupConfig>,
    /// Address for clients; without one, no connection string is shown.
    pub address: Option<PublicAddress>,
    /// Ports of databases that have no names.
    pub ports: Option<Ports>,
}

/// All databases of the installation.
pub struct ManagedDatabases {
    pub(crate) store: Arc<dyn DatabaseStore>,
    pub(crate) machines: Arc<dyn Machines>,
    pub(crate) volumes: Arc<dyn OwnedVolumes>,
    pub(crate) edge: Arc<Edge>,
    pub(crate) background: Background,
    pub(crate) link: LinkKey,
    pub(crate) attachments: Arc<dyn Attachments>,
    /// Address for clients.
    pub(crate) address: Option<PublicAddress>,
    /// Ports of databases that have no names.
    pub(crate) ports: Option<Ports>,
    pub(crate) revivals: RevivalLocks,
    pub(crate) full_disks: FullDisks,
    pub(crate) backups: Backups,
}

/// Locks for replacing a machine and for restarting a server.
#[derive(Default)]
pub(crate) struct RevivalLocks {
    /// Notified when a client waits.
    pub(crate) wanted: Notify,
    /// Notified after each attempt.
    pub(crate) done: Notify,
}

impl ManagedDatabases {
    /// Databases of these parts.
    pub fn new(parts: DatabasesParts) -> Self {
        Self {
            store: parts.store,
            machines: parts.machines,
            volumes: parts.volumes,
            edge: parts.edge,
            background: parts.background,
            link: parts.link,
            attachments: parts.attachments,
            address: parts.address,
            ports: parts.ports,
            revivals: RevivalLocks::default(),
            full_disks: FullDisks::default(),
            backups: Backups::new(parts.backups),
        }
    }

    /// The record of a workspace's database.
    pub async fn find(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<DatabaseRecord> {
        Ok(self.store.database(Some(workspace), id).await?)
    }

    /// Refuses a database that the workspace does not have, or that is being deleted.
    pub async fn check_attachable(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<()> {
        match self.find(workspace, id).await?.state {
            DatabaseState::Deleting => Err(Error::conflict(format!("database `{id}` is being deleted"))),
            _ => Ok(()),
        }
    }
}
