//! Finds and fetches an image, in the machine that holds the files of a build.

use std::time::Duration;

use pandastack_sandboxes::machine::{LineSink, Machine};
use pandastack_store::clock::now;
use pandastack_types::api::{ImageConfig, RegistryCredentials};
use pandastack_types::image::registry_name;
use serde::{Deserialize, Serialize};

use super::{ImageSource, python, run};
use crate::build::Build;
use crate::build_error::BuildError;
use crate::context::CONTEXT_DIR;
use crate::log::StepLog;

/// Directory of the scripts, which import each other.
const SCRIPT_DIR: &str = "/srv/pull";
const SCRIPT: &str = "/srv/pull/pull.py";
const SCRIPTS: [(&str, &str); 4] = [
    ("ecr.py", include_str!("ecr.py")),
    ("registry.py", include_str!("registry.py")),
    ("layout.py", include_str!("layout.py")),
    ("pull.py", include_str!("pull.py")),
];
/// Directory of fetched layers.
const OUT_DIR: &str = "/srv/image";
/// Longest time for a registry to describe an image, with all its retries.
const RESOLVE_WAIT: Duration = Duration::from_secs(600);

/// The path of a fetched layer.
pub(super) fn layer_path(index: usize) -> String {
    format!("{OUT_DIR}/{index}")
}

/// The request to `pull.py`.
#[derive(Debug, Serialize)]
struct PullRequest<'a> {
    action: &'a str,
    /// The whole name, for messages.
    name: String,
    out: &'a str,
    #[serde(flatten)]
    place: Place<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Place<'a> {
    Registry {
        registry: &'a str,
        host: &'a str,
        repository: &'a str,
        /// Tag or digest.
        reference: &'a str,
        credentials: Option<&'a RegistryCredentials>,
        /// Whether the registry is reached over HTTP instead of HTTPS.
        plain_http: bool,
    },
    Layout {
        layout: String,
    },
}

/// The response of `pull.py` to `resolve`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FoundImage {
    error: Option<String>,
    /// Whether the registry did not answer.
    unreachable: bool,
    /// Digest of the manifest for our machines.
    pub(super) digest: String,
    /// Process settings of the image.
    pub(super) config: ImageConfig,
    /// Sums of the uncompressed layers.
    pub(super) diff_ids: Vec<String>,
}

/// One image to find.
pub(super) struct Pull<'a> {
    pub(super) build: &'a Build<'a>,
    pub(super) source: &'a ImageSource,
    /// The machine that holds the files of the build.
    pub(super) machine: &'a Machine,
}

impl Pull<'_> {
    /// The input of `pull.py`, with the credentials for its registry.
    fn request(&self, action: &str) -> Result<String, BuildError> {
        let place = match self.source {
            ImageSource::Registry(image) => {
                let (registries, plain) = (&self.build.start.registries, &self.build.start.plain_http);
                let is_its = |one: &&RegistryCredentials| registry_name(&one.registry) == image.registry;
                Place::Registry {
                    registry: &image.registry,
                    host: image.host(),
                    repository: &image.repository,
                    reference: image.digest.as_deref().or(image.tag.as_deref()).unwrap_or_default(),
                    credentials: registries.iter().find(is_its),
                    plain_http: plain.iter().any(|one| registry_name(one) == image.registry),
                }
            }
            ImageSource::Layout(path) => Place::Layout { layout: format!("{CONTEXT_DIR}/{path}") },
            ImageSource::Scratch => return Err(BuildError::new("`scratch` is not fetched")),
        };
        let request = PullRequest { action, name: self.source.name(), out: OUT_DIR, place };
        serde_json::to_string(&request).map_err(|error| BuildError::new(error.to_string()))
    }

    /// Finds the image, and checks that machines can run it.
    pub(super) async fn resolve(&self, log: &StepLog) -> Result<FoundImage, BuildError> {
        let wait = RESOLVE_WAIT.min(self.build.time_left()?);
        self.machine.make_dir(SCRIPT_DIR, wait).await?;
        for (name, text) in SCRIPTS {
            self.machine.write(&format!("{SCRIPT_DIR}/{name}"), text.into()).await?;
        }
        let began = now();
        let exec = python(&[SCRIPT], Some(self.request("resolve")?), wait.as_secs().max(1));
        let done = self.machine.exec_within(&exec, wait).await?;
        let found: FoundImage = serde_json::from_str(done.stdout.trim()).map_err(|_| {
            let why = done.stderr.lines().rev().find(|line| !line.trim().is_empty());
            BuildError::new(format!(
                "the image cannot be examined: {}",
                why.unwrap_or("no reason was reported")
            ))
        })?;
        match found.error {
            Some(why) => {
                if found.unreachable {
                    self.log_refused(began, log).await;
                }
                Err(BuildError::new(why))
            }
            None => Ok(found),
        }
    }

    /// Fetches the layers of the image that was found.
    pub(super) async fn fetch(&self, log: &StepLog) -> Result<(), BuildError> {
        let began = now();
        let fetched = run(self.build, self.machine, &[SCRIPT], Some(self.request("fetch")?), log).await;
        if fetched.is_err() {
            self.log_refused(began, log).await;
        }
        fetched
    }

    /// Logs connections that the network policy refused.
    async fn log_refused(&self, began: jiff::Timestamp, log: &StepLog) {
        if matches!(self.source, ImageSource::Registry(_)) {
            for line in self.machine.refused_connections(began).await {
                log.line(&line).await;
            }
        }
    }
}
