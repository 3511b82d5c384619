//! Settings of backups.

/// The backup store and the retention.
#[derive(Clone)]
pub struct BackupConfig {
    /// `file:///folder`, or `s3://`, `gs://`, `az://bucket/folder`.
    pub url: url::Url,
    /// Settings of the store, such as `aws_access_key_id`.
    pub store_settings: Vec<(String, String)>,
    /// Number of past days within which every instant can be restored.
    pub retention_days: u16,
}

impl std::fmt::Debug for BackupConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address and the settings may have secrets in them.
        f.debug_struct("BackupConfig").field("retention_days", &self.retention_days).finish_non_exhaustive()
    }
}
