//! Stages that start from a container image, or from nothing.
//!
//! ```text
//!   registry --> machine with the build files: resolves, fetches, checks digests
//!                  |  layers                   it sees credentials and is never saved
//!                  v
//!                builder machine of `base`: unpacks; the tree replaces the machine's own files
//!                  |
//!                  v
//!                snapshot under a key of the manifest's digest; the next step gets a machine of it
//! ```
//!
//! The programs are Python scripts, which run in these machines only: `registry.py`, `ecr.py`, `layout.py`
//! and `pull.py` in the first, `unpack.py` in the second. `tests/image` has their tests.

mod fetch;

use pandastack_sandboxes::machine::{LineSink, Machine};
use pandastack_types::api::{ExecRequest, ImageConfig, StartProcess};
use pandastack_types::image::ImageReference;

use crate::build::Build;
use crate::build_error::BuildError;
use crate::context;
use crate::key;
use crate::log::StepLog;
use crate::machines::{Origin, STEP_TAG, UNPACK_WAIT};
use crate::stage::{self, Head};
use fetch::Pull;

/// The template whose machine an image is unpacked in: it has Python.
const TEMPLATE: &str = "base";
/// Name of the empty image.
const SCRATCH: &str = "scratch";
/// Begins the name of a directory of the build files with an image.
const LAYOUT: &str = "oci-layout://";
/// Directory of the builder machine in which the image is unpacked; `unpack.py` has it, too.
const WORK_DIR: &str = "/.pandastack-image";
const SCRIPT_TEXT: &str = include_str!("unpack.py");

/// An image as a `FROM` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImageSource {
    /// No files at all.
    Scratch,
    /// An image of a registry.
    Registry(ImageReference),
    /// A directory of the build files.
    Layout(String),
}

impl ImageSource {
    /// Reads a name that cannot mean a template. `None` if it can.
    pub(crate) fn unmistakable(from: &str) -> Result<Option<Self>, BuildError> {
        if from == SCRATCH {
            return Ok(Some(Self::Scratch));
        }
        if let Some(path) = from.strip_prefix(LAYOUT) {
            return Self::layout(path).map(Some);
        }
        match from.contains(['/', '@']) {
            true => Self::registry(from).map(Some),
            false => Ok(None),
        }
    }

    /// Reads a reference to an image of a registry.
    pub(crate) fn registry(from: &str) -> Result<Self, BuildError> {
        let image = from.parse::<ImageReference>();
        image.map(Self::Registry).map_err(|error| BuildError::new(error.to_string()))
    }

    fn layout(path: &str) -> Result<Self, BuildError> {
        let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.contains(&"..") || path.contains('\0') {
            return Err(BuildError::new(format!("`{LAYOUT}{path}` points outside of the build files")));
        }
        Ok(Self::Layout(parts.join("/")))
    }

    /// The whole name.
    fn name(&self) -> String {
        match self {
            Self::Scratch => SCRATCH.to_owned(),
            Self::Registry(reference) => reference.to_string(),
            Self::Layout(path) => format!("{LAYOUT}{path}"),
        }
    }

    /// The digest that it names.
    fn pinned(&self) -> Option<&str> {
        match self {
            Self::Scratch => Some(SCRATCH),
            Self::Registry(reference) => reference.digest.as_deref(),
            Self::Layout(_) => None,
        }
    }
}

/// The head of a stage that starts from an image. An image that was unpacked before is not fetched again.
pub(crate) async fn begin(
    build: &Build<'_>,
    source: &ImageSource,
    log: &StepLog,
) -> Result<Head, BuildError> {
    if matches!(source, ImageSource::Layout(_)) {
        build.note_files_used();
    }
    let pinned = source.pinned().map(|digest| image_key(build, digest));
    if let Some(key) = &pinned
        && let Some(head) = restore(build, key).await?
    {
        return Ok(of_image(head, source.pinned()));
    }
    if *source == ImageSource::Scratch {
        let (key, none) = (image_key(build, SCRATCH), ImageConfig::default());
        let head = install(build, source, None, &[key], none, log).await?;
        return Ok(of_image(head, source.pinned()));
    }
    let context = context::open(build.templates, build.record).await?;
    let pull = Pull { build, source, machine: &context };
    let found = pull.resolve(log).await?;
    log.line(&format!("{} is {}", source.name(), found.digest)).await;
    let own = image_key(build, &found.digest);
    let digest = source.pinned().unwrap_or(&found.digest);
    // The digest of a `FROM` may be that of an index: then the image has two keys.
    let mut keys: Vec<String> = pinned.into_iter().chain([own.clone()]).collect();
    keys.dedup();
    if let Some(layer) = build.cached(&own).await? {
        stage::note(build, &layer.snapshot, &keys, &layer.config).await?;
        let head = head_of(build, &keys[0], layer.config, Origin::Snapshot(layer.snapshot));
        return Ok(of_image(head, Some(digest)));
    }
    pull.fetch(log).await?;
    let layers = Some((&context, found.diff_ids.as_slice()));
    let head = install(build, source, layers, &keys, found.config, log).await?;
    Ok(of_image(head, Some(digest)))
}

