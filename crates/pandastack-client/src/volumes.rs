//! Volumes.

use pandastack_types::api::{CloneVolume, CreateVolume, GrowVolume, PatchVolume, SnapshotVolume, Volume};
use reqwest::Method;

use crate::client::{LOOK_SECONDS, List};
use crate::{Client, Result};

/// Longest wait for a volume to be made, copied or grown.
const WORK_SECONDS: u64 = 120;

impl Client {
    /// Makes a volume.
    pub async fn create_volume(&self, request: &CreateVolume) -> Result<Volume> {
        self.call(Method::POST, &["volumes"], WORK_SECONDS).json(request).receive().await
    }

    /// Volumes of the workspace, by name.
    pub async fn list_volumes(&self) -> Result<Vec<Volume>> {
        let list: List<Volume> = self.call(Method::GET, &["volumes"], LOOK_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// One volume.
    pub async fn get_volume(&self, name: &str) -> Result<Volume> {
        self.call(Method::GET, &["volumes", name], LOOK_SECONDS).receive().await
    }

    /// Changes what protects a volume from being deleted.
    pub async fn change_volume(&self, name: &str, request: &PatchVolume) -> Result<Volume> {
        self.call(Method::PATCH, &["volumes", name], LOOK_SECONDS).json(request).receive().await
    }

    /// Makes a volume larger.
    pub async fn grow_volume(&self, name: &str, size_mb: u64) -> Result<Volume> {
        let request = GrowVolume { size_mb };
        self.call(Method::POST, &["volumes", name, "grow"], WORK_SECONDS).json(&request).receive().await
    }

    /// Copies a volume.
    pub async fn clone_volume(&self, name: &str, copy: &str) -> Result<Volume> {
        let request = CloneVolume { name: copy.to_owned() };
        self.call(Method::POST, &["volumes", name, "clone"], WORK_SECONDS).json(&request).receive().await
    }

    /// Keeps a volume as it is now.
    pub async fn snapshot_volume(&self, name: &str, snapshot: Option<String>) -> Result<Volume> {
        let request = SnapshotVolume { name: snapshot };
        self.call(Method::POST, &["volumes", name, "snapshot"], WORK_SECONDS).json(&request).receive().await
    }

    /// Deletes a volume and what is in it.
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        self.call(Method::DELETE, &["volumes", name], WORK_SECONDS).finish().await
    }
}
