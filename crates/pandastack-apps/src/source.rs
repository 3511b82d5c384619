//! Fetches a source into the machine that builds it, and inspects it there.
//!
//! All work happens inside the machine: its programs unpack archives and fetch repositories, so
//! that a hostile one can hurt nothing else. A machine that was made from the last build still has
//! what that installed; the old source goes, the installed packages stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pandastack_detect::{DEPTH_MAX, FILES_MAX, TEXT_BYTES_MAX, View, interesting};
use pandastack_store::apps::record::{AppRecord, DeploymentRecord, Source};
use pandastack_types::{Error, Result};

use crate::build_error::BuildError;
use crate::command::{shell, step};
use crate::git::{self, FETCH, KEEP_HOSTS, LAY_OUT, PREPARE, shown_url};
use crate::log::Log;
use crate::machine::{Machine, SOURCE_DIR};
use crate::state::Apps;

/// Path of an uploaded archive.
pub(crate) const ARCHIVE: &str = "/srv/source.archive";
/// Seconds that fetching or unpacking a source may take.
const SOURCE_SECONDS_MAX: u64 = 600;
/// Earlier deployments whose commits a late push is compared with.
const TOLD_MAX: usize = 50;
/// Separates names from texts in what [`READ`] prints; no source has it in a name worth reading.
const NAME_MARK: char = '\u{1e}';
const TEXT_MARK: char = '\u{1f}';

/// Removes the old source, but not installed packages and build caches.
const CLEAR: &str = r#"mkdir -p "$DIR" && cd "$DIR" &&
find . -mindepth 1 \( -name node_modules -o -name .venv -o -path '*/.next/cache' \) -prune -o ! -type d -exec rm -f {} + &&
find . -mindepth 1 -type d -empty ! -path '*/node_modules/*' ! -path '*/.venv/*' -delete"#;

/// Unpacks; owners and special permissions of the archive mean nothing here. Histories stay out of the source, as those of fetched ones
/// do: they may have what was removed from it, and the addresses of repositories with their passwords.
const UNPACK: &str = r#"tar --extract --file "$ARCHIVE" --directory "$DIR" --no-same-owner --no-same-permissions --delay-directory-restore --exclude=.git"#;
/// Prefixes of tar's final lines, which follow its error message.
const TAR_ENDS: [&str; 4] = [
    "tar: Exiting with failure",
    "tar: Error is not recoverable",
    "tar: Child returned",
    "tar: Skipping to next header",
];

/// Prints the names of the files worth knowing.
const LIST: &str = r#"cd "$DIR" && find . -mindepth 1 -maxdepth "$DEPTH" \( -name node_modules -o -name .git -o -name .venv -o -name .next \) -prune -o -type f -print | head -n "$MAX""#;
/// Prints the beginnings of some files, each after its name.
const READ: &str =
    r#"cd "$DIR" && for file in "$@"; do printf '\036%s\037' "$file"; head -c "$BYTES" -- "$file"; done"#;

/// Puts the source of a deployment into its machine. Returns the commit, if it has one.
pub(crate) async fn fetch(
    apps: &Arc<Apps>,
    machine: &Machine,
    app: &AppRecord,
    deployment: &DeploymentRecord,
    from_git: bool,
    log: &Log,
) -> Result<Option<String>, BuildError> {
    let script = match from_git {
        false => format!("{CLEAR} && {UNPACK}"),
        true => format!("{CLEAR} && ( {PREPARE}\n{FETCH}\n{KEEP_HOSTS}\n{LAY_OUT} )"),
    };
    let env = variables(apps, app, deployment, from_git, log).await?;
    let exit = machine.run(&step(script, env, "/", SOURCE_SECONDS_MAX), log).await?;
    if exit.exit_code != 0 || exit.timed_out {
        return Err(match (from_git, cause(&exit.last_lines)) {
            // Git's output stays in the log: errors of these deployments are also sent to the
            // repository's host.
            (true, _) => BuildError::step("fetching the source", &exit),
            (false, None) => BuildError::step("unpacking the source", &exit),
            (false, Some(cause)) => BuildError::step_because("unpacking the source", cause),
        });
    }
    if !from_git {
        return Ok(None);
    }
    if git::pin_host(apps, app, machine).await? {
        log.write("recorded the SSH host key of the Git host; later fetches require the same key").await;
    }
    let commit = machine.exec(&shell("cat /srv/commit", &[])).await?;
    Ok(Some(commit.stdout.trim().to_owned()).filter(|commit| !commit.is_empty()))
}

