//! Base of a stage: resolves its `FROM` to an earlier stage, a template, or an image.
//!
//! A name of a template always means the template. Only other names mean images of Docker Hub, so that a
//! deleted tag of a template is an error, and never another publisher's image of the same name. For the same
//! reason, a template of another workspace is written `template://WORKSPACE/NAME`: without the prefix, the
//! text means an image.

use pandastack_dockerfile::Stage;
use pandastack_store::template_ref::{TemplateRef, VersionRef};
use pandastack_store::templates::LATEST;
use pandastack_types::Error;
use pandastack_types::api::ImageConfig;

use crate::build::Build;
use crate::build_error::BuildError;
use crate::image::{self, ImageSource};
use crate::key;
use crate::log::StepLog;
use crate::machines::Origin;
use crate::stage::Head;

/// Begins the name of a template that cannot mean an image.
const TEMPLATE: &str = "template://";
/// Platforms of our machines, as `--platform` names them.
const PLATFORMS: [&str; 3] = ["linux/amd64", "linux/x86_64", "linux"];

/// The head from which a stage starts.
pub(crate) async fn begin(
    build: &Build<'_>,
    stage: &Stage,
    index: usize,
    log: &StepLog,
) -> Result<Head, BuildError> {
    let from = build.globals.expand(&stage.from)?;
    if let Some(platform) = stage.platform.as_ref().map(|text| build.globals.expand(text)).transpose()?
        && !PLATFORMS.contains(&platform.as_str())
    {
        return Err(BuildError::new(format!(
            "platform `{platform}` is not supported; machines are linux/amd64"
        )));
    }
    if let Some(other) = build.earlier(&from, index) {
        return Ok(build.head(other)?.branch());
    }
    if let Some(name) = from.strip_prefix(TEMPLATE) {
        pandastack_sandboxes::validate::template_reference(name)?;
        let found = match platform_template(build, name)? {
            None => workspace_template(build, name).await?,
            found => found,
        };
        return found.ok_or_else(|| Error::not_found("template", name).into());
    }
    if let Some(source) = ImageSource::unmistakable(&from)? {
        return image::begin(build, &source, log).await;
    }
    if let Some(head) = platform_template(build, &from)? {
        return Ok(head);
    }
    if let Some(head) = workspace_template(build, &from).await? {
        return Ok(head);
    }
    let source = ImageSource::registry(&from).map_err(|error| no_template(&from, error))?;
    image::begin(build, &source, log).await.map_err(|error| no_template(&from, error))
}

/// Adds that there is no such template either.
fn no_template(from: &str, error: BuildError) -> BuildError {
    let message = format!("template `{from}` not found; as an image of Docker Hub: {}", error.message);
    BuildError { message, ..error }
}

/// A template that comes with the platform.
fn platform_template(build: &Build<'_>, from: &str) -> Result<Option<Head>, BuildError> {
    let (name, tag) = from.split_once(':').unwrap_or((from, LATEST));
    let platform = &build.templates.platform;
    if !platform.contains(name) {
        return Ok(None);
    }
    if tag != LATEST {
        return Err(BuildError::new(format!(
            "template `{name}` comes with the platform and has no tag `{tag}`; write `FROM {name}`, or \
             `FROM docker.io/library/{from}` for the image of Docker Hub"
        )));
    }
    let asked = &build.record.spec.request;
    let size = format!("{:?} {:?}", asked.cpu, asked.memory_mb);
    let images = platform.image_keys(name).into_iter().collect::<Vec<_>>().join(" ");
    let key = key::base(&["platform", env!("CARGO_PKG_VERSION"), name, &images, &size]);
    let origin = Origin::Template(name.to_owned());
    Ok(Some(Head::new(key, ImageConfig::default(), origin, build.file.escape)))
}

/// A template of the workspace, or one that another workspace shares with it.
async fn workspace_template(build: &Build<'_>, from: &str) -> Result<Option<Head>, BuildError> {
    let Ok(reference) = from.parse::<TemplateRef>() else { return Ok(None) };
    let store = &build.templates.store;
    let reader = &build.record.workspace;
    let Some(template) = reference.find(&*build.templates.readers, reader).await? else { return Ok(None) };
    let version = reference.version(&**store, &template).await?;
    let found = version.and_then(|version| Some((version.spec.snapshot.clone()?, version)));
    let Some((snapshot, version)) = found else {
        // A template exists from the start of its first build; until one succeeds, it means nothing.
        return match store.tags(&template.id).await?.is_empty() {
            true => Ok(None),
            false if reference.workspace.is_some() => Err(reference.no_version().into()),
            false => Err(BuildError::new(format!(
                "{}. For the image of Docker Hub, write `FROM docker.io/library/{from}`",
                reference.no_version().message
            ))),
        };
    };
    let asked = &build.record.spec.request;
    let differs = |wanted: Option<u32>, own: u32| wanted.is_some_and(|wanted| wanted != own);
    if differs(asked.cpu, version.spec.cpu) || differs(asked.memory_mb, version.spec.memory_mb) {
        return Err(BuildError::new(format!(
            "template `{from}` has {} vCPU and {} MiB; templates built from it have the same size",
            version.spec.cpu, version.spec.memory_mb
        )));
    }
    let build_id = version.id.to_string();
    let key = key::base(&["template", &build_id]);
    let origin = match template.workspace == *reader {
        true => Origin::Snapshot(snapshot),
        // Only a create by the template's name reaches a snapshot of another workspace.
        false => {
            Origin::Template(TemplateRef { version: VersionRef::Build(version.id), ..reference }.to_string())
        }
    };
    let head = Head::new(key, version.spec.config, origin, build.file.escape);
    Ok(Some(Head { base_digest: Some(build_id), ..head }))
}
