//! Facts about the installation as a whole.

use async_trait::async_trait;

use crate::Result;

/// Facts of an installation.
#[async_trait]
pub trait InstallationStore: Send + Sync {
    /// The fingerprint of the join secret that this installation was created with. The first call
    /// stores `ours`.
    async fn secret_fingerprint(&self, ours: &str) -> Result<String>;
    /// Stores another one.
    async fn replace_secret_fingerprint(&self, ours: &str) -> Result<()>;
}

/// Rows that were read and sealed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SealedRows {
    /// Rows that may have secrets.
    pub rows: u64,
    /// Rows with a newly sealed value.
    pub sealed: u64,
}

/// Secrets in rows, which are sealed with the join secret.
#[async_trait]
pub trait SecretStore: Send + Sync {
    /// Seals values that are not sealed with the current generation: rows of an earlier version,
    /// and after a rotation all rows. Safe to interrupt and to repeat.
    async fn seal_rows(&self) -> Result<SealedRows>;
    /// Removes secrets that the join secret does not open, because another one took the place of a lost
    /// one. Returns the number of rows.
    async fn drop_unreadable(&self) -> Result<u64>;
    /// The generation that every row was sealed with when this was last completed.
    async fn sealed_with(&self) -> Result<Option<u8>>;
}
