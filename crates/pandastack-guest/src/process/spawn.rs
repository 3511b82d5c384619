//! Starts a child for a request. Runs on a worker thread: looking up a program may wait for the disk.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use pandastack_guest_proto::message::{
    Command, ErrorBody, ErrorCode, ProcessId, ProcessSpec, Secret, TerminalSize,
};

use super::cgroup::{ProcessCgroup, UserCgroup};
use super::clone::{ChildPlan, SpawnError, Stage, spawn};
use super::terminal::Terminal;
use super::user::User;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_LANG: &str = "C.UTF-8";
const DEFAULT_TERM: &str = "xterm-256color";
/// `/etc/environment` beyond this length is not read.
const ENVIRONMENT_FILE_BYTES_MAX: u64 = 64 * 1024;

/// Inputs of a spawn besides the request, copied so that the worker shares nothing.
#[derive(Clone, Debug)]
pub(crate) struct SpawnContext {
    /// Time at which the request arrived.
    pub(crate) asked: Instant,
    /// Root directory in which `/etc` is looked up.
    pub(crate) root: PathBuf,
    /// Group of all user processes, if the machine has one.
    pub(crate) cgroup: Option<UserCgroup>,
    /// This program is the machine's PID 1: it protects itself and changes users.
    pub(crate) is_machine: bool,
    /// The identity's variables.
    pub(crate) env: BTreeMap<String, Secret>,
    /// The identity's user of processes that name none.
    pub(crate) user: Option<String>,
    /// The identity's working directory of processes that name none.
    pub(crate) cwd: Option<String>,
}

/// A started process and the guest program's ends of its pipes.
#[derive(Debug)]
pub(crate) struct SpawnedChild {
    /// Time of the request: the duration and the timeout count from here.
    pub(crate) asked: Instant,
    pub(crate) pid: i32,
    pub(crate) cgroup: Option<ProcessCgroup>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    /// `None` for a terminal, which has only one output.
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) terminal: Option<Terminal>,
}

/// Both ends of a process's standard streams.
struct Stdio {
    theirs: [OwnedFd; 3],
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    terminal: Option<Terminal>,
}

/// Starts a process from a request.
pub(crate) fn spawn_process(
    context: &SpawnContext,
    id: ProcessId,
    spec: &ProcessSpec,
) -> Result<SpawnedChild, ErrorBody> {
    let wanted = spec.user.as_deref().or(context.user.as_deref()).unwrap_or("root");
    let user = User::find(&context.root, wanted)?;
    let env = environment(context, &user, spec);
    let (program, argv) = command_line(&spec.command, env.get("PATH").map_or(DEFAULT_PATH, String::as_str))?;
    let Stdio { theirs, stdin, stdout, stderr, terminal } = match spec.terminal {
        Some(size) => make_terminal(size, &user)?,
        None => make_pipes(spec.stdin)?,
    };
    let plan = ChildPlan {
        program: c_string(program.as_os_str().as_encoded_bytes())?,
        argv,
        env: env
            .iter()
            .map(|(name, value)| c_string(format!("{name}={value}").as_bytes()))
            .collect::<Result<_, _>>()?,
        cwd: working_directory(context, spec, &user)?,
        credentials: context.is_machine.then(|| user.credentials.clone()),
        stdio: theirs,
        reset_priority: context.is_machine,
        terminal: terminal.is_some(),
    };
    let cgroup = match &context.cgroup {
        Some(parent) => Some(parent.make_child(&id.to_string(), &spec.limits).map_err(|error| {
            ErrorBody::new(ErrorCode::Io, format!("cannot make a control group for the process: {error}"))
        })?),
        None => None,
    };
    match start(&plan, cgroup.as_ref()) {
        Ok(pid) => Ok(SpawnedChild { asked: context.asked, pid, cgroup, stdin, stdout, stderr, terminal }),
        Err(error) => {
            if let Some(cgroup) = cgroup {
                cgroup.try_remove();
            }
            Err(explain(&error, &plan, spec))
        }
    }
}

fn start(plan: &ChildPlan, cgroup: Option<&ProcessCgroup>) -> Result<i32, SpawnError> {
    let directory = match cgroup.map(ProcessCgroup::open).transpose() {
        Ok(directory) => directory,
        Err(error) => {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            return Err(SpawnError { stage: Stage::Clone, errno });
        }
    };
    spawn(plan, directory.as_ref().map(AsFd::as_fd))
}

