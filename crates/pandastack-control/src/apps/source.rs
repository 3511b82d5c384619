//! Bringing a source into the machine that builds it, and looking at it there.
//!
//! Everything happens inside the machine: archives are unpacked and repositories fetched there, by its programs, so a
//! hostile one hurts nobody else. A machine that was made from the last build still has what that installed; the old
//! source goes, the installed packages stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pandastack_detect::{DEPTH_MAX, FILES_MAX, TEXT_BYTES_MAX, View, interesting};
use pandastack_types::api::{ExecRequest, StartProcess};

use super::SOURCE_DIR;
use super::build::BuildError;
use super::git::{self, FETCH, KEEP_HOSTS, LAY_OUT, PREPARE, shown_url};
use super::log::Log;
use super::machine::{BUILD_TAG, Machine};
use super::record::{AppRecord, DeploymentRecord, Source};
use crate::app::App;
use crate::error::{ApiError, ApiResult};

/// Where an uploaded archive lies.
pub(super) const ARCHIVE: &str = "/srv/source.archive";
/// Seconds that fetching or unpacking a source may take.
const SOURCE_SECONDS_MAX: u64 = 600;
/// Earlier deployments whose commits a late push is compared with.
const TOLD_MAX: usize = 50;
/// Separates names from texts in what [`READ`] prints; no source has it in a name worth reading.
const NAME_MARK: char = '\u{1e}';
const TEXT_MARK: char = '\u{1f}';

/// Removes the old source, but not what was installed or is a cache of its builder.
const CLEAR: &str = r#"mkdir -p "$DIR" && cd "$DIR" &&
find . -mindepth 1 \( -name node_modules -o -name .venv -o -path '*/.next/cache' \) -prune -o ! -type d -exec rm -f {} + &&
find . -mindepth 1 -type d -empty ! -path '*/node_modules/*' ! -path '*/.venv/*' -delete"#;

/// Unpacks; owners and special permissions of the archive mean nothing here.
const UNPACK: &str = r#"tar --extract --file "$ARCHIVE" --directory "$DIR" --no-same-owner --no-same-permissions --delay-directory-restore"#;

/// Prints the names of the files worth knowing.
const LIST: &str = r#"cd "$DIR" && find . -mindepth 1 -maxdepth "$DEPTH" \( -name node_modules -o -name .git -o -name .venv -o -name .next \) -prune -o -type f -print | head -n "$MAX""#;
/// Prints the beginnings of some files, each after its name.
const READ: &str =
    r#"cd "$DIR" && for file in "$@"; do printf '\036%s\037' "$file"; head -c "$BYTES" -- "$file"; done"#;

/// Puts the source of a deployment into its machine. Answers the commit, if it has one.
pub(super) async fn bring(
    app: &Arc<App>,
    machine: &Machine,
    of: &AppRecord,
    deployment: &DeploymentRecord,
    from_git: bool,
    log: &Log,
) -> Result<Option<String>, BuildError> {
    let script = match from_git {
        false => format!("{CLEAR} && {UNPACK}"),
        true => format!("{CLEAR} && ( {PREPARE}\n{FETCH}\n{KEEP_HOSTS}\n{LAY_OUT} )"),
    };
    let env = variables(app, of, deployment, from_git, log).await?;
    let exit = machine.run(&step(script, env, "/", SOURCE_SECONDS_MAX), log).await?;
    if exit.exit_code != 0 || exit.timed_out {
        return Err(BuildError::step(
            if from_git { "fetching the source" } else { "unpacking the source" },
            &exit,
        ));
    }
    if !from_git {
        return Ok(None);
    }
    if git::pin_host(app, of, machine).await? {
        log.say("noted the key that the repository's host showed; from now on it must show the same").await;
    }
    let commit = machine.exec(&shell("cat /srv/commit", &[])).await?;
    Ok(Some(commit.stdout.trim().to_owned()).filter(|commit| !commit.is_empty()))
}

