//! Steps of E2B's builder as steps of a native build. Pure.

use pandastack_types::api::{BuildCopy, BuildRun, BuildStep, ImageConfig, ReadyCheck, StartBuild};
use serde::Deserialize;
use serde_json::Value;

use super::json::is_empty;
use crate::error::{RestError, RestResult};
use crate::user::DEFAULT_USER;

/// Instructions before the client's first step: `FROM`, the shell, the user and the directory.
pub(super) const PREAMBLE_STEPS: usize = 4;
/// The shell of E2B's builder.
const SHELL: &str = r#"SHELL ["/bin/bash", "-l", "-c"]"#;
/// E2B's images that are templates here.
const IMAGES: [(&str, &str); 2] = [("e2bdev/base", "base"), ("e2bdev/code-interpreter", "code-interpreter")];

/// Request body that starts a build.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StartRequest {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Value>,
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

/// The base of a build.
#[derive(Debug, Clone)]
pub(super) struct Base {
    /// Name of the template.
    pub(super) from: String,
    /// Settings of a template of the workspace; `None` for a template of the platform.
    pub(super) config: Option<ImageConfig>,
}

impl StartRequest {
    /// The template to start from.
    pub(super) fn base_name(&self) -> RestResult<String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(template) = given(&self.from_template) {
            return Ok(template);
        }
        let Some(image) = given(&self.from_image) else {
            return Err(RestError::bad_request("`fromImage` or `fromTemplate` is missing; name one"));
        };
        let name = image.split_once(':').map_or(image.as_str(), |(name, _)| name);
        let known = IMAGES.iter().find(|(theirs, _)| *theirs == name);
        match known {
            Some((_, ours)) if self.from_image_registry.as_ref().is_none_or(is_empty) => {
                Ok((*ours).to_owned())
            }
            _ => Err(RestError::unsupported("images of registries are")),
        }
    }
}

/// The native request.
pub(super) fn translate(wanted: StartRequest, base: &Base) -> RestResult<StartBuild> {
    let (own_user, own_workdir) = match &base.config {
        // The defaults of E2B's images.
        None => (format!("USER {DEFAULT_USER}"), format!("WORKDIR /home/{DEFAULT_USER}")),
        // The template has its own settings. The shell instruction, repeated, keeps the number of
        // instructions.
        Some(_) => (SHELL.to_owned(), SHELL.to_owned()),
    };
    let dockerfile = format!("FROM {}\n{SHELL}\n{own_user}\n{own_workdir}\n", base.from);
    let mut user = match &base.config {
        None => Some(DEFAULT_USER.to_owned()),
        Some(config) => config.user.clone(),
    };
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
            Ok(BuildStep::Run(BuildRun { command: required(0, "command")?, user: optional(1), no_cache }))
        }
        "COPY" => Ok(BuildStep::Copy(BuildCopy {
            sources: vec![required(0, "source")?],
            dest: required(1, "destination")?,
            owner: optional(2).or_else(|| current_user.map(str::to_owned)),
            mode: optional(3),
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
        Base { from: "base".to_owned(), config: None }
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
        assert_eq!(wanted.base_name().unwrap(), "base");
        let start = translate(wanted, &platform()).unwrap();
        assert_eq!(start.dockerfile.lines().count(), PREAMBLE_STEPS);
        assert!(
            start.dockerfile.starts_with("FROM base\nSHELL ") && start.dockerfile.contains("\nUSER user\n")
        );
        let steps = serde_json::to_value(&start.steps).unwrap();
        let copy = |source: &str, dest: &str, owner: &str| json!({ "copy": { "sources": [source], "dest": dest, "owner": owner } });
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
        let base = Base { from: "mine:v1".to_owned(), config: Some(config) };
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
        assert_eq!(request(json!({ "fromImage": "debian:12" })).base_name().unwrap_err().status, 501);
        assert_eq!(request(json!({})).base_name().unwrap_err().status, 400);
        let private = json!({ "fromImage": "e2bdev/base", "fromImageRegistry": { "type": "registry" } });
        assert_eq!(request(private).base_name().unwrap_err().status, 501);
    }
}
