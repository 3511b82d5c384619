//! Facts about the installation, one row each.

use async_trait::async_trait;

use super::SqlStore;
use crate::installation::InstallationStore;
use crate::{Durability, Result};

/// Name of the row.
const SECRET_FINGERPRINT: &str = "secret_fingerprint";

#[async_trait]
impl InstallationStore for SqlStore {
    async fn secret_fingerprint(&self, ours: &str) -> Result<String> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("INSERT INTO installation (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(SECRET_FINGERPRINT)
            .bind(ours)
            .execute(write.conn())
            .await?;
        let kept = sqlx::query_scalar("SELECT value FROM installation WHERE name = $1")
            .bind(SECRET_FINGERPRINT)
            .fetch_one(write.conn())
            .await?;
        write.commit().await?;
        Ok(kept)
    }

    async fn replace_secret_fingerprint(&self, ours: &str) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("UPDATE installation SET value = $1 WHERE name = $2")
            .bind(ours)
            .bind(SECRET_FINGERPRINT)
            .execute(write.conn())
            .await?;
        write.commit().await
    }
}
