//! Sharing of templates: the other workspaces that may use a template.

use async_trait::async_trait;
use pandastack_types::api::TemplateSharing;
use pandastack_types::{TemplateId, WorkspaceId};

use super::Result;
use super::templates::TemplateRecord;

/// Templates that workspaces share with others.
#[async_trait]
pub trait TemplateReaderStore: Send + Sync {
    /// The template of `owner` with that name, if `reader` owns it or `owner` is active and shares it.
    async fn readable_template(
        &self,
        reader: &WorkspaceId,
        owner: &WorkspaceId,
        name: &str,
    ) -> Result<Option<TemplateRecord>>;
    /// The first `SHARED_TEMPLATES_LISTED_MAX` templates that other active workspaces share with this one by
    /// name, by workspace and name. Public ones are not listed: anyone could fill the list of every workspace.
    async fn shared_templates(&self, reader: &WorkspaceId) -> Result<Vec<TemplateRecord>>;
    /// The workspaces that may use a template besides its own.
    async fn template_sharing(&self, template: &TemplateId) -> Result<TemplateSharing>;
    /// Replaces those workspaces. Fails with `NotFound` if the template does not exist.
    async fn set_template_sharing(&self, template: &TemplateRecord, sharing: &TemplateSharing) -> Result<()>;
}
