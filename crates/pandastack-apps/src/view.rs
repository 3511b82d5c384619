//! Converts app records to API responses.

use http::HeaderMap;
use pandastack_store::apps::record::{AppRecord, AppSpec, DeploymentRecord};
use pandastack_types::api::{self, AppInstance, AppStatus, DeploymentStatus, MASK};
use pandastack_types::{Result, SandboxId, SandboxState};

use crate::git::{self, shown_url};
use crate::state::Apps;
use crate::{commit_status, databases, prune};

/// An app as the caller sees it.
pub(crate) async fn app(apps: &Apps, headers: &HeaderMap, record: AppRecord) -> Result<api::App> {
    let deployments = apps.store.deployments(&record.id).await?;
    let live = deployments.iter().find(|one| Some(&one.id) == record.active.as_ref());
    let instances = instances(apps, live).await;
    let status = status(&instances, deployments.first());
    let found = live.or(deployments.first()).and_then(|one| one.spec.framework.clone());
    let template = apps.templates.list().into_iter().find(|one| one.name == record.spec.template);
    let (cpu, memory_mb) = template.map_or((1, 0), |template| (template.cpu, template.memory_mb));
    let (cpu, memory_mb) = (record.spec.cpu.unwrap_or(cpu), record.spec.memory_mb.unwrap_or(memory_mb));
    let url = apps.address(headers, &record.name);
    let webhook_url = hook_url(headers, &record);
    let git_public_key = git::public_key(apps, &record);
    let AppSpec { env, git_url, git_branch, .. } = record.spec.clone();
    let shown = |entry: pandastack_store::apps::record::EnvEntry| {
        if entry.secret { MASK.to_owned() } else { entry.value }
    };
    let spec = record.spec;
    Ok(api::App {
        databases: databases::shown(&spec),
        id: record.id,
        workspace: record.workspace,
        name: record.name,
        git_url: git_url.as_deref().map(shown_url).unwrap_or_default(),
        git_branch: git_branch.unwrap_or_else(|| "main".to_owned()),
        git_host: commit_status::host_of(&spec),
        git_public_key,
        git_known_hosts: spec.git_known_hosts.or(spec.git_known_hosts_seen),
        framework: spec.framework.or(found),
        install_command: spec.install_command,
        build_command: spec.build_command,
        start_command: spec.start_command,
        root_directory: spec.root_directory,
        port: spec.port,
        health_path: spec.health_path,
        idle_timeout_seconds: spec.idle_timeout_seconds,
        min_instances: spec.min_instances,
        max_instances: spec.max_instances,
        env: env.into_iter().map(|(key, entry)| (key, shown(entry))).collect(),
        template: spec.template,
        cpu,
        memory_mb,
        sandbox_id: instances.first().map(|one| one.sandbox_id.clone()),
        instances,
        active_deployment_id: record.active,
        status,
        url: Some(url),
        webhook_url,
        poll_seconds: spec.poll_seconds,
        previews: spec.previews,
        preview_of: record.preview_of,
        created_at: record.created_at,
        updated_at: record.updated_at,
    })
}

/// A preview as the caller sees it.
pub(crate) async fn preview(apps: &Apps, headers: &HeaderMap, record: AppRecord) -> Result<api::AppPreview> {
    let deployments = apps.store.deployments(&record.id).await?;
    let live = deployments.iter().find(|one| Some(&one.id) == record.active.as_ref());
    let instances = instances(apps, live).await;
    let pull = record.spec.pull.clone().unwrap_or_default();
    Ok(api::AppPreview {
        status: status(&instances, deployments.first()),
        url: Some(apps.address(headers, &record.name)),
        deployment: self::deployments(&record, deployments).into_iter().next(),
        app_id: record.preview_of.unwrap_or_else(|| record.id.clone()),
        id: record.id,
        name: record.name,
        number: pull.number,
        title: pull.title,
        branch: pull.branch,
        fork: pull.fork,
        pull_url: pull.url,
        git_commit: pull.commit,
        sandbox_id: instances.into_iter().next().map(|one| one.sandbox_id),
        created_at: record.created_at,
        updated_at: record.updated_at,
    })
}

async fn instances(apps: &Apps, live: Option<&DeploymentRecord>) -> Vec<AppInstance> {
    let mut instances = Vec::new();
    for id in live.iter().flat_map(|live| live.spec.machines()) {
        instances.push(AppInstance { sandbox_id: id.clone(), status: status_of(apps, id).await });
    }
    instances
}

/// State of a machine, as far as it is known; a missing one has failed.
pub(crate) async fn status_of(apps: &Apps, id: &SandboxId) -> SandboxState {
    apps.machines.find(None, id).await.map_or(SandboxState::Failed, |machine| machine.state)
}

fn hook_url(headers: &HeaderMap, record: &AppRecord) -> Option<String> {
    record.spec.webhook_secret.as_ref()?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    Some(format!("{scheme}://{}/v1/hooks/apps/{}", text("host").unwrap_or("localhost"), record.id))
}

/// Status of an app; of several machines, one that runs is enough.
fn status(instances: &[AppInstance], newest: Option<&DeploymentRecord>) -> AppStatus {
    let any = |states: &[SandboxState]| instances.iter().any(|one| states.contains(&one.status));
    if any(&[SandboxState::Running, SandboxState::Paused]) {
        return AppStatus::Running;
    }
    if any(&[SandboxState::Hibernated]) {
        return AppStatus::Hibernated;
    }
    match newest.map(|one| one.status) {
        _ if !instances.is_empty() => AppStatus::Stopped,
        Some(status) if status.is_in_progress() => AppStatus::Building,
        Some(DeploymentStatus::Failed) => AppStatus::Error,
        _ => AppStatus::Created,
    }
}

/// Deployments as clients see them, newest first.
pub(crate) fn deployments(app: &AppRecord, records: Vec<DeploymentRecord>) -> Vec<api::Deployment> {
    let needed = prune::needed(app, &records);
    records
        .into_iter()
        .map(|one| {
            let kept = needed.versions.contains(&one.id);
            deployment(one, kept)
        })
        .collect()
}

/// Returns the deployment.
pub(crate) fn deployment(record: DeploymentRecord, kept: bool) -> api::Deployment {
    let spec = record.spec;
    api::Deployment {
        id: record.id,
        app_id: record.app,
        workspace: record.workspace,
        status: record.status,
        trigger: spec.trigger,
        git_commit: spec.git_commit,
        git_ref: spec.git_ref,
        framework: spec.framework,
        sandbox_id: spec.machine,
        from_deployment_id: spec.from,
        kept,
        build_logs: None,
        error: spec.error,
        created_at: record.created_at,
        updated_at: record.updated_at,
        finished_at: record.finished_at,
    }
}
