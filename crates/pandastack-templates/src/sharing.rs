//! Templates that other workspaces may use.

use pandastack_store::template_ref::TemplateRef;
use pandastack_store::templates::TemplateRecord;
use pandastack_types::api::TemplateSharing;
use pandastack_types::limits::TEMPLATE_READERS_MAX;
use pandastack_types::{Error, Result, WorkspaceId};

use crate::ops;
use crate::service::Templates;

/// Replaces the workspaces that may use a template. Sandboxes that exist are kept.
///
/// Does not check whether a workspace of that name exists: the answer would tell one tenant of others.
pub(crate) async fn set(
    templates: &Templates,
    workspace: &WorkspaceId,
    name: &str,
    mut sharing: TemplateSharing,
) -> Result<TemplateRecord> {
    if sharing.workspaces.len() > TEMPLATE_READERS_MAX {
        return Err(Error::bad_request(format!(
            "`workspaces` must be at most {TEMPLATE_READERS_MAX}, not {}; share with all by `public`",
            sharing.workspaces.len()
        )));
    }
    sharing.workspaces.retain(|reader| reader != workspace);
    let template = ops::find(templates, workspace, name).await?;
    templates.readers.set_template_sharing(&template, &sharing).await?;
    Ok(template)
}

/// A template that `reader` may use, as a reference names it.
pub(crate) async fn find(
    templates: &Templates,
    reader: &WorkspaceId,
    reference: &TemplateRef,
) -> Result<TemplateRecord> {
    let found = reference.find(&*templates.readers, reader).await?;
    found.ok_or_else(|| Error::not_found("template", &reference.to_string()))
}
