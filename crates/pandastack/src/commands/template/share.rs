//! `pandastack template share` and `unshare`.

use anyhow::{Context as _, Result};
use pandastack_client::Client;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{Template, TemplateSharing};

use crate::output::Output;

/// Shares a template with more workspaces.
pub async fn add(
    client: &Client,
    name: &str,
    workspaces: Vec<WorkspaceId>,
    public: bool,
    output: Output,
) -> Result<()> {
    let mut sharing = current(client, name).await?;
    sharing.public |= public;
    sharing.workspaces.extend(workspaces);
    sharing.workspaces.sort();
    sharing.workspaces.dedup();
    save(client, name, &sharing, output).await
}

/// Stops sharing a template with these workspaces, or with anybody.
pub async fn remove(
    client: &Client,
    name: &str,
    workspaces: &[WorkspaceId],
    public: bool,
    output: Output,
) -> Result<()> {
    let mut sharing = TemplateSharing::default();
    if public || !workspaces.is_empty() {
        sharing = current(client, name).await?;
        sharing.public &= !public;
        sharing.workspaces.retain(|reader| !workspaces.contains(reader));
    }
    save(client, name, &sharing, output).await
}

async fn current(client: &Client, name: &str) -> Result<TemplateSharing> {
    let template = client.get_template(name).await?;
    template.sharing.with_context(|| format!("template `{name}` does not belong to this workspace"))
}

async fn save(client: &Client, name: &str, sharing: &TemplateSharing, output: Output) -> Result<()> {
    let template = client.share_template(name, sharing).await?;
    output.value(&template, summary)
}

fn summary(template: &Template) -> String {
    format!("template {} is {}", template.name, readers(template).unwrap_or_default())
}

/// Describes who else may use a template; `None` if it belongs to another workspace or to the platform.
pub fn readers(template: &Template) -> Option<String> {
    let sharing = template.sharing.as_ref()?;
    let names = sharing.workspaces.iter().map(WorkspaceId::as_str).collect::<Vec<_>>().join(", ");
    Some(match (sharing.public, names.is_empty()) {
        (true, true) => "shared with all workspaces".to_owned(),
        (true, false) => format!("shared with all workspaces, and by name with {names}"),
        (false, true) => "private".to_owned(),
        (false, false) => format!("shared with {names}"),
    })
}