/// Notes the digest of the image, which is that of its index if its name says so.
fn of_image(head: Head, digest: Option<&str>) -> Head {
    Head { base_digest: digest.map(str::to_owned), ..head }
}

/// The key of an unpacked image: its digest, the template that it is unpacked in, and the machine's size.
fn image_key(build: &Build<'_>, digest: &str) -> String {
    let images = build.templates.platform.image_keys(TEMPLATE).into_iter().collect::<Vec<_>>().join(" ");
    let asked = &build.record.spec.request;
    let size = format!("{:?} {:?}", asked.cpu, asked.memory_mb);
    key::base(&["image", env!("CARGO_PKG_VERSION"), digest, &images, &size])
}

fn head_of(build: &Build<'_>, key: &str, config: ImageConfig, origin: Origin) -> Head {
    Head::new(key.to_owned(), config, origin, build.file.escape)
}

async fn restore(build: &Build<'_>, key: &str) -> Result<Option<Head>, BuildError> {
    let layer = build.cached(key).await?;
    Ok(layer.map(|layer| head_of(build, key, layer.config, Origin::Snapshot(layer.snapshot))))
}

/// Unpacks layers in a builder machine, and keeps the machine without its own files.
async fn install(
    build: &Build<'_>,
    source: &ImageSource,
    layers: Option<(&Machine, &[String])>,
    keys: &[String],
    config: ImageConfig,
    log: &StepLog,
) -> Result<Head, BuildError> {
    let mut head = head_of(build, &keys[0], config.clone(), Origin::Template(TEMPLATE.to_owned()));
    let machine = head.machine(build).await?;
    machine.make_dir(WORK_DIR, build.time_left()?).await?;
    let script = format!("{WORK_DIR}/unpack.py");
    machine.write(&script, SCRIPT_TEXT.into()).await?;
    let archive = format!("{WORK_DIR}/layer");
    if let Some((context, sums)) = layers {
        for (index, sum) in sums.iter().enumerate() {
            log.line(&format!("unpacking layer {}/{}", index + 1, sums.len())).await;
            let fetched = fetch::layer_path(index);
            machine.write(&archive, context.read(&fetched).await?).await?;
            context.remove(&fetched, UNPACK_WAIT).await?;
            run(build, machine, &[&script, "layer", &archive, sum], None, log).await?;
        }
    }
    log.line("replacing the files of the builder machine").await;
    run(build, machine, &[&script, "install"], None, log).await?;
    log.line("saving the machine").await;
    head.save_as(build, keys, &format!("FROM {}", source.name()), &config).await?;
    // The machine has lost its names and addresses with its files; a machine of the snapshot gets them.
    head.end_machine(build).await?;
    Ok(head)
}

/// Runs one of the scripts. Its last line says why it failed.
async fn run(
    build: &Build<'_>,
    machine: &Machine,
    words: &[&str],
    stdin: Option<String>,
    log: &StepLog,
) -> Result<(), BuildError> {
    let exec = python(words, stdin, build.time_left()?.as_secs().max(1));
    let request = StartProcess { exec, tag: Some(STEP_TAG.to_owned()), ..StartProcess::default() };
    let exit = machine.run(&request, log).await?;
    match (exit.exit_code, exit.last_lines.last()) {
        (0, _) if !exit.timed_out => Ok(()),
        (1, Some(why)) if !exit.timed_out => Err(BuildError::new(why.clone())),
        _ => Err(BuildError::command(&exit)),
    }
}

/// A script with its arguments, which loads modules of its own directory and of Python only.
fn python(words: &[&str], stdin: Option<String>, seconds: u64) -> ExecRequest {
    let argv = ["python3", "-B", "-E", "-s", "-S", "-X", "utf8"].iter().chain(words);
    ExecRequest {
        argv: Some(argv.map(|word| (*word).to_owned()).collect()),
        stdin,
        user: Some("root".to_owned()),
        cwd: Some("/".to_owned()),
        timeout_seconds: Some(seconds),
        ..ExecRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(from: &str) -> Option<String> {
        ImageSource::unmistakable(from).unwrap().map(|source| source.name())
    }

    #[test]
    fn names_that_can_only_mean_an_image() {
        for (from, expect) in [
            ("scratch", Some("scratch")),
            ("oci-layout://./images//base/", Some("oci-layout://images/base")),
            ("oci-layout://.", Some("oci-layout://")),
            ("bitnami/redis", Some("docker.io/bitnami/redis:latest")),
            ("docker.io/python", Some("docker.io/library/python:latest")),
            ("base", None),
            ("python:3.12", None),
        ] {
            assert_eq!(name(from).as_deref(), expect, "{from}");
        }
        assert_eq!(ImageSource::registry("python").unwrap().name(), "docker.io/library/python:latest");
        for refused in ["oci-layout://a/../../b", "Team/App", "a@b", "https://a/b"] {
            assert!(ImageSource::unmistakable(refused).is_err(), "{refused}");
        }
    }
}