/// Variables of the programs that bring a source.
async fn variables(
    app: &App,
    of: &AppRecord,
    deployment: &DeploymentRecord,
    from_git: bool,
    log: &Log,
) -> Result<BTreeMap<String, String>, BuildError> {
    let mut env = BTreeMap::new();
    if from_git {
        let reference = deployment.spec.git_ref.clone().unwrap_or_else(|| of.spec.branch().to_owned());
        let address = shown_url(of.spec.git_url.as_deref().unwrap_or_default());
        log.say(format!("fetching {reference} of {address}")).await;
        env = git::variables(app, of).map_err(BuildError::Step)?;
        env.insert("GIT_REF".to_owned(), reference);
        env.insert("GIT_BRANCH".to_owned(), of.spec.branch().to_owned());
        env.insert("GIT_TOLD".to_owned(), told_before(app, of, deployment).await?);
    }
    env.insert("DIR".to_owned(), SOURCE_DIR.to_owned());
    env.insert("ARCHIVE".to_owned(), ARCHIVE.to_owned());
    Ok(env)
}

/// Commits that a push may come late after; none for what was begun in other ways.
async fn told_before(app: &App, of: &AppRecord, deployment: &DeploymentRecord) -> Result<String, BuildError> {
    if deployment.spec.trigger != "push" || of.preview_of.is_some() {
        return Ok(String::new());
    }
    let all = app.store.deployments(&of.id).await.map_err(ApiError::from)?;
    let others = all.iter().filter(|one| one.id != deployment.id && one.spec.source == Source::Git);
    let commits: Vec<_> = others.filter_map(|one| one.spec.git_commit.as_deref()).take(TOLD_MAX).collect();
    Ok(commits.join(" "))
}

/// A command of a build, followed to its end.
pub(super) fn step(script: String, env: BTreeMap<String, String>, cwd: &str, seconds: u64) -> StartProcess {
    StartProcess {
        exec: ExecRequest {
            cmd: Some(script),
            cwd: Some(cwd.to_owned()),
            env: Some(env),
            timeout_seconds: Some(seconds),
            ..ExecRequest::default()
        },
        tag: Some(BUILD_TAG.to_owned()),
        ..StartProcess::default()
    }
}

/// A short command, with variables.
pub(super) fn shell(script: &str, env: &[(&str, &str)]) -> ExecRequest {
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ExecRequest { cmd: Some(script.to_owned()), env: Some(env), ..ExecRequest::default() }
}

/// The text of a file at the root of the source in a machine, if it is there.
pub(super) async fn root_text(machine: &Machine, name: &str) -> ApiResult<Option<String>> {
    let (file, bytes) = (format!("{SOURCE_DIR}/{name}"), TEXT_BYTES_MAX.to_string());
    let read =
        shell(r#"[ ! -f "$FILE" ] || head -c "$BYTES" -- "$FILE""#, &[("FILE", &file), ("BYTES", &bytes)]);
    Ok(Some(machine.exec(&read).await?.stdout).filter(|text| !text.is_empty()))
}

/// What is known of the source in a machine.
pub(super) async fn view(machine: &Machine, directory: &str) -> ApiResult<View> {
    let (depth, max) = (DEPTH_MAX.to_string(), FILES_MAX.to_string());
    let listed = machine.exec(&shell(LIST, &[("DIR", directory), ("DEPTH", &depth), ("MAX", &max)])).await?;
    let names = listed.stdout.lines().filter_map(|line| line.strip_prefix("./"));
    let files: BTreeSet<String> = names.map(str::to_owned).collect();
    let wanted = interesting(&files);
    if wanted.is_empty() {
        return Ok(View { files, texts: BTreeMap::new() });
    }
    let bytes = TEXT_BYTES_MAX.to_string();
    let mut read = shell("", &[("DIR", directory), ("BYTES", &bytes)]);
    read.cmd = None;
    let words = ["sh", "-c", READ, "sh"].into_iter().map(str::to_owned);
    read.argv = Some(words.chain(wanted).collect());
    let printed = machine.exec(&read).await?.stdout;
    let texts = printed.split(NAME_MARK).filter_map(|part| part.split_once(TEXT_MARK));
    let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    Ok(View { files, texts })
}
