//! One round: create, exec, fork, delete.

use std::time::{Duration, Instant};

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::{CreateSandbox, ExecRequest, ForkSandbox, Sandbox};
use tokio_util::sync::CancellationToken;

use super::samples::{Operation, Samples};
use crate::commands::command_line::command_line;
use crate::commands::create;
use crate::failure::Failure;

/// TTL of a sandbox, in case it is not deleted.
const TTL_SECONDS: u64 = 600;
/// Metadata label of every sandbox of a run.
const LABEL: &str = "pandastack.bench";

/// Requests to measure.
pub struct Subject {
    create: CreateSandbox,
    exec: ExecRequest,
}

impl Subject {
    /// A template and the command to run in its sandboxes.
    pub fn new(template: &str, command: Vec<String>) -> Self {
        let (cmd, argv) = command_line(command);
        let create = CreateSandbox {
            template: Some(template.to_owned()),
            ttl_seconds: Some(TTL_SECONDS),
            metadata: Some([(LABEL.to_owned(), "true".to_owned())].into()),
            ..CreateSandbox::default()
        };
        Self { create, exec: ExecRequest { cmd, argv, ..ExecRequest::default() } }
    }
}

/// A round in progress and the sandboxes that it has created.
pub struct Round<'a> {
    client: &'a Client,
    subject: &'a Subject,
    stop: &'a CancellationToken,
    created: Vec<SandboxId>,
}

impl<'a> Round<'a> {
    /// Creates a round.
    pub fn new(client: &'a Client, subject: &'a Subject, stop: &'a CancellationToken) -> Self {
        Self { client, subject, stop, created: Vec::new() }
    }

    /// Runs the round and deletes its sandboxes. Returns whether it completed.
    pub async fn run(mut self, samples: &mut Samples) -> Result<bool> {
        let outcome = self.measure(samples).await;
        let deleted = self.delete_all(samples).await;
        let completed = outcome?;
        deleted.map(|()| completed)
    }

    /// Runs an unmeasured round and waits for the template to be built. Returns its sandbox, or
    /// `None` if it was stopped.
    pub async fn warm_up(mut self) -> Result<Option<Sandbox>> {
        let Some(sandbox) = create::create_cancellable(self.client, &self.subject.create, self.stop).await?
        else {
            return Ok(None);
        };
        self.created.push(sandbox.id.clone());
        let mut ignored = Samples::default();
        let outcome = self.exec_and_fork(&sandbox, Instant::now(), &mut ignored).await;
        let deleted = self.delete_all(&mut ignored).await;
        let completed = outcome?;
        deleted.map(|()| completed.then_some(sandbox))
    }

    async fn measure(&mut self, samples: &mut Samples) -> Result<bool> {
        let began = Instant::now();
        let key = uuid::Uuid::new_v4().to_string();
        let sandbox = self.client.create_sandbox(&self.subject.create, &key).await?;
        samples.push(Operation::Create, began.elapsed());
        self.created.push(sandbox.id.clone());
        self.exec_and_fork(&sandbox, began, samples).await
    }

    async fn exec_and_fork(
        &mut self,
        sandbox: &Sandbox,
        began: Instant,
        samples: &mut Samples,
    ) -> Result<bool> {
        if self.exec(&sandbox.id).await?.is_none() {
            return Ok(false);
        }
        samples.push(Operation::CreateAndExec, began.elapsed());
        let Some(took) = self.exec(&sandbox.id).await? else { return Ok(false) };
        samples.push(Operation::Exec, took);
        if self.stop.is_cancelled() {
            return Ok(false);
        }
        let began = Instant::now();
        let child = self.client.fork_sandbox(&sandbox.id, &ForkSandbox::default()).await?;
        samples.push(Operation::Fork, began.elapsed());
        self.created.push(child.id);
        Ok(true)
    }

    /// Runs the command; `None` if the run was stopped. Deleting the sandbox then ends the command.
    async fn exec(&self, id: &SandboxId) -> Result<Option<Duration>> {
        let began = Instant::now();
        let result = tokio::select! {
            result = self.client.exec(id, &self.subject.exec) => result?,
            () = self.stop.cancelled() => return Ok(None),
        };
        let took = began.elapsed();
        if result.exit_code == 0 {
            return Ok(Some(took));
        }
        let failure = Failure::new(format!(
            "the command failed with exit code {}: {}",
            result.exit_code,
            result.stderr.trim()
        ));
        Err(failure.hint("use a command that exits with 0").into())
    }

    /// Deletes all sandboxes of the round and returns the first error.
    async fn delete_all(self, samples: &mut Samples) -> Result<()> {
        let mut outcome = Ok(());
        for id in &self.created {
            let began = Instant::now();
            match self.client.delete_sandbox(id).await {
                Ok(()) => samples.push(Operation::Delete, began.elapsed()),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        Ok(outcome?)
    }
}
