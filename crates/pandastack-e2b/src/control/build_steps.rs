//! Steps of E2B's builder as steps of a native build. Pure.

use pandastack_types::api::{
    BuildCopy, BuildRun, BuildStep, ImageConfig, ReadyCheck, RegistryCredentials, StartBuild,
};
use pandastack_types::image::ImageReference;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{RestError, RestResult};
use crate::user::DEFAULT_USER;

/// Number of instructions before the client's first step: `FROM`, those that add the user to an image, the
/// shell, the user and the working directory.
pub(super) const PREAMBLE_STEPS: usize = 6;
/// The shell of E2B's builder.
const SHELL: &str = r#"SHELL ["/bin/bash", "-l", "-c"]"#;
/// E2B's images that are templates here.
const IMAGES: [(&str, &str); 2] = [("e2bdev/base", "base"), ("e2bdev/code-interpreter", "code-interpreter")];
/// Adds the user and the shell that E2B's clients expect, unless the image has them.
const ADD_USER: &str = "set -e
[ -x /bin/bash ] || apk add --no-cache bash
id -u user >/dev/null 2>&1 || if command -v useradd >/dev/null; then useradd -m -s /bin/bash user
else adduser -D -s /bin/bash user; fi
[ ! -d /etc/sudoers.d ] || echo 'user ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/user";
/// User name with which Google's registries accept the key of a service account as the password.
const GOOGLE_KEY_USER: &str = "_json_key";

/// Request body that starts a build.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StartRequest {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Registry>,
    steps: Option<Vec<Step>>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
    force: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Step {
    r#type: String,
    args: Option<Vec<String>>,
    force: Option<bool>,
}

/// Credentials for the registry of an image.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Registry {
    r#type: String,
    username: String,
    password: String,
    /// Key of a service account: JSON, as text or as it is.
    service_account_json: Value,
    aws_access_key_id: String,
    aws_secret_access_key: String,
    aws_region: String,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("type", &self.r#type).finish_non_exhaustive()
    }
}

/// Base of a build, as the request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BaseName {
    /// A template.
    Template(String),
    /// An image in a registry.
    Image(ImageReference),
}

/// Base of a build, once a template's name is looked up.
#[derive(Debug, Clone)]
pub(super) enum Base {
    /// A template that comes with the platform.
    Platform(String),
    /// A template of the workspace, with its settings.
    Workspace(String, ImageConfig),
    /// An image in a registry.
    Image(ImageReference),
}

impl Base {
    /// The first instructions. `SHELL` is repeated so that there are always [`PREAMBLE_STEPS`].
    fn preamble(&self) -> Vec<String> {
        let own = || vec![format!("USER {DEFAULT_USER}"), format!("WORKDIR /home/{DEFAULT_USER}")];
        let (from, first, last) = match self {
            // As in E2B's images.
            Self::Platform(name) => (name.clone(), Vec::new(), own()),
            // The template has its own user and directory.
            Self::Workspace(name, _) => (name.clone(), Vec::new(), Vec::new()),
            Self::Image(image) => {
                let run = format!("RUN {}", serde_json::json!(["/bin/sh", "-c", ADD_USER]));
                (image.to_string(), vec!["USER root".to_owned(), run], own())
            }
        };
        let shells = PREAMBLE_STEPS - 1 - first.len() - last.len();
        let shells = std::iter::repeat_n(SHELL.to_owned(), shells);
        std::iter::once(format!("FROM {from}")).chain(first).chain(shells).chain(last).collect()
    }

    /// The user of the first step.
    fn user(&self) -> Option<String> {
        match self {
            Self::Platform(_) | Self::Image(_) => Some(DEFAULT_USER.to_owned()),
            Self::Workspace(_, config) => config.user.clone(),
        }
    }
}

impl StartRequest {
    /// The template or image to start from.
    pub(super) fn base_name(&self) -> RestResult<BaseName> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(template) = given(&self.from_template) {
            return Ok(BaseName::Template(template));
        }
        let Some(image) = given(&self.from_image) else {
            return Err(RestError::bad_request("`fromImage` or `fromTemplate` is missing; name one"));
        };
        let name = image.split_once(':').map_or(image.as_str(), |(name, _)| name);
        let known = IMAGES.iter().find(|(theirs, _)| *theirs == name);
        if let (Some((_, ours)), None) = (known, self.registry()) {
            return Ok(BaseName::Template((*ours).to_owned()));
        }
        let image = image.parse::<ImageReference>();
        image.map(BaseName::Image).map_err(|error| RestError::bad_request(format!("`fromImage`: {error}")))
    }

    fn registry(&self) -> Option<&Registry> {
        self.from_image_registry.as_ref().filter(|registry| !registry.r#type.is_empty())
    }

    /// Credentials for an image.
    fn credentials(&self, image: &ImageReference) -> RestResult<Vec<RegistryCredentials>> {
        let Some(given) = self.registry() else { return Ok(Vec::new()) };
        let mut aws_region = None;
        let (username, password) = match given.r#type.as_str() {
            "registry" => (given.username.clone(), given.password.clone()),
            "gcp" => {
                let key = &given.service_account_json;
                let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                (GOOGLE_KEY_USER.to_owned(), key)
            }
            "aws" => {
                aws_region = Some(given.aws_region.clone());
                (given.aws_access_key_id.clone(), given.aws_secret_access_key.clone())
            }
            _ => return Err(RestError::bad_request("`fromImageRegistry` has an unknown `type`")),
        };
        let registry = image.registry.clone();
        Ok(vec![RegistryCredentials { registry, username, password, aws_region }])
    }
}

