//! Templates that a workspace made: each version is a snapshot with the configuration of its image.

use pandastack_store::templates::{BuildSpec, LATEST};
use pandastack_types::api::{CreateSandbox, ImageConfig};
use pandastack_types::{Error, ErrorCode, Result, SnapshotId, WorkspaceId};

use crate::Sandboxes;

/// The version of a template that a create starts from.
pub(super) struct Version {
    /// The template's name.
    pub(super) name: String,
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
    let Some(reference) = request.template.as_deref() else { return Ok(None) };
    let (name, tag) = reference.split_once(':').unwrap_or((reference, LATEST));
    if sandboxes.hosts.has_template(name) {
        return match reference.contains(':') && tag != LATEST {
            true => Err(Error::not_found("template", reference)),
            false => Ok(None),
        };
    }
    let Some(template) = sandboxes.store.template(workspace, name).await? else {
        return match reference.contains(':') {
            true => Err(Error::not_found("template", reference)),
            false => Ok(None),
        };
    };
    let build = sandboxes.store.tagged_build(&template.id, tag).await?;
    let Some(build) = build else {
        let message = match tag == LATEST {
            true => format!("template `{name}` has no finished build; run `pandastack template build`"),
            false => format!(
                "template `{name}` has no tag `{tag}`; `pandastack template get {name}` lists its tags"
            ),
        };
        return Err(Error::new(ErrorCode::NotFound, message));
    };
    check_request(request, name, &build.spec)?;
    let published = build.spec.published;
    let Some(snapshot) = build.spec.snapshot else {
        return Err(Error::internal(format!("build `{}` of template `{name}` has no snapshot", build.id)));
    };
    Ok(Some(Version { name: name.to_owned(), snapshot, config: build.spec.config, published }))
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
