//! The processes that are measured.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{nginx, servers};

/// A process that is killed when it is no longer needed.
pub struct Process {
    child: Child,
    /// Port that the proxy listens on.
    pub port: u16,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy under measurement.
pub struct Proxy {
    /// Name in the results.
    pub name: &'static str,
    /// `Host` that leads to the upstream.
    pub host: String,
    /// The process.
    pub process: Process,
    /// The process whose processor time counts.
    worker: u32,
}

/// The upstream of both.
pub fn start_upstream() -> Result<Process> {
    start_self(&["upstream"])
}

/// Starts this program in another role; the child first prints its port.
fn start_self(arguments: &[&str]) -> Result<Process> {
    let program = std::env::current_exe().context("this program's path")?;
    let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().context("the child's output")?;
    BufReader::new(output).read_line(&mut line)?;
    let port = line.trim().parse().with_context(|| format!("the child said `{line}`"))?;
    Ok(Process { child, port })
}

impl Proxy {
    /// The edge.
    pub fn edge(dir: &Path, upstream: u16) -> Result<Self> {
        let log = dir.join("edge-access.log");
        let process = start_self(&["edge", "--access-log", &log.display().to_string()])?;
        let host = format!("{upstream}-{}.localhost", servers::SANDBOX);
        let worker = process.child.id();
        Ok(Self { name: "edge", host, process, worker })
    }

    /// nginx, with its one worker.
    pub fn nginx(program: &Path, dir: &Path, upstream: u16) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let configuration = dir.join("nginx.conf");
        std::fs::write(&configuration, nginx::configuration(dir, port, upstream))?;
        let child = Command::new(program)
            .arg("-p")
            .arg(dir)
            .arg("-c")
            .arg(&configuration)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let process = Process { child, port };
        wait_until_listening(port)?;
        let worker = process.child.id();
        Ok(Self { name: "nginx", host: "bench.localhost".to_owned(), process, worker })
    }

    /// Processor time so far, in microseconds.
    pub fn cpu_us(&self) -> Result<f64> {
        let mut nanoseconds = 0_u64;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.worker))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            nanoseconds += first.context("a thread's processor time")?;
        }
        Ok(nanoseconds as f64 / 1e3)
    }

    /// Resident memory, in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.worker))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.context("the process's memory")? * 1024)
    }
}

fn wait_until_listening(port: u16) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline {
            bail!("nginx does not listen");
        }
        #[expect(clippy::disallowed_methods, reason = "nothing tells when nginx listens")]
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