/// Translates a request to a native one.
pub(super) fn translate(wanted: StartRequest, base: &Base) -> RestResult<StartBuild> {
    let dockerfile = base.preamble().join("\n") + "\n";
    let registries = match base {
        Base::Image(image) => wanted.credentials(image)?,
        Base::Platform(_) | Base::Workspace(..) => Vec::new(),
    };
    let mut user = base.user();
    let mut steps = Vec::new();
    for (index, step) in wanted.steps.unwrap_or_default().iter().enumerate() {
        let native = native_step(step, user.as_deref())
            .map_err(|why| RestError::bad_request(format!("step {}: {why}", index + 1)))?;
        if let BuildStep::User(name) = &native {
            user = Some(name.clone());
        }
        steps.push(native);
    }
    let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    Ok(StartBuild {
        dockerfile,
        steps,
        no_cache: wanted.force.unwrap_or_default(),
        start_command: given(wanted.start_cmd),
        ready: given(wanted.ready_cmd).map(ReadyCheck::Command),
        registries,
        ..StartBuild::default()
    })
}

fn native_step(step: &Step, current_user: Option<&str>) -> Result<BuildStep, String> {
    let args = step.args.as_deref().unwrap_or_default();
    let required = |index: usize, what: &str| {
        args.get(index).filter(|arg| !arg.is_empty()).cloned().ok_or_else(|| {
            let kind: String = step.r#type.chars().take(40).collect();
            format!("{kind} has no {what}")
        })
    };
    let optional = |index: usize| args.get(index).filter(|arg| !arg.is_empty()).cloned();
    let no_cache = step.force.unwrap_or_default();
    match step.r#type.as_str() {
        "RUN" => {
            let (command, user) = (required(0, "command")?, optional(1));
            Ok(BuildStep::Run(BuildRun { command, user, no_cache, ..BuildRun::default() }))
        }
        "COPY" => Ok(BuildStep::Copy(BuildCopy {
            sources: vec![required(0, "source")?],
            dest: required(1, "destination")?,
            owner: optional(2).or_else(|| current_user.map(str::to_owned)),
            mode: optional(3),
            // The client resolves links itself, if it is asked to.
            keep_links: true,
            no_cache,
        })),
        "ENV" if !args.is_empty() && args.len().is_multiple_of(2) => {
            let pairs = args.chunks_exact(2).filter_map(|pair| match pair {
                [name, value] => Some((name.clone(), value.clone())),
                _ => None,
            });
            Ok(BuildStep::Env(pairs.collect()))
        }
        "ENV" => Err("ENV takes names and values in turn".to_owned()),
        "WORKDIR" => Ok(BuildStep::Workdir(required(0, "directory")?)),
        "USER" => Ok(BuildStep::User(required(0, "name")?)),
        other => {
            let shown: String = other.chars().take(40).collect();
            Err(format!("`{shown}` is not supported; use RUN, COPY, ENV, WORKDIR or USER"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(json: Value) -> StartRequest {
        serde_json::from_value(json).unwrap()
    }

    fn platform() -> Base {
        Base::Platform("base".to_owned())
    }

    fn image(name: &str) -> BaseName {
        BaseName::Image(name.parse().unwrap())
    }

    #[test]
    fn e2b_build_steps_become_native_steps() {
        // As the Python client sends it.
        let wanted = request(json!({
            "fromImage": "e2bdev/base", "force": false,
            "steps": [
                { "type": "COPY", "args": ["a.txt", "app/", "", ""], "force": false, "filesHash": "00" },
                { "type": "COPY", "args": ["run.sh", "/bin/run", "root", "0755"], "force": false, "filesHash": "01" },
                { "type": "RUN", "args": ["echo $A > x"], "force": false },
                { "type": "RUN", "args": ["apt-get update", "root"], "force": true },
                { "type": "ENV", "args": ["A", "1", "B", "two words"], "force": true },
                { "type": "WORKDIR", "args": ["/srv"], "force": true },
                { "type": "USER", "args": ["root"], "force": true },
                { "type": "COPY", "args": ["b", "c", "", ""], "force": true },
            ],
            "startCmd": "python3 -m http.server", "readyCmd": "curl -s localhost:8000",
        }));
        assert_eq!(wanted.base_name().unwrap(), BaseName::Template("base".to_owned()));
        let start = translate(wanted, &platform()).unwrap();
        assert_eq!(start.dockerfile.lines().count(), PREAMBLE_STEPS);
        assert!(
            start.dockerfile.starts_with("FROM base\nSHELL ") && start.dockerfile.contains("\nUSER user\n")
        );
        let steps = serde_json::to_value(&start.steps).unwrap();
        let copy = |source: &str, dest: &str, owner: &str| {
            let step = json!({ "sources": [source], "dest": dest, "owner": owner, "keep_links": true });
            json!({ "copy": step })
        };
        let mut run = copy("run.sh", "/bin/run", "root");
        run["copy"]["mode"] = "0755".into();
        let mut last = copy("b", "c", "root");
        last["copy"]["no_cache"] = true.into();
        let expect = json!([
            copy("a.txt", "app/", "user"),
            run,
            { "run": { "command": "echo $A > x" } },
            { "run": { "command": "apt-get update", "user": "root", "no_cache": true } },
            { "env": { "A": "1", "B": "two words" } },
            { "workdir": "/srv" },
            { "user": "root" },
            last,
        ]);
        assert_eq!(steps, expect);
        assert_eq!(start.start_command.as_deref(), Some("python3 -m http.server"));
        assert_eq!(start.ready, Some(ReadyCheck::Command("curl -s localhost:8000".to_owned())));
        assert!(!start.no_cache);
    }

    #[test]
    fn a_workspace_template_keeps_its_user_and_directory() {
        let config = ImageConfig { user: Some("app".to_owned()), ..ImageConfig::default() };
        let base = Base::Workspace("mine:v1".to_owned(), config);
        let wanted = json!({ "fromTemplate": "mine:v1", "force": true, "readyCmd": "",
                             "steps": [{ "type": "COPY", "args": ["a", "b", "", ""] }] });
        let start = translate(request(wanted), &base).unwrap();
        assert!(!start.dockerfile.contains("USER") && start.dockerfile.lines().count() == PREAMBLE_STEPS);
        let BuildStep::Copy(copy) = &start.steps[0] else { panic!() };
        assert_eq!((copy.owner.as_deref(), start.no_cache, start.ready), (Some("app"), true, None));
    }

    #[test]
    fn unsupported_build_steps_are_named_in_the_error() {
        let refused = |step: Value| {
            translate(request(json!({ "steps": [{ "type": "RUN", "args": ["a"] }, step] })), &platform())
                .unwrap_err()
                .message
        };
        assert_eq!(refused(json!({ "type": "RUN", "args": [] })), "step 2: RUN has no command");
        assert_eq!(
            refused(json!({ "type": "ENV", "args": ["A"] })),
            "step 2: ENV takes names and values in turn"
        );
        assert!(refused(json!({ "type": "ADD", "args": ["a"] })).contains("`ADD` is not supported"));
        assert_eq!(request(json!({})).base_name().unwrap_err().status, 400);
        assert_eq!(request(json!({ "fromImage": "Debian" })).base_name().unwrap_err().status, 400);
    }

    #[test]
    fn images_of_registries_get_the_user_of_these_clients() {
        let base_name = |json| request(json).base_name().unwrap();
        assert_eq!(base_name(json!({ "fromImage": "debian:12" })), image("docker.io/library/debian:12"));
        let login = json!({ "type": "registry", "username": "me", "password": "s3cret" });
        let private = json!({ "fromImage": "e2bdev/base", "fromImageRegistry": login });
        assert_eq!(base_name(private), image("docker.io/e2bdev/base:latest"));

        let start = |registry: Value| {
            let base = Base::Image("ghcr.io/team/app".parse().unwrap());
            translate(request(json!({ "fromImageRegistry": registry })), &base)
        };
        let plain = start(json!({})).unwrap();
        assert!(plain.dockerfile.starts_with("FROM ghcr.io/team/app:latest\nUSER root\nRUN [\"/bin/sh\","));
        assert_eq!((plain.dockerfile.lines().count(), plain.registries.len()), (PREAMBLE_STEPS, 0));
        let credentials = |registry| {
            let given = start(registry).unwrap().registries.remove(0);
            assert_eq!(given.registry, "ghcr.io");
            (given.username, given.password)
        };
        assert_eq!(credentials(login), ("me".to_owned(), "s3cret".to_owned()));
        let google = json!({ "type": "gcp", "serviceAccountJson": "{\"a\":1}" });
        assert_eq!(credentials(google), ("_json_key".to_owned(), "{\"a\":1}".to_owned()));
        let amazon = json!({
            "type": "aws", "awsAccessKeyId": "k", "awsSecretAccessKey": "s3cret", "awsRegion": "eu-central-1"
        });
        let given = start(amazon).unwrap().registries.remove(0);
        let key = (given.username.as_str(), given.password.as_str(), given.aws_region.as_deref());
        assert_eq!(key, ("k", "s3cret", Some("eu-central-1")));
        let unknown = start(json!({ "type": "azure" })).unwrap_err();
        assert_eq!(unknown.status, 400);
        assert!(
            !format!("{:?}", request(json!({ "fromImageRegistry": { "password": "s3cret" } })))
                .contains("s3")
        );
    }
}
