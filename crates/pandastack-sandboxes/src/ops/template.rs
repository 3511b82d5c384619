//! Templates that workspaces made: each version is a snapshot with the configuration of its image.

use pandastack_store::template_ref::TemplateRef;
use pandastack_store::templates::BuildSpec;
use pandastack_types::api::{CreateSandbox, ImageConfig};
use pandastack_types::{Error, Result, SnapshotId, WorkspaceId};

use crate::Sandboxes;

/// The version of a template that a create starts from.
pub(super) struct Version {
    /// The template as the request names it.
    pub(super) name: String,
    /// Workspace that owns the snapshot.
    pub(super) owner: WorkspaceId,
    /// Snapshot of the template's machine.
    pub(super) snapshot: SnapshotId,
    /// Process settings of its image.
    pub(super) config: ImageConfig,
    /// The snapshot is a user's own.
    pub(super) published: bool,
}

/// The version that a create names; `None` if it names one of the platform's own templates, or an
/// unknown one.
pub(super) async fn find(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    request: &CreateSandbox,
) -> Result<Option<Version>> {
    let Some(text) = request.template.as_deref() else { return Ok(None) };
    let reference: TemplateRef = text.parse()?;
    let unknown = || Error::not_found("template", text);
    let is_name = reference.workspace.is_none() && reference.is_latest();
    if reference.workspace.is_none() && sandboxes.hosts.has_template(&reference.name) {
        return if is_name { Ok(None) } else { Err(unknown()) };
    }
    let store = &*sandboxes.store;
    let Some(template) = reference.find(store, workspace).await? else {
        return if is_name { Ok(None) } else { Err(unknown()) };
    };
    let build = reference.version(store, &template).await?.ok_or_else(|| reference.no_version())?;
    let name = match template.workspace == *workspace {
        true => template.name,
        false => reference.template().to_string(),
    };
    check_request(request, &name, &build.spec)?;
    let published = build.spec.published;
    let Some(snapshot) = build.spec.snapshot else {
        return Err(Error::internal(format!("build `{}` of template `{name}` has no snapshot", build.id)));
    };
    Ok(Some(Version { name, owner: template.workspace, snapshot, config: build.spec.config, published }))
}

/// A snapshot has the size and the volumes of its machine, so a create cannot change them.
fn check_request(request: &CreateSandbox, name: &str, spec: &BuildSpec) -> Result<()> {
    let differs = |wanted: Option<u32>, own: u32| wanted.is_some_and(|wanted| wanted != own);
    if differs(request.cpu, spec.cpu) || differs(request.memory_mb, spec.memory_mb) {
        return Err(Error::bad_request(format!(
            "sandboxes of template `{name}` have {} vCPU and {} MiB; leave out `cpu` and `memory_mb`, or \
             build it with another size",
            spec.cpu, spec.memory_mb
        )));
    }
    Ok(())
}
