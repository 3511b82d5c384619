//! A running platform, for as long as this program needs it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::host::as_root;
use crate::program::{interrupted, program, run};
use crate::{leaks, tree};

/// Output of `pandastack up --json` when it is ready.
#[derive(Debug, Clone, Deserialize)]
pub struct Ready {
    /// URL of the API.
    pub api_url: String,
    /// A key for it.
    pub token: String,
    /// Data directory.
    pub data_dir: PathBuf,
    /// Whether another `up` already serves it.
    pub already_up: bool,
}

/// A platform in the foreground.
pub struct Platform {
    child: Child,
    /// Output of `up`.
    pub ready: Ready,
}

impl Platform {
    /// Starts `pandastack up` with these arguments and waits for its word.
    pub fn start(args: &[String]) -> Result<Self> {
        let mut command = as_root(tree::pandastack());
        command.args(["up", "--json"]).args(args).stdout(Stdio::piped());
        let mut child = command.spawn().context("start `pandastack up`")?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).context("wait for `pandastack up`")?;
        }
        match serde_json::from_str(&line) {
            Ok(ready) => Ok(Self { child, ready }),
            Err(_) => bail!("`pandastack up` did not start: {}", child.wait().context("wait for its end")?),
        }
    }

    /// The `pandastack` program as a client of this platform.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut command = program(tree::pandastack());
        command.args(args);
        self.point(command)
    }

    /// Points a program at this platform.
    pub fn point(&self, mut command: Command) -> Command {
        for name in ["PANDASTACK_API", "PANDASTACK_API_URL"] {
            command.env(name, &self.ready.api_url);
        }
        for name in ["PANDASTACK_API_KEY", "PANDASTACK_TOKEN"] {
            command.env(name, &self.ready.token);
        }
        // For tests that start platforms of their own.
        command
            .env("PANDASTACK_BIN", tree::pandastack())
            .env("PANDASTACK_CA", self.ready.data_dir.join("tls/ca.pem"))
            .env("PANDASTACK_CACHE_DIR", tree::machine_cache_dir());
        command
    }

    /// Builds a template and shows its progress.
    pub fn build_template(&self, name: &str) -> Result<()> {
        run(self.client(&["template", "build", name]))
    }

    /// Stays until the platform ends. Ctrl-C reaches it through the terminal.
    pub fn wait(mut self) -> Result<()> {
        let status = self.child.wait().context("wait for `pandastack up`")?;
        if !status.success() && !interrupted() {
            bail!("`pandastack up` ended with {status}");
        }
        Ok(())
    }

    /// Stops a platform that we started: it must not continue without us. Sandboxes stay.
    pub fn stop(mut self) -> Result<()> {
        if !self.ready.already_up && !interrupted() {
            let mut down = as_root(tree::pandastack());
            down.args(["down", "--data-dir"]).arg(&self.ready.data_dir);
            run(down)?;
        }
        self.child.wait().context("wait for `pandastack up`")?;
        Ok(())
    }
}

/// A platform of its own for tests and measurements: own data, address, network and names.
pub struct Scratch {
    platform: Option<Platform>,
    place: PlatformDirs,
    orphans_before: BTreeSet<String>,
}

/// Directories of a scratch platform.
#[derive(Debug, Clone)]
pub struct PlatformDirs {
    /// Data directory.
    pub data_dir: PathBuf,
    /// Sockets.
    pub runtime_dir: PathBuf,
    /// Prefix of interface and table names.
    pub net_prefix: String,
    subnet: String,
}

/// Beginning of the names of scratch data directories; the process id and a number follow.
const SCRATCH: &str = "scratch-";

impl PlatformDirs {
    /// The `nth` scratch platform of a process.
    fn of(pid: u32, nth: u32) -> Self {
        let name = format!("{SCRATCH}{pid}-{nth}");
        Self {
            data_dir: tree::machine_cache_dir().join(&name),
            runtime_dir: format!("/run/pandastack-{name}").into(),
            net_prefix: format!("t{}x{nth}", pid % 1_000_000),
            // Away from the default network, so that a platform in use on this machine is not
            // disturbed, and from 10.160 and above, which tests give to their own platforms.
            subnet: format!("10.{}.0.0/16", 130 + (pid + nth) % 30),
        }
    }

    fn args(&self) -> Vec<String> {
        let mut args = Vec::new();
        for (flag, value) in [
            ("--data-dir", self.data_dir.display().to_string()),
            ("--runtime-dir", self.runtime_dir.display().to_string()),
            ("--net-prefix", self.net_prefix.clone()),
            ("--subnet", self.subnet.clone()),
        ] {
            args.extend([flag.to_owned(), value]);
        }
        args
    }

    fn purge(&self) -> Result<()> {
        let mut command = as_root(tree::pandastack());
        command.args(["down", "--purge", "--data-dir"]).arg(&self.data_dir);
        run(command)
    }
}

/// The private network that tests open by a policy; no policy opens another.
const REACHABLE_PRIVATE: &str = "192.168.77.0/24";

impl Scratch {
    /// Starts one on a free port, with more arguments for `pandastack up`. Removes what interrupted
    /// predecessors left.
    pub fn start(more: &[&str]) -> Result<Self> {
        sweep();
        Self::start_nth(0, more)
    }

    /// Starts another one beside it, with more arguments for `pandastack up`.
    pub fn start_second(more: &[&str]) -> Result<Self> {
        Self::start_nth(1, more)
    }

    fn start_nth(nth: u32, more: &[&str]) -> Result<Self> {
        let orphans_before = leaks::orphans();
        let place = PlatformDirs::of(std::process::id(), nth);
        let free = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
        let address = free.local_addr().context("find a free port")?;
        drop(free);
        let mut args = place.args();
        args.extend(["--listen".to_owned(), address.to_string(), "--no-client-config".to_owned()]);
        args.extend(["--reachable-private".to_owned(), REACHABLE_PRIVATE.to_owned()]);
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        let platform = Platform::start(&args).inspect_err(|_| {
            let _ = place.purge();
        })?;
        Ok(Self { platform: Some(platform), place, orphans_before })
    }

    /// Directories of this platform.
    pub fn place(&self) -> &PlatformDirs {
        &self.place
    }

    /// First address of its network.
    pub fn network(&self) -> &str {
        self.place.subnet.split('/').next().unwrap_or_default()
    }

    /// The platform.
    pub fn platform(&self) -> Result<&Platform> {
        self.platform.as_ref().context("the platform was stopped")
    }

    /// Stops it, removes everything of it, and names leftovers.
    pub fn stop(mut self) -> Result<Vec<String>> {
        self.place.purge()?;
        if let Some(mut platform) = self.platform.take() {
            platform.child.wait().context("wait for `pandastack up`")?;
        }
        Ok(leaks::found(&self.place, &self.orphans_before))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.platform.is_some() {
            let _ = self.place.purge();
        }
    }
}

fn sweep() {
    for entry in std::fs::read_dir(tree::machine_cache_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ids = name.strip_prefix(SCRATCH).and_then(|ids| ids.split_once('-'));
        let ids = ids.and_then(|(pid, nth)| Some((pid.parse::<u32>().ok()?, nth.parse::<u32>().ok()?)));
        let Some((pid, nth)) = ids.filter(|(pid, _)| !Path::new(&format!("/proc/{pid}")).exists()) else {
            continue;
        };
        let _ = PlatformDirs::of(pid, nth).purge();
    }
}