/// The reason that tar gave for its failure, from its last lines.
fn cause(last_lines: &[String]) -> Option<&str> {
    let is_end = |line: &str| line.trim().is_empty() || TAR_ENDS.iter().any(|end| line.starts_with(end));
    last_lines.iter().map(String::as_str).rfind(|line| !is_end(line))
}

/// Variables of the programs that bring a source.
async fn variables(
    apps: &Apps,
    app: &AppRecord,
    deployment: &DeploymentRecord,
    from_git: bool,
    log: &Log,
) -> Result<BTreeMap<String, String>, BuildError> {
    let mut env = BTreeMap::new();
    if from_git {
        let reference = deployment.spec.git_ref.clone().unwrap_or_else(|| app.spec.branch().to_owned());
        let address = shown_url(app.spec.git_url.as_deref().unwrap_or_default());
        log.write(format!("fetching {reference} of {address}")).await;
        env = git::variables(apps, app).map_err(BuildError::Step)?;
        env.insert("GIT_REF".to_owned(), reference);
        env.insert("GIT_BRANCH".to_owned(), app.spec.branch().to_owned());
        let (told, is_left) = earlier_commits(apps, app, deployment).await?;
        env.insert("GIT_TOLD".to_owned(), told);
        env.insert("GIT_LEFT".to_owned(), if is_left { "1" } else { "" }.to_owned());
    }
    env.insert("DIR".to_owned(), SOURCE_DIR.to_owned());
    env.insert("ARCHIVE".to_owned(), ARCHIVE.to_owned());
    Ok(env)
}

/// Commits that a push may have arrived after, none for deployments started in other ways; and
/// whether recorded pushes moved the branch away from the pushed commit.
async fn earlier_commits(
    apps: &Apps,
    app: &AppRecord,
    deployment: &DeploymentRecord,
) -> Result<(String, bool), BuildError> {
    if deployment.spec.trigger != "push" || app.preview_of.is_some() {
        return Ok((String::new(), false));
    }
    let all = apps.store.deployments(&app.id).await.map_err(Error::from)?;
    Ok((may_be_at(&all, deployment).join(" "), is_left(&all, deployment)))
}

/// Commits that the branch may be at if a push arrived late, given all deployments, newest first:
/// commits that recorded pushes moved the branch to more often than away from. A host that still
/// shows a commit that the branch has left, such as the start of this push, may lag behind its own
/// deliveries; the pushed commit is then fetched by its id, so it is deployed or fails, and is not
/// lost.
fn may_be_at<'a>(all: &'a [DeploymentRecord], push: &DeploymentRecord) -> Vec<&'a str> {
    let moves = BranchMoves::of(all);
    let mut seen: BTreeSet<_> = push.spec.git_ref.as_deref().into_iter().collect();
    let fetched = all.iter().filter(|one| one.spec.source == Source::Git);
    let commits = fetched.filter_map(|one| match branch_move(one) {
        Some((_, after)) => Some(after),
        None => one.spec.git_commit.as_deref(),
    });
    commits.filter(|commit| seen.insert(*commit) && moves.may_be_at(commit)).take(TOLD_MAX).collect()
}

/// Returns whether recorded pushes moved the branch away from this commit as often as they moved it
/// there. For any other push it is unknown whether it is late: pushes in between may have asked to
/// be skipped, and were not recorded.
fn is_left(all: &[DeploymentRecord], push: &DeploymentRecord) -> bool {
    push.spec.git_ref.as_deref().is_some_and(|commit| !BranchMoves::of(all).may_be_at(commit))
}

/// Moves of the branch by pushes: from one commit to another.
struct BranchMoves<'a>(Vec<(Option<&'a str>, &'a str)>);

