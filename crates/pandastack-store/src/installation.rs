//! Facts about the installation as a whole.

use async_trait::async_trait;

use crate::Result;

/// Facts of an installation.
#[async_trait]
pub trait InstallationStore: Send + Sync {
    /// The fingerprint of the join secret that this installation was made with. The first one that is asked
    /// about is kept.
    async fn secret_fingerprint(&self, ours: &str) -> Result<String>;
    /// Stores another one.
    async fn replace_secret_fingerprint(&self, ours: &str) -> Result<()>;
}
