//! Operations of clients on templates and builds.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use pandastack_sandboxes::validate;
use pandastack_store::StoreError;
use pandastack_store::clock::now;
use pandastack_store::templates::{
    BuildRecord, BuildSpec, BuildState, LATEST, TagRecord, TemplateRecord, TemplateSpec,
};
use pandastack_types::api::{
    CreateBuild, ImageConfig, PublishTemplate, RegistryCredentials, SnapshotKind, StartBuild,
};
use pandastack_types::limits::{
    BUILD_REGISTRIES_MAX, REGISTRY_CREDENTIAL_BYTES_MAX, TAGS_PER_TEMPLATE_MAX,
    TEMPLATE_DESCRIPTION_BYTES_MAX,
};
use pandastack_types::{BuildId, Error, ErrorCode, Result, TemplateId, WorkspaceId};

use crate::build_error::{BuildError, CANCELLED};
use crate::service::Templates;
use crate::{context, machines, plan, prune, runner, secrets};

/// Longest name of an AWS region; those of today have at most 14 bytes.
const AWS_REGION_BYTES_MAX: usize = 32;

/// Starts a build, and its template on first use.
pub(crate) async fn create(
    templates: &Templates,
    workspace: WorkspaceId,
    request: CreateBuild,
) -> Result<BuildRecord> {
    check_name(templates, &request.name)?;
    check_tags(&request.tags)?;
    check_description(request.description.as_deref())?;
    validate::size(request.cpu, request.memory_mb)?;
    if request.keep_latest && request.tags.is_empty() {
        return Err(Error::bad_request("`keep_latest` needs `tags`: a version without a tag cannot be used"));
    }
    if let Some(start) = &request.start {
        check_start(start)?;
    }
    let template = ensure(templates, workspace, &request.name, request.description.as_deref()).await?;
    check_tag_quota(templates, &template.id, &request.tags).await?;
    let mut request = request;
    let start = request.start.take();
    let state = if start.is_some() { BuildState::Queued } else { BuildState::Waiting };
    let phase = if start.is_some() { "queued" } else { "waiting for files" };
    let spec = BuildSpec {
        name: request.name.clone(),
        request,
        start,
        phase: phase.to_owned(),
        ..BuildSpec::default()
    };
    let build = record(&template, state, spec);
    templates.store.insert_build(&build).await?;
    templates.work.notify_one();
    Ok(build)
}

fn record(template: &TemplateRecord, state: BuildState, spec: BuildSpec) -> BuildRecord {
    BuildRecord {
        id: BuildId::random(),
        workspace: template.workspace.clone(),
        template: template.id.clone(),
        state,
        created_at: now(),
        spec,
    }
}

fn check_name(templates: &Templates, name: &str) -> Result<()> {
    validate::template_name(name)?;
    match templates.platform.contains(name) {
        true => {
            Err(Error::bad_request(format!("template `{name}` comes with the platform; choose another name")))
        }
        false => Ok(()),
    }
}

fn check_tags(tags: &[String]) -> Result<()> {
    let max = usize::try_from(TAGS_PER_TEMPLATE_MAX).unwrap_or(usize::MAX);
    if tags.len() > max {
        return Err(Error::bad_request(format!("`tags` must be at most {max}, not {}", tags.len())));
    }
    tags.iter().try_for_each(|tag| validate::template_tag(tag))
}

/// Refuses tags that a version could not get at its end.
async fn check_tag_quota(templates: &Templates, template: &TemplateId, tags: &[String]) -> Result<()> {
    let mut all: BTreeSet<String> =
        templates.store.tags(template).await?.into_iter().map(|tag| tag.tag).collect();
    all.extend(tags.iter().cloned());
    match all.len() as u64 > TAGS_PER_TEMPLATE_MAX {
        true => Err(StoreError::Quota { what: "tags per template", limit: TAGS_PER_TEMPLATE_MAX }.into()),
        false => Ok(()),
    }
}