impl<'a> BranchMoves<'a> {
    fn of(all: &'a [DeploymentRecord]) -> Self {
        let mut moves: Vec<_> = all.iter().filter_map(branch_move).collect();
        // Hosts repeat a delivery when a user tests the webhook, or has two webhooks.
        moves.dedup();
        Self(moves)
    }

    fn may_be_at(&self, commit: &str) -> bool {
        let came = self.0.iter().filter(|(_, after)| *after == commit).count();
        let left = self.0.iter().filter(|(before, _)| *before == Some(commit)).count();
        // A commit that was deployed in another way was found there at least once.
        came.max(1) > left
    }
}

/// The move of the branch by a push; its target is the pushed commit, which a late push may not
/// have built.
fn branch_move(one: &DeploymentRecord) -> Option<(Option<&str>, &str)> {
    let is_push = one.spec.source == Source::Git && one.spec.trigger == "push";
    Some((one.spec.git_before.as_deref(), one.spec.git_ref.as_deref().filter(|_| is_push)?))
}

/// The text of a file at the root of the source in a machine, if it exists.
pub(crate) async fn root_text(machine: &Machine, name: &str) -> Result<Option<String>> {
    let (file, bytes) = (format!("{SOURCE_DIR}/{name}"), TEXT_BYTES_MAX.to_string());
    let read =
        shell(r#"[ ! -f "$FILE" ] || head -c "$BYTES" -- "$FILE""#, &[("FILE", &file), ("BYTES", &bytes)]);
    Ok(Some(machine.exec(&read).await?.stdout).filter(|text| !text.is_empty()))
}

/// Collects the file names and texts of the source in a machine.
pub(crate) async fn view(machine: &Machine, directory: &str) -> Result<View> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::AppSpec;
    use pandastack_store::clock::now;

    fn deployed(trigger: &str, commit: &str) -> DeploymentRecord {
        let workspace = pandastack_types::WorkspaceId::default_workspace();
        let app = AppRecord::new(workspace, "a".to_owned(), AppSpec::default(), now());
        let mut one = DeploymentRecord::queued(&app, trigger, now());
        one.spec.git_commit = Some(commit.to_owned());
        one
    }

    fn push((before, after): (&str, &str)) -> DeploymentRecord {
        let mut one = deployed("push", after);
        one.spec.git_before = Some(before.to_owned()).filter(|before| !before.is_empty());
        one.spec.git_ref = Some(after.to_owned());
        one
    }

    /// Checks after which commits the last of these pushes, in order of delivery, may have arrived
    /// late.
    #[track_caller]
    fn check(told: &[(&str, &str)], expect: &[&str]) {
        let all: Vec<_> = told.iter().rev().map(|one| push(*one)).collect();
        assert_eq!(may_be_at(&all, &all[0]), expect, "{told:?}");
    }

    fn run(directory: &std::path::Path, script: &str) -> std::process::Output {
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-ec", script]).current_dir(directory);
        shell.env("ARCHIVE", "made.tar").env("DIR", "out").output().unwrap()
    }

    #[test]
    fn git_directories_are_not_unpacked() {
        let place = tempfile::tempdir().unwrap();
        let made = "mkdir -p in/.git/objects in/sub/.git in/my.git out
            touch in/.git/config in/.git/objects/1 in/sub/.git/config in/.gitignore in/my.git/kept in/sub/kept";
        assert!(run(place.path(), made).status.success());
        for packed in [".", ".git .gitignore my.git sub"] {
            let script = format!(
                "tar -cf made.tar -C in {packed}; {UNPACK}; cd out; find . -type f | sort; rm -rf ./* ./.git*"
            );
            let ran = run(place.path(), &script);
            let found = String::from_utf8(ran.stdout).unwrap();
            assert_eq!(
                found,
                "./.gitignore\n./my.git/kept\n./sub/kept\n",
                "{packed}: {ran:?}",
                ran = ran.stderr
            );
        }
    }

    #[test]
    fn unpack_failures_report_the_first_error_of_tar() {
        let place = tempfile::tempdir().unwrap();
        for (made, expect) in [
            ("echo nonsense > made.tar", "tar: This does not look like a tar archive"),
            ("yes nonsense | head -c 2000 > made.tar", "tar: This does not look like a tar archive"),
            ("echo nonsense | gzip | head -c 12 > made.tar", "gzip: stdin: unexpected end of file"),
        ] {
            let ran = run(place.path(), &format!("mkdir -p out; {made}; {UNPACK}"));
            let printed = String::from_utf8(ran.stderr).unwrap();
            let lines: Vec<_> = printed.lines().map(str::to_owned).collect();
            assert_eq!((ran.status.success(), cause(&lines)), (false, Some(expect)), "{printed}");
        }
        assert_eq!(cause(&[]), None);
    }

    #[test]
    fn pushes_delivered_in_order_are_not_late() {
        check(&[("0", "a")], &[]);
        check(&[("0", "a"), ("a", "b")], &[]);
        check(&[("0", "a"), ("a", "b"), ("b", "c")], &[]);
        check(&[("0", "a"), ("0", "a"), ("a", "b")], &[]);
        // Set back, and forth again.
        check(&[("0", "a"), ("a", "b"), ("b", "a")], &[]);
        check(&[("0", "a"), ("a", "b"), ("b", "a"), ("a", "c")], &[]);
        check(&[("0", "a"), ("a", "b"), ("b", "a"), ("a", "b")], &[]);
        let all = [push(("a", "b")), deployed("api", "a"), deployed("api", "a")];
        assert_eq!(may_be_at(&all, &all[0]), [""; 0], "also if that was deployed by hand");
    }

    #[test]
    fn a_push_delivered_after_its_successor_is_late() {
        check(&[("a", "b"), ("0", "a")], &["b"]);
        check(&[("0", "a"), ("b", "c"), ("a", "b")], &["c"]);
        check(&[("b", "c"), ("a", "b"), ("0", "a")], &["c"]);
        // Their origin is not known, or a push between them was not delivered.
        check(&[("0", "b"), ("0", "a")], &["b"]);
        check(&[("", "b"), ("", "a")], &["b"]);
        check(&[("0", "a"), ("x", "c"), ("a", "b")], &["c"]);
        let all = [push(("0", "a")), deployed("poll", "b")];
        assert_eq!(may_be_at(&all, &all[0]), ["b"], "it was found there");
    }

    #[test]
    fn a_branch_reset_delivered_out_of_order_is_detected() {
        check(&[("0", "a"), ("b", "a"), ("a", "b")], &["a"]);
        check(&[("0", "a"), ("c", "a"), ("b", "c"), ("a", "b")], &["a"]);
    }

    #[test]
    fn a_push_is_stale_only_if_its_branch_is_known_to_have_moved_on() {
        let check = |told: &[(&str, &str)], expect: bool| {
            let all: Vec<_> = told.iter().rev().map(|one| push(*one)).collect();
            assert_eq!(is_left(&all, &all[0]), expect, "{told:?}");
        };
        check(&[("a", "b"), ("0", "a")], true);
        check(&[("0", "a"), ("b", "c"), ("a", "b")], true);
        check(&[("0", "a"), ("b", "a"), ("a", "b")], true);
        // A push from `a` to `b` said to be skipped, and the host still shows `a`.
        check(&[("0", "a"), ("b", "c")], false);
        check(&[("0", "a"), ("x", "c"), ("a", "b")], false);
        check(&[("0", "a"), ("a", "b"), ("b", "a"), ("x", "b")], false);
    }

    #[test]
    fn commits_built_for_a_late_push_are_not_branch_heads() {
        let mut late = push(("0", "a"));
        late.spec.git_commit = Some("b".to_owned());
        let all = [push(("b", "c")), late, push(("a", "b"))];
        assert_eq!(may_be_at(&all, &all[0]), [""; 0]);
        let mut rolled_back = deployed("rollback", "e");
        rolled_back.spec.source = Source::Artifact;
        let all = [push(("0", "a")), rolled_back];
        assert_eq!(may_be_at(&all, &all[0]), [""; 0], "it tells nothing of the branch");
    }
}
