//! Actions of a hostile tenant. They should be refused, so errors do not count here.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::join_all;
use pandastack_client::{Client, Config};
use pandastack_types::SandboxId;
use pandastack_types::api::{ExecRequest, Function, FunctionSettings, InvokeFunction, Keep};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::api::{create, delete, exec};
use crate::functions::{EMPTY, deploy_new};

/// Calls at once.
const CALLERS: usize = 8;
/// Connections at once.
const CONNECTIONS: usize = 2000;
/// Slow bodies at once, and the pause between two of their bytes.
const BODIES: usize = 500;
const BODY_PAUSE: Duration = Duration::from_millis(500);
/// Sandboxes that are put to sleep and woken.
const SLEEPERS: usize = 4;
/// Copies itself until it may not.
const FORK_BOMB: &str = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n";
/// Resolves names that do not exist, as fast as it can.
const DNS_FLOOD: &str = "import os, socket\n\
    server = [line.split()[1] for line in open('/etc/resolv.conf') if line.startswith('nameserver')][0]\n\
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
    head, tail = b'\\x01\\x00\\x00\\x01' + bytes(6) + b'\\x10', b'\\x07example\\x00\\x00\\x01\\x00\\x01'\n\
    while True:\n\
    \x20   sender.sendto(os.urandom(2) + head + os.urandom(8).hex().encode() + tail, (server, 53))\n";
/// Files in one directory.
const MANY_FILES: &str = "mkdir -p /many && cd /many && seq 50000 | xargs touch";
/// Writes until there is no room.
const FILL: &str = "yes > /fill";

/// An attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Attack {
    /// A process that copies itself
    ForkBomb,
    /// Commands that print 16 MiB
    Outputs,
    /// Lists of 50,000 files
    Lists,
    /// A disk that is filled
    Disk,
    /// Connections that say nothing
    Connections,
    /// Bodies that come byte by byte
    SlowBodies,
    /// Creates and deletes
    Creates,
    /// Sandboxes that sleep and wake
    Wakes,
    /// Names to resolve
    Dns,
    /// Calls of a function
    Functions,
}

impl Attack {
    /// Its name, as on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// An attack with its resources.
pub struct Attacker {
    attack: Attack,
    sandboxes: Vec<SandboxId>,
    function: Option<Function>,
}

impl Attacker {
    /// Creates the attack's resources.
    pub async fn prepare(attack: Attack, client: &Client) -> Result<Self> {
        let count = if attack == Attack::Wakes { SLEEPERS } else { 1 };
        let mut sandboxes = Vec::new();
        for _ in 0..count {
            sandboxes.push(create(client, "base").await?.id);
        }
        let function = match attack {
            Attack::Functions => {
                let settings = FunctionSettings::default();
                Some(deploy_new(client, "bench-storm", EMPTY, settings, None).await?)
            }
            Attack::Lists => {
                exec(client, &sandboxes[0], MANY_FILES).await?;
                None
            }
            _ => None,
        };
        Ok(Self { attack, sandboxes, function })
    }

    /// Attacks for a while, in a thread of its own.
    pub fn run_until(self, config: Config, until: Instant) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("make a runtime for the attacker")?.block_on(async {
            let client = Client::new(config.clone())?;
            let attack = self.attack(&client, &config, until);
            let _ = tokio::time::timeout_at(until.into(), attack).await;
            Ok::<_, anyhow::Error>(())
        })?;
        Ok(self)
    }

    async fn attack(&self, client: &Client, config: &Config, until: Instant) {
        let sandbox = &self.sandboxes[0];
        let seconds = until.saturating_duration_since(Instant::now()).as_secs() + 1;
        let in_guest = |argv: &[&str]| ExecRequest {
            argv: Some(argv.iter().map(|word| (*word).to_owned()).collect()),
            timeout_seconds: Some(seconds),
            ..ExecRequest::default()
        };
        match self.attack {
            Attack::ForkBomb => drop(client.exec(sandbox, &in_guest(&["python3", "-c", FORK_BOMB])).await),
            Attack::Disk => drop(client.exec(sandbox, &in_guest(&["sh", "-c", FILL])).await),
            Attack::Dns => drop(client.exec(sandbox, &in_guest(&["python3", "-c", DNS_FLOOD])).await),
            Attack::Outputs => {
                let print = in_guest(&["head", "-c", "16777216", "/dev/zero"]);
                repeat(|| async { drop(client.exec(sandbox, &print).await) }).await;
            }
            Attack::Lists => repeat(|| async { drop(client.list_directory(sandbox, "/many").await) }).await,
            Attack::Connections => hold(config, "").await,
            Attack::SlowBodies => {
                let key = config.token.as_deref().unwrap_or_default();
                let head = format!(
                    "POST /v1/sandboxes HTTP/1.1\r\nHost: api\r\nX-API-Key: {key}\r\n\
                     Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
                );
                hold(config, &head).await;
            }
            Attack::Creates => {
                repeat(|| async {
                    if let Ok(made) = create(client, "base").await {
                        drop(delete(client, &made.id).await);
                    }
                })
                .await;
            }
            Attack::Wakes => {
                let cycle = |sandbox| async move {
                    loop {
                        drop(client.hibernate_sandbox(sandbox, Keep::Memory).await);
                        drop(exec(client, sandbox, "true").await);
                    }
                };
                join_all(self.sandboxes.iter().map(cycle)).await;
            }
            Attack::Functions => {
                let name = self.function.as_ref().map_or("", |function| &function.name);
                let call = InvokeFunction::default();
                repeat(|| async { drop(client.invoke_function(name, &call, None).await) }).await;
            }
        }
    }

    /// Removes the attack's remains.
    pub async fn clean(self, client: &Client) {
        for sandbox in &self.sandboxes {
            if let Err(error) = delete(client, sandbox).await {
                eprintln!("{}: {error:#}", self.attack.name());
            }
        }
        if let Some(function) = self.function {
            let _ = client.delete_function(&function.name).await;
        }
    }
}

/// Does something over and over, several at once.
async fn repeat<F: Future<Output = ()>>(once: impl Fn() -> F) {
    let again = || async {
        loop {
            once().await;
            // A refusal may arrive without any wait.
            tokio::task::yield_now().await;
        }
    };
    join_all((0..CALLERS).map(|_| again())).await;
}

/// Opens connections and holds them until the server ends them: silent ones, or such that send a head and
/// then a byte at a time. Each that ended is replaced by another.
async fn hold(config: &Config, head: &str) {
    let address = config.api_url.trim_start_matches("http://");
    let one = || async {
        loop {
            let Ok(mut stream) = TcpStream::connect(address).await else { continue };
            if head.is_empty() {
                let _ = stream.read_to_end(&mut Vec::new()).await;
                continue;
            }
            let mut sent = stream.write_all(head.as_bytes()).await;
            while sent.is_ok() {
                tokio::time::sleep(BODY_PAUSE).await;
                sent = stream.write_all(b" ").await;
            }
        }
    };
    let count = if head.is_empty() { CONNECTIONS } else { BODIES };
    join_all((0..count).map(|_| one())).await;
}
