//! Rebuilds: a version is built once more, from what its build recorded.
//!
//! Every step runs again, and images are fetched again: the reason for a rebuild is what changed outside of
//! the Dockerfile, such as packages that `RUN apt-get upgrade` installs, which no key of a layer contains.
//!
//! A rebuild gets the tags of its version when it succeeds, except those that mean another version by then.

use std::sync::Arc;

use pandastack_store::clock::now;
use pandastack_store::template_ref::{TemplateRef, VersionRef};
use pandastack_store::templates::{BuildRecord, BuildSpec, BuildState, LATEST};
use pandastack_types::api::{CreateBuild, StartBuild};
use pandastack_types::{BuildId, Error, ErrorCode, Result, WorkspaceId};

use crate::ops;
use crate::service::Templates;

/// What a rebuild needs besides the Dockerfile, as users read it.
const FILES: &str = "build files";
const SECRETS: &str = "secrets";
const CREDENTIALS: &str = "registry credentials";

/// Longest record of a build, as JSON: lists of builds read all of them.
const RECIPE_BYTES_MAX: usize = 32 * 1024;

/// Records how to repeat a build that is done, with what it used if it keeps that. A record that is too long
/// is left out.
pub(crate) fn record_recipe(spec: &mut BuildSpec, start: StartBuild, used_files: bool) {
    (spec.start_command, spec.ready) = (start.start_command.clone(), start.ready.clone());
    if !used_files {
        spec.files = None;
    }
    let is_short =
        |start: &StartBuild| serde_json::to_vec(start).is_ok_and(|record| record.len() <= RECIPE_BYTES_MAX);
    if spec.request.keep_inputs {
        (spec.recipe, spec.lost_inputs) = (Some(start).filter(is_short), Vec::new());
        return;
    }
    let used = [
        (used_files, FILES),
        (!start.secrets.is_empty(), SECRETS),
        (!start.registries.is_empty(), CREDENTIALS),
    ];
    spec.lost_inputs = used.iter().filter(|(is, _)| *is).map(|(_, what)| (*what).to_owned()).collect();
    let recipe = StartBuild { secrets: Vec::new(), registries: Vec::new(), ..start };
    spec.recipe = Some(recipe).filter(is_short);
}

/// Refuses a template that cannot be rebuilt.
pub async fn check(templates: &Templates, workspace: &WorkspaceId, template: &str) -> Result<()> {
    find(templates, workspace, template).await.map(drop)
}

/// Builds a version again; joins a rebuild of the same version that is in progress.
pub async fn start(
    templates: &Arc<Templates>,
    workspace: &WorkspaceId,
    template: &str,
) -> Result<BuildRecord> {
    let (source, recipe, tag) = find(templates, workspace, template).await?;
    let in_progress = templates.store.builds_in_progress().await?;
    let is_same = |one: &BuildRecord| {
        one.spec.rebuild_of.as_ref() == Some(&source.id)
            // One that was cancelled has not ended yet.
            && one.spec.error.is_none()
            && one.published_tags(&one.spec.request.tags).any(|published| published == tag)
    };
    if let Some(build) = in_progress.into_iter().find(is_same) {
        return Ok(build);
    }
    let mut request: CreateBuild = source.spec.request.clone();
    if tag == LATEST {
        // Someone may have pointed `latest` to a build that had kept it.
        request.keep_latest = false;
    } else if !request.tags.contains(&tag) {
        request.tags.push(tag);
    }
    let spec = BuildSpec {
        name: source.spec.name.clone(),
        request,
        start: Some(StartBuild { no_cache: true, debug: false, ..recipe }),
        files: source.spec.files.clone(),
        rebuild_of: Some(source.id),
        phase: "queued".to_owned(),
        ..BuildSpec::default()
    };
    let build = BuildRecord {
        id: BuildId::random(),
        workspace: source.workspace,
        template: source.template,
        state: BuildState::Queued,
        created_at: now(),
        spec,
    };
    templates.store.insert_build(&build).await?;
    templates.work.notify_one();
    Ok(build)
}