fn check_description(text: Option<&str>) -> Result<()> {
    match text.is_some_and(|text| text.len() > TEMPLATE_DESCRIPTION_BYTES_MAX) {
        true => Err(Error::bad_request(format!(
            "`description` must be at most {TEMPLATE_DESCRIPTION_BYTES_MAX} bytes"
        ))),
        false => Ok(()),
    }
}

fn check_start(start: &StartBuild) -> Result<()> {
    plan::check(&start.steps)?;
    check_registries(&start.registries, &start.plain_http)?;
    secrets::check(&start.secrets)?;
    pandastack_dockerfile::parse(&start.dockerfile)
        .map(drop)
        .map_err(|error| Error::bad_request(error.to_string()))
}

fn check_registries(registries: &[RegistryCredentials], plain: &[String]) -> Result<()> {
    for (field, count) in [("registries", registries.len()), ("plain_http", plain.len())] {
        if count > BUILD_REGISTRIES_MAX {
            let message = format!("`{field}` must be at most {BUILD_REGISTRIES_MAX}, not {count}");
            return Err(Error::bad_request(message));
        }
    }
    let is_valid =
        |text: &str| !text.is_empty() && text.len() <= REGISTRY_CREDENTIAL_BYTES_MAX && !text.contains('\0');
    let is_usable = |one: &RegistryCredentials| {
        [&one.registry, &one.username, &one.password].into_iter().all(|text| is_valid(text))
            && !one.username.contains(':')
    };
    if plain.iter().any(|one| !is_valid(one)) {
        return Err(Error::bad_request(format!(
            "`plain_http` takes names of registries, each of at most {REGISTRY_CREDENTIAL_BYTES_MAX} bytes"
        )));
    }
    let is_region = |region: &String| {
        (1..=AWS_REGION_BYTES_MAX).contains(&region.len())
            && region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if registries.iter().filter_map(|one| one.aws_region.as_ref()).any(|region| !is_region(region)) {
        return Err(Error::bad_request("`aws_region` must be the name of a region, such as `eu-central-1`"));
    }
    match registries.iter().position(|one| !is_usable(one)) {
        Some(index) => Err(Error::bad_request(format!(
            "entry {} of `registries` needs a `registry`, a `username` without a colon and a `password`, \
             each of at most {REGISTRY_CREDENTIAL_BYTES_MAX} bytes",
            index + 1
        ))),
        None => Ok(()),
    }
}

/// The template of that name, created if it does not exist.
async fn ensure(
    templates: &Templates,
    workspace: WorkspaceId,
    name: &str,
    description: Option<&str>,
) -> Result<TemplateRecord> {
    let wanted = TemplateRecord {
        id: TemplateId::random(),
        workspace,
        name: name.to_owned(),
        created_at: now(),
        spec: TemplateSpec { description: description.unwrap_or_default().to_owned() },
    };
    let mut template = templates.store.ensure_template(&wanted).await?;
    if let Some(description) = description.filter(|text| *text != template.spec.description) {
        description.clone_into(&mut template.spec.description);
        templates.store.update_template(&template).await?;
    }
    Ok(template)
}

/// Adds files to a build that was not started. They go straight into a machine. If the client
/// disconnects, the build is never started and ends by itself.
pub(crate) async fn add_files(templates: &Templates, build: &BuildRecord, archive: Body) -> Result<()> {
    let turn = templates.uploads.of(build.id.clone());
    let _turn = turn.lock().await;
    let refused =
        || Error::conflict(format!("build `{}` was already started and accepts no more files", build.id));
    let mut build = templates.store.build(&build.workspace, &build.id).await?;
    if build.state != BuildState::Waiting {
        return Err(refused());
    }
    let machine = context::open(templates, &build).await?;
    build.spec.files_at = Some(now());
    if !templates.store.put_build(&build, BuildState::Waiting).await? {
        // The build ended while the machine was being created, which its end did not know of.
        machines::delete_all(templates, &build.id).await?;
        return Err(refused());
    }
    context::add(&machine, archive).await?;
    build.spec.files_at = Some(now());
    match templates.store.put_build(&build, BuildState::Waiting).await? {
        true => Ok(()),
        false => Err(refused()),
    }
}

/// Starts a build that has its files.
pub(crate) async fn start(
    templates: &Templates,
    mut build: BuildRecord,
    start: StartBuild,
) -> Result<BuildRecord> {
    check_start(&start)?;
    let turn = templates.uploads.of(build.id.clone());
    let _turn = turn.lock().await;
    build.state = BuildState::Queued;
    build.spec.start = Some(start);
    "queued".clone_into(&mut build.spec.phase);
    if !templates.store.put_build(&build, BuildState::Waiting).await? {
        return Err(Error::conflict(format!("build `{}` was already started, or it has ended", build.id)));
    }
    templates.work.notify_one();
    templates.notify();
    Ok(build)
}

/// Cancels a build; an ended build is not changed. A running build is stopped, and ends soon after.
pub(crate) async fn cancel(templates: &Arc<Templates>, build: BuildRecord) -> Result<()> {
    check_in_progress(&build)?;
    let Some(running) = templates.begin(&build) else {
        templates.stop(&build.id);
        return Ok(());
    };
    let own = Arc::clone(templates);
    let end = async move {
        // Read again: the earlier state was read before the build was locked.
        let mut build = own.store.build(&build.workspace, &build.id).await?;
        check_in_progress(&build)?;
        let error = BuildError::new(CANCELLED);
        if !runner::fail(&own, build.clone(), &error, "cancelled").await? {
            // Only a start can come in between: then the build is queued.
            build = own.store.build(&build.workspace, &build.id).await?;
            check_in_progress(&build)?;
            runner::fail(&own, build, &error, "cancelled").await?;
        }
        drop(running);
        Ok(())
    };
    templates.background.owned(end).await
}

fn check_in_progress(build: &BuildRecord) -> Result<()> {
    match build.state.is_in_progress() {
        true => Ok(()),
        false => Err(Error::conflict(format!("build `{}` has ended ({})", build.id, build.state.as_str()))),
    }
}

/// Publishes a snapshot as a version of a template.
pub(crate) async fn publish(
    templates: &Arc<Templates>,
    workspace: WorkspaceId,
    request: PublishTemplate,
) -> Result<BuildRecord> {
    check_name(templates, &request.name)?;
    check_tags(&request.tags)?;
    check_description(request.description.as_deref())?;
    let snapshot = templates.machines.user_snapshot(&workspace, &request.snapshot_id).await?;
    if snapshot.spec.kind == SnapshotKind::Checkpoint {
        return Err(Error::bad_request(format!(
            "snapshot `{}` is a checkpoint, which is deleted with its sandbox; take a snapshot to publish",
            snapshot.id
        )));
    }
    if snapshot.expires_at.is_some() {
        return Err(Error::bad_request(format!(
            "snapshot `{}` expires; take one without `ttl_seconds` to publish it",
            snapshot.id
        )));
    }
    if !snapshot.spec.volumes.is_empty() {
        return Err(Error::bad_request(format!(
            "snapshot `{}` has volumes, which a template cannot have; snapshot a sandbox without volumes",
            snapshot.id
        )));
    }
    let template = ensure(templates, workspace, &request.name, request.description.as_deref()).await?;
    let config = ImageConfig {
        env: snapshot.spec.env.clone(),
        user: snapshot.spec.user.clone(),
        workdir: snapshot.spec.cwd.clone(),
        ..ImageConfig::default()
    };
    let asked =
        CreateBuild { name: request.name.clone(), tags: request.tags.clone(), ..CreateBuild::default() };
    let spec = BuildSpec {
        name: request.name,
        request: asked,
        phase: "published".to_owned(),
        base: format!("snapshot {}", snapshot.id),
        ended_at: Some(now()),
        snapshot: Some(snapshot.id.clone()),
        published: true,
        size_bytes: snapshot.spec.size_bytes,
        cpu: snapshot.spec.cpu,
        memory_mb: snapshot.spec.memory_mb,
        config,
        ..BuildSpec::default()
    };
    // Not queued, so that no other task runs it.
    let mut build = record(&template, BuildState::Running, spec);
    let _running = templates.begin(&build);
    templates.store.insert_build(&build).await?;
    build.state = BuildState::Done;
    match templates.store.publish_build(&build, BuildState::Running, &request.tags).await? {
        true => Ok(build),
        false => Err(Error::conflict(format!("template `{}` was deleted during the build", build.spec.name))),
    }
}

/// The template of that name.
pub(crate) async fn find(
    templates: &Templates,
    workspace: &WorkspaceId,
    name: &str,
) -> Result<TemplateRecord> {
    let found = templates.store.template(workspace, name).await?;
    found.ok_or_else(|| Error::not_found("template", name))
}

/// Deletes a template with its versions. Sandboxes made from it stay.
pub(crate) async fn delete(templates: &Templates, workspace: &WorkspaceId, name: &str) -> Result<()> {
    let template = find(templates, workspace, name).await?;
    let builds = templates.store.build_heads(workspace).await?;
    let in_progress =
        builds.iter().find(|build| build.template == template.id && build.state.is_in_progress());
    if let Some(build) = in_progress {
        return Err(Error::conflict(format!(
            "template `{name}` is being built by build `{}`; cancel it first",
            build.id
        )));
    }
    templates.store.delete_template(&template.id).await?;
    prune::workspace(templates, workspace).await;
    Ok(())
}

/// Deletes all templates of a workspace that is being deleted, after its builds. Its machines and snapshots
/// are left to others. Safe to repeat.
pub async fn delete_all(templates: &Arc<Templates>, workspace: &WorkspaceId) -> Result<()> {
    let in_progress = templates.store.builds_in_progress().await?;
    for build in in_progress.into_iter().filter(|build| build.workspace == *workspace) {
        let id = build.id.clone();
        match cancel(templates, build).await {
            // The build ended by itself.
            Err(error) if error.code == ErrorCode::Conflict => {}
            cancelled => cancelled?,
        }
        templates.wait_until_ended(&id).await?;
    }
    Ok(templates.store.delete_templates(workspace).await?)
}

/// Points tags to a version.
pub(crate) async fn set_tags(
    templates: &Templates,
    template: &TemplateRecord,
    tags: &[String],
    id: &BuildId,
) -> Result<()> {
    tags.iter().try_for_each(|tag| validate::template_tag(tag))?;
    let build = templates.store.build(&template.workspace, id).await?;
    if build.template != template.id || build.state != BuildState::Done {
        return Err(Error::bad_request(format!(
            "build `{id}` is not a finished build of template `{}`",
            template.name
        )));
    }
    let tag = |tag: &String| TagRecord {
        template: template.id.clone(),
        tag: tag.clone(),
        build: build.id.clone(),
        created_at: now(),
    };
    let records: Vec<TagRecord> = tags.iter().map(tag).collect();
    Ok(templates.store.set_tags(&records).await?)
}

/// Removes a tag.
pub(crate) async fn delete_tag(templates: &Templates, template: &TemplateRecord, tag: &str) -> Result<()> {
    if tag == LATEST {
        return Err(Error::bad_request(
            "the tag `latest` cannot be deleted; point it to another build, or delete the template",
        ));
    }
    match templates.store.delete_tag(&template.id, tag).await? {
        true => Ok(()),
        false => Err(Error::not_found("tag", tag)),
    }
}
