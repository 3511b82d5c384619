//! The machine that holds the files of a build: uploads of clients, and copies between stages.

use std::time::Duration;

use axum::body::Body;
use pandastack_sandboxes::command;
use pandastack_sandboxes::machine::Machine;
use pandastack_store::SandboxRecord;
use pandastack_store::templates::BuildRecord;
use pandastack_types::api::{ExecRequest, PatchLifecycle};
use pandastack_types::{Error, Result, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::build_error::BuildError;
use crate::machines::{self, Origin, ROLE_LABEL};
use crate::prune;
use crate::service::Templates;

/// Directory of uploaded files.
pub(crate) const CONTEXT_DIR: &str = "/srv/context";
/// Directory of files from other stages.
pub(crate) const STAGES_DIR: &str = "/srv/stages";
const ARCHIVE: &str = "/srv/upload";
const SCRIPT: &str = "/srv/copy.py";
const SCRIPT_TEXT: &str = include_str!("copy.py");
const ROLE: &str = "context";
/// The template of these machines: it has Python and tar.
const TEMPLATE: &str = "base";
/// Longest time for unpacking, summing or packing files.
const FILES_WAIT: Duration = Duration::from_secs(900);
/// Longest list of directories. The script refuses to copy more.
const DIRECTORIES_BYTES_MAX: usize = 8 << 20;

/// Unpacks an upload with any compression. Owners in the archive are ignored: `COPY` sets the owner.
const UNPACK: &str =
    r#"mkdir -p "$DIR" && tar -x -f "$FILE" -C "$DIR" $OWNER 2>&1; code=$?; rm -f "$FILE"; exit $code"#;

/// The request to `copy.py`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Selection {
    /// Directory that sources are below.
    pub(crate) root: String,
    /// Whether these files are the build context, where `.dockerignore` applies.
    pub(crate) is_context: bool,
    /// Paths and patterns.
    pub(crate) sources: Vec<String>,
    /// Files to fetch.
    pub(crate) urls: Vec<String>,
    /// Digest of the one that is fetched.
    pub(crate) checksum: Option<String>,
    /// Archives are unpacked.
    pub(crate) unpack: bool,
    /// Directory for what is fetched and unpacked.
    pub(crate) scratch: String,
    /// Files whose content is in the Dockerfile.
    pub(crate) heredocs: Vec<(String, String)>,
    /// Patterns of excluded files.
    pub(crate) exclude: Vec<String>,
    /// Keep the directories above sources.
    pub(crate) parents: bool,
    /// Copy sources that are links as links.
    pub(crate) keep_links: bool,
    /// Keep owners.
    pub(crate) preserve: bool,
    /// Permissions of everything, if not their own.
    pub(crate) mode: Option<u32>,
    /// The destination is a directory.
    pub(crate) dest_is_dir: bool,
    /// Name of a single file whose destination is not a directory.
    pub(crate) file_name: String,
    /// Directory for archives; empty to only compute the sum.
    pub(crate) out: String,
}

/// The response of `copy.py`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SelectedFiles {
    error: Option<String>,
    /// Sum of everything that is copied.
    pub(crate) sum: String,
    /// Archives of one owner each, in the order to unpack.
    pub(crate) archives: Vec<Archive>,
    /// File that lists the directories, parents first; empty if there are none.
    pub(crate) directories: String,
    /// Files with set-id bits, which unpacking drops: paths in the archives, and modes.
    pub(crate) special: Vec<(String, u32)>,
    /// A directory is copied, so the destination becomes one.
    pub(crate) is_tree: bool,
}

/// A directory that is copied.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct CopiedDir {
    /// Path in the archives.
    pub(crate) path: String,
    pub(crate) mode: u32,
    /// `uid:gid`; empty if owners are not kept.
    pub(crate) owner: String,
}

/// The files of one owner.
#[derive(Debug, Deserialize)]
pub(crate) struct Archive {
    /// `uid:gid`; empty if owners are not kept.
    pub(crate) owner: String,
    /// Path of the archive.
    pub(crate) path: String,
}

/// The record of a build's context machine.
async fn find(templates: &Templates, build: &BuildRecord) -> Result<Option<SandboxRecord>> {
    let all = templates.machines.owned_by(&machines::owner(&build.id)).await?;
    let has_role = |role: Option<&String>| role.is_some_and(|role| role == ROLE);
    Ok(all.into_iter().find(|record| has_role(record.metadata.get(ROLE_LABEL))))
}

/// Extends the lifetime of a build's context machine to the longest time that the build can still take.
pub(crate) async fn prolong(templates: &Templates, build: &BuildRecord) -> Result<()> {
    let Some(record) = find(templates, build).await? else { return Ok(()) };
    let ttl_seconds = Some(machines::TTL_SECONDS);
    let request = PatchLifecycle { ttl_seconds, ..PatchLifecycle::default() };
    templates.machines.patch(record, request).await
}

