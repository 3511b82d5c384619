//! Actions of a well-behaved tenant.

use std::time::Instant;

use anyhow::{Result, ensure};
use pandastack_client::Client;
use pandastack_types::SandboxId;

use crate::api::{create, delete, exec, ms_since};
use crate::report::Report;

/// Operations whose latency is held against a bar.
pub const OPERATIONS: [&str; 3] = ["exec", "file", "create"];
/// Number of other operations per create.
const OPERATIONS_PER_CREATE: u32 = 20;
/// Content of the file that is written and read.
const CONTENT: &[u8] = &[b'x'; 4096];
/// Its path.
const PATH: &str = "/root/work";

/// Name of the figure of an operation in a phase.
pub fn figure(operation: &str, phase: &str) -> String {
    format!("{operation} beside {phase}")
}

/// A tenant with a warm sandbox.
pub struct Worker<'a> {
    client: &'a Client,
    sandbox: SandboxId,
}

impl<'a> Worker<'a> {
    /// Creates its sandbox.
    pub async fn start(client: &'a Client) -> Result<Self> {
        let sandbox = create(client, "base").await?.id;
        exec(client, &sandbox, "true").await?;
        Ok(Self { client, sandbox })
    }

    /// Works for a while and notes how long everything takes; how many operations failed.
    pub async fn work_until(&self, until: Instant, phase: &str, report: &mut Report) -> u64 {
        let (mut errors, mut round) = (0, 0);
        while Instant::now() < until {
            let operation = match round % OPERATIONS_PER_CREATE {
                0 => "create",
                odd if odd % 2 == 1 => "exec",
                _ => "file",
            };
            round += 1;
            let began = Instant::now();
            match self.operate(operation).await {
                Ok(()) => report.sample(&figure(operation, phase), "ms", ms_since(began)),
                Err(error) => {
                    errors += 1;
                    eprintln!("{operation} beside {phase}: {error:#}");
                }
            }
        }
        errors
    }

    async fn operate(&self, operation: &str) -> Result<()> {
        match operation {
            "exec" => exec(self.client, &self.sandbox, "true").await.map(drop),
            "file" => {
                self.client.write_file(&self.sandbox, PATH, CONTENT.to_vec()).await?;
                let (mut file, mut bytes) = (self.client.read_file(&self.sandbox, PATH).await?, 0);
                while let Some(part) = file.next().await? {
                    bytes += part.len();
                }
                ensure!(bytes == CONTENT.len(), "{bytes} bytes of {}", CONTENT.len());
                Ok(())
            }
            _ => {
                let sandbox = create(self.client, "base").await?.id;
                exec(self.client, &sandbox, "true").await?;
                delete(self.client, &sandbox).await
            }
        }
    }

    /// Deletes its sandbox.
    pub async fn stop(self, client: &Client) -> Result<()> {
        delete(client, &self.sandbox).await
    }
}