/// Least to most specific: ours, the image's, the user's, the identity's, the call's.
fn environment(context: &SpawnContext, user: &User, spec: &ProcessSpec) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
    set("PATH", DEFAULT_PATH);
    set("LANG", DEFAULT_LANG);
    for (name, value) in parse_environment_file(&read_environment_file(&context.root)) {
        set(name, value);
    }
    set("HOME", &user.home);
    set("USER", &user.name);
    set("LOGNAME", &user.name);
    set("SHELL", &user.shell);
    if spec.terminal.is_some() {
        set("TERM", DEFAULT_TERM);
    }
    env.extend(context.env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())));
    env.extend(spec.env.clone());
    env.retain(|name, value| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
    env
}

fn read_environment_file(root: &Path) -> String {
    let mut text = String::new();
    if let Ok(file) = File::open(root.join("etc/environment")) {
        // A file that is not UTF-8 text counts as empty.
        let _ = std::io::Read::read_to_string(
            &mut std::io::Read::take(file, ENVIRONMENT_FILE_BYTES_MAX),
            &mut text,
        );
    }
    text
}

fn parse_environment_file(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=')?;
        (!name.starts_with('#')).then(|| (name.trim(), value.trim().trim_matches('"').trim_matches('\'')))
    })
}

fn command_line(command: &Command, path: &str) -> Result<(PathBuf, Vec<CString>), ErrorBody> {
    match command {
        Command::Shell(line) if line.trim().is_empty() => Err(invalid("the command is empty")),
        Command::Shell(line) => {
            let argv = [&b"sh"[..], b"-c", line.as_bytes()].map(c_string);
            Ok(("/bin/sh".into(), argv.into_iter().collect::<Result<_, _>>()?))
        }
        Command::Argv(argv) => {
            let program = argv
                .first()
                .filter(|name| !name.is_empty())
                .ok_or_else(|| invalid("the command is empty"))?;
            let argv = argv.iter().map(|argument| c_string(argument.as_bytes())).collect::<Result<_, _>>()?;
            Ok((find_program(program, path)?, argv))
        }
    }
}

fn find_program(name: &str, path: &str) -> Result<PathBuf, ErrorBody> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let executable = |candidate: &PathBuf| {
        std::fs::metadata(candidate)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    path.split(':')
        .map(|directory| Path::new(if directory.is_empty() { "." } else { directory }).join(name))
        .find(executable)
        .ok_or_else(|| {
            ErrorBody::new(ErrorCode::NotFound, format!("program {name:?} is not in PATH ({path})"))
        })
}

fn working_directory(context: &SpawnContext, spec: &ProcessSpec, user: &User) -> Result<CString, ErrorBody> {
    // A missing default directory must not prevent every command from starting.
    let default = context.cwd.as_ref().filter(|cwd| Path::new(cwd).is_dir());
    match &spec.cwd {
        Some(cwd) => c_string(cwd.as_bytes()),
        None if default.is_some() => c_string(default.map_or(&b"/"[..], |cwd| cwd.as_bytes())),
        None if Path::new(&user.home).is_dir() => c_string(user.home.as_bytes()),
        None => c_string(b"/"),
    }
}

fn make_pipes(stdin_wanted: bool) -> Result<Stdio, ErrorBody> {
    let (stdin_theirs, stdin) = make_stdin(stdin_wanted)?;
    let (stdout, stdout_theirs) = make_pipe()?;
    let (stderr, stderr_theirs) = make_pipe()?;
    set_nonblocking(&stdout)?;
    set_nonblocking(&stderr)?;
    let theirs = [stdin_theirs, stdout_theirs, stderr_theirs];
    Ok(Stdio { theirs, stdin, stdout, stderr: Some(stderr), terminal: None })
}

fn make_terminal(size: TerminalSize, user: &User) -> Result<Stdio, ErrorBody> {
    let (terminal, device) = Terminal::open(size, user.credentials.uid)?;
    let again = || {
        device.try_clone().map_err(|error| {
            ErrorBody::new(ErrorCode::TooMany, format!("cannot set the terminal up: {error}"))
        })
    };
    let theirs = [again()?, again()?, device];
    let (stdin, stdout) = (Some(terminal.handle()?), terminal.handle()?);
    Ok(Stdio { theirs, stdin, stdout, stderr: None, terminal: Some(terminal) })
}