/// The context machine of a build, which is made on first use.
pub(crate) async fn open(templates: &Templates, build: &BuildRecord) -> Result<Machine> {
    if let Some(record) = find(templates, build).await? {
        return templates.machines.open(&build.workspace, &record.id).await;
    }
    let origin = match &build.spec.files {
        Some(files) => Origin::Snapshot(files.clone()),
        None if build.spec.files_at.is_some() => {
            return Err(Error::conflict("the machine with the build files expired; build again"));
        }
        None => Origin::Template(TEMPLATE.to_owned()),
    };
    let mut unsized_build = build.clone();
    (unsized_build.spec.request.cpu, unsized_build.spec.request.memory_mb) = (None, None);
    let machine = machines::create(templates, &unsized_build, &origin, ROLE).await?;
    machine.write(SCRIPT, SCRIPT_TEXT.into()).await?;
    machine.make_dir(CONTEXT_DIR, FILES_WAIT).await?;
    Ok(machine)
}

/// Snapshot of the files of a build that keeps them. Taken before anything else runs in their machine, which
/// gets credentials later.
pub(crate) async fn keep(templates: &Templates, build: &BuildRecord) -> Result<Option<SnapshotId>> {
    if build.spec.files.is_some() || !build.spec.request.keep_inputs || build.spec.files_at.is_none() {
        return Ok(build.spec.files.clone());
    }
    let machine = open(templates, build).await?;
    prune::snapshot(templates, &machine, "build files").await.map(Some)
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
pub(crate) async fn copy_tree(
    machine: &Machine,
    stage: &Machine,
    index: usize,
    path: &str,
) -> Result<String, BuildError> {
    let Some(entry) = stage.stat(path).await? else {
        return Err(BuildError::new(format!("`{path}` is not in the stage that is copied from")));
    };
    let root = format!("{STAGES_DIR}/{index}");
    // A file's archive contains just its name; a directory's, the entries below it.
    let below = if entry.is_dir { path } else { path.rsplit_once('/').map_or("/", |(above, _)| above) };
    machine.write(ARCHIVE, stage.pack(path).await?).await?;
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

/// Hashes or packs the files that a copy selects.
pub(crate) async fn select(machine: &Machine, selection: &Selection) -> Result<SelectedFiles, BuildError> {
    let input = serde_json::to_string(selection).map_err(|error| BuildError::new(error.to_string()))?;
    let argv = ["python3", "-I", "-S", SCRIPT].map(str::to_owned).to_vec();
    let request = ExecRequest {
        argv: Some(argv),
        stdin: Some(input),
        timeout_seconds: Some(FILES_WAIT.as_secs()),
        ..ExecRequest::default()
    };
    let done = machine.exec_within(&request, FILES_WAIT).await?;
    let selected: SelectedFiles = serde_json::from_str(done.stdout.trim())
        .map_err(|_| BuildError::new(format!("the files cannot be read: {}", last_line(&done.stderr))))?;
    match selected.error {
        Some(error) => Err(BuildError::new(error)),
        None => Ok(selected),
    }
}

/// The directories of a selection, parents first.
pub(crate) async fn directories(
    machine: &Machine,
    selected: &SelectedFiles,
) -> Result<Vec<CopiedDir>, BuildError> {
    if selected.directories.is_empty() {
        return Ok(Vec::new());
    }
    let listed = machine.read(&selected.directories).await?;
    let read = axum::body::to_bytes(listed, DIRECTORIES_BYTES_MAX).await;
    let read = read.map_err(|error| BuildError::new(error.to_string()))?;
    serde_json::from_slice(&read).map_err(|error| BuildError::new(error.to_string()))
}

fn shell(script: &str, env: &[(&str, &str)]) -> ExecRequest {
    ExecRequest { timeout_seconds: Some(FILES_WAIT.as_secs()), ..command::shell(script, env) }
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs the script on a source below `root`.
    fn run(root: &Path, from_stage: bool, source: &str) -> SelectedFiles {
        let sources = vec![source.to_owned()];
        run_script(&Selection { is_context: !from_stage, sources, ..selection(root) })
    }

    fn selection(root: &Path) -> Selection {
        Selection {
            root: root.join("in").display().to_string(),
            is_context: true,
            scratch: root.join("added").display().to_string(),
            preserve: true,
            dest_is_dir: true,
            out: root.join("out").display().to_string(),
            ..Selection::default()
        }
    }

    fn run_script(selection: &Selection) -> SelectedFiles {
        let mut script = Command::new("python3")
            .args(["-I", "-S", "-c", SCRIPT_TEXT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = serde_json::to_vec(selection).unwrap();
        script.stdin.take().unwrap().write_all(&input).unwrap();
        serde_json::from_slice(&script.wait_with_output().unwrap().stdout).unwrap()
    }

    /// Names in the archives, with owners.
    fn names(selected: &SelectedFiles) -> Vec<String> {
        let list = |archive: &Archive| {
            let done = Command::new("tar").args(["-tf", &archive.path]).output().unwrap();
            String::from_utf8(done.stdout).unwrap()
        };
        let listed: String = selected.archives.iter().map(list).collect();
        let mut names: Vec<String> = listed.lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    #[test]
    fn archives_are_unpacked_if_asked() {
        let root = tempfile::tempdir().unwrap();
        let (root, inputs) = (root.path(), root.path().join("in"));
        std::fs::create_dir_all(inputs.join("tree/app")).unwrap();
        std::fs::write(inputs.join("tree/app/file"), "text").unwrap();
        std::fs::write(inputs.join("no.tar"), "not an archive").unwrap();
        let pack = |name: &str, more: &[&str]| {
            let mut tar = Command::new("tar");
            tar.args(["-caf", name]).args(more).current_dir(&inputs);
            assert!(tar.status().unwrap().success());
        };
        pack("a.tar.gz", &["-C", "tree", "app"]);
        pack("b.tar.xz", &["-C", "tree", "app"]);
        pack("evil.tar", &["--transform=s,^app/file,../../out,", "-C", "tree", "app"]);
        let add = |source: &str, unpack| {
            run_script(&Selection { sources: vec![source.to_owned()], unpack, ..selection(root) })
        };
        for name in ["a.tar.gz", "b.tar.xz"] {
            let unpacked = add(name, true);
            assert_eq!((names(&unpacked), unpacked.is_tree), (vec!["app/".into(), "app/file".into()], true));
            let copied = add(name, false);
            assert_eq!((names(&copied), copied.is_tree), (vec![name.to_owned()], false));
        }
        assert_eq!(names(&add("no.tar", true)), ["no.tar"]);
        let refused = add("evil.tar", true).error.unwrap();
        assert!(refused.contains("`evil.tar` cannot be unpacked"), "{refused}");
        assert!(!root.join("out/out").exists() && !root.join("added/out").exists());
    }

    #[test]
    fn links_that_are_sources_are_followed_or_kept() {
        let root = tempfile::tempdir().unwrap();
        let inputs = root.path().join("in");
        std::fs::create_dir_all(inputs.join("tree")).unwrap();
        std::fs::write(inputs.join("tree/file"), "text").unwrap();
        for (link, to) in [("dir", "tree"), ("lost", "nowhere")] {
            std::os::unix::fs::symlink(to, inputs.join(link)).unwrap();
        }
        let copy = |source: &str, keep_links| {
            run_script(&Selection { sources: vec![source.to_owned()], keep_links, ..selection(root.path()) })
        };
        assert_eq!(names(&copy("dir", false)), ["file"]);
        assert_eq!(names(&copy("dir", true)), ["dir"]);
        assert_eq!(copy("lost", false).error.unwrap(), "`lost` is a link to nothing");
        assert_eq!(names(&copy("lost", true)), ["lost"]);
    }

    #[test]
    fn urls_are_fetched_once_and_checked() {
        let root = tempfile::tempdir().unwrap();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/dir/tool.bin?x=1", server.local_addr().unwrap());
        // Answers once.
        let answer = std::thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            std::io::Read::read(&mut client, &mut [0; 4096]).unwrap();
            client.write_all(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap();
        });
        let fetch = |checksum: Option<&str>| {
            let checksum = checksum.map(str::to_owned);
            run_script(&Selection { urls: vec![url.clone()], checksum, ..selection(root.path()) })
        };
        assert_eq!(names(&fetch(None)), ["tool.bin"]);
        answer.join().unwrap();
        let right = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(names(&fetch(Some(right))), ["tool.bin"]);
        let refused = fetch(Some("sha256:00")).error.unwrap();
        assert!(refused.contains(right), "{refused}");
        let gone = Selection { urls: vec![url.replace("tool", "other")], ..selection(root.path()) };
        let refused = run_script(&gone).error.unwrap();
        assert!(refused.starts_with("cannot fetch `http://127.0.0.1"), "{refused}");
    }

    #[test]
    fn owners_and_modes_of_a_copied_tree_are_recorded() {
        let root = std::env::temp_dir().join(format!("pandastack-copy-{}", std::process::id()));
        let tree = root.join("in/tree");
        std::fs::create_dir_all(tree.join("app/data")).unwrap();
        for (path, mode) in [("app/data/file", 0o644), ("tool", 0o4755)] {
            std::fs::write(tree.join(path), "text").unwrap();
            std::fs::set_permissions(tree.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let message = |selected: SelectedFiles| selected.error.unwrap_or_default();
        assert!(message(run(&root, false, "nothing")).contains(".dockerignore"));
        assert!(message(run(&root, true, "nothing")).ends_with("in the stage that is copied from"));
        let owned = chown(tree.join("app/data"), Some(7), Some(8)).is_ok();
        let selected = run(&root, true, "tree");
        let listed = std::fs::read(&selected.directories).unwrap();
        let directories: Vec<CopiedDir> = serde_json::from_slice(&listed).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(selected.special, [("tool".to_owned(), 0o4755)]);
        let paths: Vec<&str> = directories.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["app", "app/data"], "parents first");
        match owned {
            true => {
                let owners: Vec<&str> = selected.archives.iter().map(|one| one.owner.as_str()).collect();
                assert_eq!(owners, ["0:0", "7:8", "0:0"], "directories in order, then files");
                assert_eq!(directories[1].owner, "7:8");
            }
            false => println!("skipped: only root can give files away"),
        }
    }
}
