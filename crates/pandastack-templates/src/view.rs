//! Converts records to API responses.

use pandastack_store::template_ref::TemplateRef;
use pandastack_store::templates::{BuildRecord, BuildState, LATEST, TagRecord, TemplateRecord};
use pandastack_types::api::{
    Build, BuildFailure, BuildStatus, Template, TemplateStatus, TemplateTag, TemplateVersion,
};
use pandastack_types::{Error, Result, WorkspaceId};

use crate::service::Templates;

/// A build.
pub(crate) fn build(record: BuildRecord) -> Build {
    let spec = record.spec;
    let status = match record.state {
        BuildState::Waiting | BuildState::Queued => BuildStatus::Queued,
        BuildState::Running => BuildStatus::Running,
        BuildState::Done => BuildStatus::Done,
        BuildState::Failed => BuildStatus::Failed,
    };
    Build {
        id: record.id,
        name: spec.name,
        status,
        phase: spec.phase,
        error: spec.error,
        detail: None,
        started_at: record.created_at,
        ended_at: spec.ended_at,
        log: Vec::new(),
        tags: spec.request.tags,
        cached_steps: spec.cached_steps,
        steps: spec.steps,
        failure: spec.failure.filter(|failure| *failure != BuildFailure::default()),
        rebuild_of: spec.rebuild_of,
        changes: spec.changes,
    }
}

/// A tag.
pub(crate) fn tag(record: TagRecord) -> TemplateTag {
    TemplateTag { tag: record.tag, build_id: record.build, created_at: record.created_at }
}

/// A template of the workspace, with its current version.
pub(crate) async fn template(templates: &Templates, record: TemplateRecord) -> Result<Template> {
    let latest = templates.store.tagged_build(&record.id, LATEST).await?;
    with_version(templates, record, latest).await
}

/// The version of a template that a reference names, for a reader who may be of another workspace.
pub(crate) async fn version(
    templates: &Templates,
    reader: &WorkspaceId,
    record: TemplateRecord,
    reference: &TemplateRef,
) -> Result<Template> {
    let build = reference.version(&*templates.store, &record).await?;
    if build.is_none() && !reference.is_latest() {
        return Err(Error::not_found("template", &reference.to_string()));
    }
    let owner = record.workspace.clone();
    let template = with_version(templates, record, build).await?;
    Ok(if owner == *reader { template } else { shared(template, owner) })
}

/// A template that another workspace shares, for a list: without the settings of its version, which may be
/// large.
pub(crate) async fn shared_template(templates: &Templates, record: TemplateRecord) -> Result<Template> {
    let owner = record.workspace.clone();
    Ok(Template { version: None, ..shared(template(templates, record).await?, owner) })
}

/// A template as another workspace sees it. Its base may be named by a private registry.
fn shared(template: Template, owner: WorkspaceId) -> Template {
    let name = format!("{owner}/{}", template.name);
    let base = String::new();
    let version = template.version.map(|version| TemplateVersion { changes: None, ..version });
    Template { label: name.clone(), name, base, version, sharing: None, shared_by: Some(owner), ..template }
}

async fn with_version(
    templates: &Templates,
    record: TemplateRecord,
    build: Option<BuildRecord>,
) -> Result<Template> {
    let tags = templates.store.tags(&record.id).await?.into_iter().map(tag).collect();
    let sharing = templates.readers.template_sharing(&record.id).await?;
    let status = if build.is_some() { TemplateStatus::Ready } else { TemplateStatus::Unbaked };
    let (cpu, memory_mb, size_bytes, base) = build.as_ref().map_or((0, 0, 0, String::new()), |build| {
        let spec = &build.spec;
        (spec.cpu, spec.memory_mb, spec.size_bytes, spec.base.clone())
    });
    let version = build.map(|build| TemplateVersion {
        build_id: build.id.to_string(),
        created_at: build.spec.ended_at,
        tags,
        config: build.spec.config,
        start_command: build.spec.start_command,
        ready: build.spec.ready,
        changes: build.spec.changes,
    });
    Ok(Template {
        label: record.name.clone(),
        name: record.name,
        aliases: Vec::new(),
        description: record.spec.description,
        category: "custom".to_owned(),
        base,
        tools: Vec::new(),
        cpu,
        memory_mb,
        size_bytes,
        is_global: false,
        status,
        error: None,
        volume: None,
        version,
        sharing: Some(sharing),
        shared_by: None,
    })
}
