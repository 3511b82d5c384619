//! Volumes.

use pandastack_types::api::{CloneVolume, CreateVolume, GrowVolume, PatchVolume, SnapshotVolume, Volume};
use reqwest::Method;

use crate::client::{Client, List, READ_SECONDS};
use crate::error::Result;

/// Timeout of creating, cloning or growing a volume.
const VOLUME_SECONDS: u64 = 120;

impl Client {
    /// Creates a volume.
    pub async fn create_volume(&self, request: &CreateVolume) -> Result<Volume> {
        self.call(Method::POST, &["volumes"], VOLUME_SECONDS).json(request).receive().await
    }

    /// Volumes of the workspace, by name.
    pub async fn list_volumes(&self) -> Result<Vec<Volume>> {
        let list: List<Volume> = self.call(Method::GET, &["volumes"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the volume.
    pub async fn get_volume(&self, name: &str) -> Result<Volume> {
        self.call(Method::GET, &["volumes", name], READ_SECONDS).receive().await
    }

    /// Changes the deletion protection of a volume.
    pub async fn change_volume(&self, name: &str, request: &PatchVolume) -> Result<Volume> {
        self.call(Method::PATCH, &["volumes", name], READ_SECONDS).json(request).receive().await
    }

    /// Grows a volume.
    pub async fn grow_volume(&self, name: &str, size_mb: u64) -> Result<Volume> {
        let request = GrowVolume { size_mb };
        self.call(Method::POST, &["volumes", name, "grow"], VOLUME_SECONDS).json(&request).receive().await
    }

    /// Clones a volume.
    pub async fn clone_volume(&self, name: &str, copy: &str) -> Result<Volume> {
        let request = CloneVolume { name: copy.to_owned() };
        self.call(Method::POST, &["volumes", name, "clone"], VOLUME_SECONDS).json(&request).receive().await
    }

    /// Takes a snapshot of a volume.
    pub async fn snapshot_volume(&self, name: &str, snapshot: Option<String>) -> Result<Volume> {
        let request = SnapshotVolume { name: snapshot };
        self.call(Method::POST, &["volumes", name, "snapshot"], VOLUME_SECONDS).json(&request).receive().await
    }

    /// Deletes a volume and its data.
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        self.call(Method::DELETE, &["volumes", name], VOLUME_SECONDS).finish().await
    }
}