/// Waits for the end of a build.
pub async fn wait(templates: &Templates, workspace: &WorkspaceId, id: &BuildId) -> Result<BuildRecord> {
    let mut news = templates.follow();
    loop {
        let build = templates.store.build(workspace, id).await?;
        if !build.state.is_in_progress() {
            return Ok(build);
        }
        if news.changed().await.is_err() {
            return Err(Error::new(ErrorCode::Unavailable, "the server is shutting down"));
        }
    }
}

/// Cancels a build that may have ended.
pub async fn cancel(templates: &Arc<Templates>, workspace: &WorkspaceId, id: &BuildId) -> Result<()> {
    let build = templates.store.build(workspace, id).await?;
    match ops::cancel(templates, build).await {
        Err(error) if error.code == ErrorCode::Conflict => Ok(()),
        cancelled => cancelled,
    }
}

/// The version to build again, its instructions, and the tag that names it.
async fn find(
    templates: &Templates,
    workspace: &WorkspaceId,
    template: &str,
) -> Result<(BuildRecord, StartBuild, String)> {
    let reference: TemplateRef = template.parse()?;
    if templates.platform.contains(&reference.name) && reference.workspace.is_none() {
        return Err(Error::bad_request(format!(
            "template `{}` comes with the platform, whose operator builds it",
            reference.name
        )));
    }
    if reference.workspace.as_ref().is_some_and(|owner| owner != workspace) {
        return Err(Error::new(
            ErrorCode::Forbidden,
            format!("template `{template}` belongs to another workspace; only its owner can rebuild it"),
        ));
    }
    let tag = match &reference.version {
        VersionRef::Tag(tag) => tag.clone(),
        VersionRef::Build(_) => {
            let message = format!("`{template}` names one build; name the template, or one of its tags");
            return Err(Error::bad_request(message));
        }
    };
    let record = ops::find(templates, workspace, &reference.name).await?;
    let source = reference.version(&*templates.store, &record).await?;
    let source = source.ok_or_else(|| reference.no_version())?;
    let refuse = |why: String| Error::conflict(format!("template `{template}` cannot be rebuilt: {why}"));
    if source.spec.published {
        return Err(refuse("it was published from a snapshot, which has no build to repeat".to_owned()));
    }
    if !source.spec.lost_inputs.is_empty() {
        return Err(refuse(format!(
            "its {} were not kept; build it once more with `keep_inputs` (`--keep-inputs`)",
            source.spec.lost_inputs.join(" and ")
        )));
    }
    let Some(recipe) = source.spec.recipe.clone() else {
        return Err(refuse(format!(
            "its build was not recorded, because an earlier server built it or its instructions have more \
             than {RECIPE_BYTES_MAX} bytes; build it once more"
        )));
    };
    Ok((source, recipe, tag))
}

#[cfg(test)]
mod tests {
    use pandastack_types::SnapshotId;
    use pandastack_types::api::{BuildSecret, RegistryCredentials};

    use super::*;

    fn start() -> StartBuild {
        StartBuild {
            dockerfile: "FROM base\n".to_owned(),
            secrets: vec![BuildSecret::default()],
            registries: vec![RegistryCredentials::default()],
            ..StartBuild::default()
        }
    }

    #[test]
    fn secrets_and_files_are_kept_only_on_request() {
        let files = SnapshotId::random();
        let mut spec = BuildSpec { files: Some(files.clone()), ..BuildSpec::default() };
        record_recipe(&mut spec, start(), true);
        assert_eq!(spec.lost_inputs, [FILES, SECRETS, CREDENTIALS]);
        let recipe = spec.recipe.clone().unwrap();
        assert_eq!((recipe.secrets, recipe.registries), (Vec::new(), Vec::new()));
        assert_eq!(recipe.dockerfile, "FROM base\n");

        spec.request.keep_inputs = true;
        record_recipe(&mut spec, start(), true);
        assert_eq!((&spec.recipe, &spec.files), (&Some(start()), &Some(files)));
        assert!(spec.lost_inputs.is_empty());
        let long = StartBuild { dockerfile: "x".repeat(RECIPE_BYTES_MAX), ..start() };
        record_recipe(&mut spec, long, true);
        assert_eq!(spec.recipe, None);
        record_recipe(&mut spec, start(), false);
        assert_eq!(spec.files, None, "files that no step used");
    }
}
