//! The machine that holds the files of a build: what clients upload, and what is copied between stages.

use std::time::Duration;

use axum::body::Body;
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::Machines;
use pandastack_store::templates::BuildRecord;
use pandastack_types::api::ExecRequest;
use pandastack_types::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::build_error::BuildError;
use crate::machines::{self, Origin, ROLE_LABEL};
use crate::service::Templates;

/// Where uploaded files are.
pub(crate) const CONTEXT_DIR: &str = "/srv/context";
/// Where files of other stages are.
pub(crate) const STAGES_DIR: &str = "/srv/stages";
const ARCHIVE: &str = "/srv/upload";
const SCRIPT: &str = "/srv/copy.py";
const SCRIPT_TEXT: &str = include_str!("copy.py");
const ROLE: &str = "context";
/// The template of these machines: it has Python and tar.
const TEMPLATE: &str = "base";
/// How long unpacking, summing or packing files may take.
const FILES_WAIT: Duration = Duration::from_secs(900);

/// Unpacks an upload, whatever its compression. Owners do not matter: copies belong to root, or to whom
/// they say.
const UNPACK: &str =
    r#"mkdir -p "$DIR" && tar -x -f "$FILE" -C "$DIR" $OWNER 2>&1; code=$?; rm -f "$FILE"; exit $code"#;

/// What `copy.py` is asked.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Selection {
    /// Directory that sources are below.
    pub(crate) root: String,
    /// That is the build context, where `.dockerignore` counts.
    pub(crate) is_context: bool,
    /// Paths and patterns.
    pub(crate) sources: Vec<String>,
    /// Files whose content is in the Dockerfile.
    pub(crate) heredocs: Vec<(String, String)>,
    /// Patterns of what is left out.
    pub(crate) exclude: Vec<String>,
    /// Keep the directories above sources.
    pub(crate) parents: bool,
    /// Keep owners.
    pub(crate) preserve: bool,
    /// Permissions of everything, if not their own.
    pub(crate) mode: Option<u32>,
    /// The destination is a directory.
    pub(crate) dest_is_dir: bool,
    /// Name of a single file whose destination is not a directory.
    pub(crate) file_name: String,
    /// Where archives go; empty to compute the sum.
    pub(crate) out: String,
}

/// What it answers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Selected {
    error: Option<String>,
    /// Sum of everything that is copied.
    pub(crate) sum: String,
    /// Archives, one for each owner.
    pub(crate) archives: Vec<Archive>,
    /// A directory is copied, so the destination becomes one.
    pub(crate) is_tree: bool,
}

/// What one owner has.
#[derive(Debug, Deserialize)]
pub(crate) struct Archive {
    /// `uid:gid`; empty where owners are not kept.
    pub(crate) owner: String,
    /// Where it is.
    pub(crate) path: String,
}

/// The context machine of a build, which is made on first use.
pub(crate) async fn open(templates: &Templates, build: &BuildRecord) -> Result<Machine> {
    let all = templates.sandboxes.owned_by(&machines::owner(&build.id)).await?;
    let has_role = |role: Option<&String>| role.is_some_and(|role| role == ROLE);
    if let Some(record) = all.into_iter().find(|record| has_role(record.metadata.get(ROLE_LABEL))) {
        return templates.sandboxes.open(&build.workspace, &record.id).await;
    }
    let mut unsized_build = build.clone();
    (unsized_build.spec.request.cpu, unsized_build.spec.request.memory_mb) = (None, None);
    let origin = Origin::Template(TEMPLATE.to_owned());
    let machine = machines::create(templates, &unsized_build, &origin, ROLE).await?;
    machine.write(SCRIPT, SCRIPT_TEXT.into()).await?;
    machine.make_dir(CONTEXT_DIR, FILES_WAIT).await?;
    Ok(machine)
}

/// Adds an archive to the files of a build.
pub(crate) async fn add(machine: &Machine, archive: Body) -> Result<()> {
    machine.write(ARCHIVE, archive).await?;
    let env = [("DIR", CONTEXT_DIR), ("FILE", ARCHIVE), ("OWNER", "--no-same-owner")];
    let done = machine.exec_within(&shell(UNPACK, &env), FILES_WAIT).await?;
    match done.exit_code {
        0 => Ok(()),
        _ => Err(Error::bad_request(format!(
            "the build files cannot be unpacked: {}; send a tar archive, compressed or not, with relative \
             paths",
            last_line(&done.stdout)
        ))),
    }
}

/// Copies a path of another stage's machine here, with its owners; returns the directory it is below.
pub(crate) async fn bring(
    machine: &Machine,
    stage: &Machine,
    index: usize,
    path: &str,
) -> Result<String, BuildError> {
    let Some(entry) = machines::stat(stage, path).await? else {
        return Err(BuildError::new(format!("`{path}` is not in the stage that is copied from")));
    };
    let root = format!("{STAGES_DIR}/{index}");
    // A file's archive has just its name; a directory's, what is below it.
    let below = if entry.is_dir { path } else { path.rsplit_once('/').map_or("/", |(above, _)| above) };
    machine.write(ARCHIVE, machines::pack(stage, path).await?).await?;
    let directory = format!("{root}{below}");
    let env = [("DIR", directory.as_str()), ("FILE", ARCHIVE), ("OWNER", "--same-owner -p")];
    let done = machine.exec_within(&shell(UNPACK, &env), FILES_WAIT).await?;
    match done.exit_code {
        0 => Ok(root),
        _ => Err(BuildError::new(format!(
            "`{path}` cannot be copied from its stage: {}",
            last_line(&done.stdout)
        ))),
    }
}

/// Sums or packs what a copy selects.
pub(crate) async fn select(machine: &Machine, selection: &Selection) -> Result<Selected, BuildError> {
    let input = serde_json::to_string(selection).map_err(|error| BuildError::new(error.to_string()))?;
    let argv = ["python3", "-I", "-S", SCRIPT].map(str::to_owned).to_vec();
    let request = ExecRequest {
        argv: Some(argv),
        stdin: Some(input),
        timeout_seconds: Some(FILES_WAIT.as_secs()),
        ..ExecRequest::default()
    };
    let done = machine.exec_within(&request, FILES_WAIT).await?;
    let selected: Selected = serde_json::from_str(done.stdout.trim())
        .map_err(|_| BuildError::new(format!("the files cannot be read: {}", last_line(&done.stderr))))?;
    match selected.error {
        Some(error) => Err(BuildError::new(error)),
        None => Ok(selected),
    }
}

fn shell(script: &str, env: &[(&str, &str)]) -> ExecRequest {
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ExecRequest {
        cmd: Some(script.to_owned()),
        env: Some(env),
        timeout_seconds: Some(FILES_WAIT.as_secs()),
        ..ExecRequest::default()
    }
}

fn last_line(text: &str) -> String {
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("no reason given")
        .chars()
        .take(300)
        .collect()
}
