//! The machine as a whole: the identity gate, statistics, power.

use super::error::ClientError;
use super::{Answer, GuestClient, TABLE_BYTES_MAX};
use crate::message::{
    Done, Event, Identity, IdentityApplied, ListeningPort, Pong, Request, Stats, VolumeMount,
};

impl GuestClient {
    /// Checks that the guest is alive.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub async fn ping(&self) -> Result<Pong, ClientError> {
        self.ask(&Request::Ping).await
    }

    /// The TCP ports that something in the machine listens on.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub async fn ports(&self) -> Result<Vec<ListeningPort>, ClientError> {
        let pick = |event| match event {
            Event::Ports { ports } => Some(ports),
            _ => None,
        };
        self.all_pages(&Request::Ports, TABLE_BYTES_MAX, pick).await.map(|(ports, _)| ports)
    }

    /// Freezes every user process, and with `sync` then writes the file system out. Call it before
    /// a live capture. Afterwards the copy gets [`GuestClient::set_identity`], and the original
    /// [`GuestClient::thaw`].
    ///
    /// # Errors
    /// When processes do not freeze in time (they are thawed again), or the guest cannot be reached.
    pub async fn quiesce(&self, sync: bool) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::Quiesce { sync }).await?;
        Ok(())
    }

    /// Thaws frozen processes without changes.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn thaw(&self) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::Thaw).await?;
        Ok(())
    }

    /// Makes the machine itself after a restore or fork, then thaws it. On a new connection use
    /// [`GuestClient::connect_with_identity`], which saves a round trip.
    ///
    /// # Errors
    /// When entropy or clock could not be set, in which case nothing is thawed; or the guest cannot be reached.
    pub async fn set_identity(&self, identity: Identity) -> Result<IdentityApplied, ClientError> {
        self.begin_identity(identity).await?.wait().await
    }

    /// Sends the request of [`GuestClient::set_identity`] without waiting for the reply. A process
    /// started after this call starts with the new identity even if the reply is not awaited.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub async fn begin_identity(&self, identity: Identity) -> Result<Answer<IdentityApplied>, ClientError> {
        self.begin(&Request::SetIdentity(identity)).await
    }

    /// The machine's resource usage, as the guest measures it.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub async fn stats(&self) -> Result<Stats, ClientError> {
        self.ask(&Request::Stats).await
    }

    /// Mounts a durable disk. Repeating it is harmless.
    ///
    /// # Errors If the disk does not exist or cannot be mounted, the guest is older than this call
    /// (`Unsupported`), or it cannot be reached.
    pub async fn mount_volume(&self, mount: VolumeMount) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::VolumeMount(mount)).await?;
        Ok(())
    }

    /// Makes the file system of a mounted durable disk as large as the disk has become.
    ///
    /// # Errors
    /// As for [`GuestClient::mount_volume`].
    pub async fn grow_volume(&self, serial: String, bytes: u64) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::VolumeGrow { serial, bytes }).await?;
        Ok(())
    }

    /// Ends every process, writes the disk out and powers the machine off.
    ///
    /// # Errors
    /// When the guest cannot be reached. The machine's end itself is seen by its engine.
    pub async fn shutdown(&self, grace_ms: u32) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::Shutdown { grace_ms }).await?;
        Ok(())
    }
}