/// The child's end first.
fn make_stdin(wanted: bool) -> Result<(OwnedFd, Option<OwnedFd>), ErrorBody> {
    if wanted {
        let (theirs, ours) = make_pipe()?;
        set_nonblocking(&ours)?;
        return Ok((theirs, Some(ours)));
    }
    match File::open("/dev/null") {
        Ok(null) => Ok((null.into(), None)),
        Err(error) => Err(ErrorBody::new(ErrorCode::Io, format!("cannot open /dev/null: {error}"))),
    }
}

fn make_pipe() -> Result<(OwnedFd, OwnedFd), ErrorBody> {
    pipe2(OFlag::O_CLOEXEC)
        .map_err(|errno| ErrorBody::new(ErrorCode::TooMany, format!("cannot make a pipe: {}", errno.desc())))
}

fn set_nonblocking(fd: &OwnedFd) -> Result<(), ErrorBody> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
        .map(drop)
        .map_err(|errno| ErrorBody::new(ErrorCode::Io, format!("cannot set up a pipe: {}", errno.desc())))
}

fn c_string(bytes: &[u8]) -> Result<CString, ErrorBody> {
    CString::new(bytes).map_err(|_| invalid("a command, directory or variable contains a zero byte"))
}

fn invalid(what: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::Invalid, what)
}

fn explain(error: &SpawnError, plan: &ChildPlan, spec: &ProcessSpec) -> ErrorBody {
    let why = error.errno.desc();
    let (program, cwd) = (plan.program.to_string_lossy(), plan.cwd.to_string_lossy());
    let code = match error.errno {
        Errno::ENOENT => ErrorCode::NotFound,
        Errno::EACCES | Errno::EPERM => ErrorCode::PermissionDenied,
        Errno::ENOTDIR => ErrorCode::NotADirectory,
        Errno::E2BIG | Errno::ENOEXEC | Errno::EINVAL => ErrorCode::Invalid,
        Errno::EAGAIN | Errno::EMFILE | Errno::ENFILE => ErrorCode::TooMany,
        Errno::EBUSY => ErrorCode::Frozen,
        _ => ErrorCode::Io,
    };
    let message = match error.stage {
        Stage::Clone => format!("cannot start another process: {why}"),
        Stage::Session | Stage::Stdio => format!("cannot set the process up: {why}"),
        Stage::Credentials => format!("cannot become user {:?}: {why}", spec.user.as_deref().unwrap_or("root")),
        Stage::Directory => format!("cannot enter the working directory {cwd:?}: {why}"),
        Stage::Exec if error.errno == Errno::E2BIG => {
            "the command is longer than the kernel allows (128 KiB per argument); pass it as a file or as input".to_owned()
        }
        Stage::Exec => format!("cannot run {program:?}: {why}"),
    };
    ErrorBody::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_files_are_parsed_like_pam() {
        let text = "# comment\nPATH=\"/opt/bin:/bin\"\nexport A='x y'\nnonsense\n B = c \n";
        let pairs: Vec<_> = parse_environment_file(text).collect();
        assert_eq!(pairs, [("PATH", "/opt/bin:/bin"), ("A", "x y"), ("B", "c")]);
    }

    #[test]
    fn later_environment_sources_override_earlier_ones() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/environment"), "A=image\nB=image\nC=image\n").unwrap();
        let context = SpawnContext {
            asked: Instant::now(),
            root: root.path().to_owned(),
            cgroup: None,
            is_machine: false,
            env: [("B", "identity"), ("C", "identity")]
                .map(|(name, value)| (name.to_owned(), value.into()))
                .into(),
            user: None,
            cwd: None,
        };
        let mut spec = ProcessSpec::shell("true");
        spec.env = [("C".to_owned(), "call".to_owned()), ("bad=name".to_owned(), "x".to_owned())].into();
        let env = environment(&context, &User::find(root.path(), "root").unwrap(), &spec);
        assert_eq!([&env["A"], &env["B"], &env["C"], &env["LANG"]], ["image", "identity", "call", "C.UTF-8"]);
        assert!(!env.contains_key("bad=name"));
    }
}
