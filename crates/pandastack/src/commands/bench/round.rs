//! One round: make, use, copy, delete.

use std::time::{Duration, Instant};

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::{CreateSandbox, ExecRequest, ForkSandbox, Sandbox};
use tokio_util::sync::CancellationToken;

use super::figures::{Figure, Figures};
use crate::commands::{command_line, create};
use crate::failure::Failure;

/// Life of a sandbox, should nobody delete it.
const TTL_SECONDS: u64 = 600;
/// Label of every sandbox that is made here.
const LABEL: &str = "pandastack.bench";

/// What is measured.
pub struct Subject {
    create: CreateSandbox,
    exec: ExecRequest,
}

impl Subject {
    /// A template, and the command that is run in its sandboxes.
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

/// A round under way, with what it made so far.
pub struct Round<'a> {
    client: &'a Client,
    subject: &'a Subject,
    stop: &'a CancellationToken,
    made: Vec<SandboxId>,
}

impl<'a> Round<'a> {
    /// A round that has made nothing yet.
    pub fn new(client: &'a Client, subject: &'a Subject, stop: &'a CancellationToken) -> Self {
        Self { client, subject, stop, made: Vec::new() }
    }

    /// Runs it and deletes what it made. Answers whether it was not stopped on the way.
    pub async fn run(mut self, figures: &mut Figures) -> Result<bool> {
        let outcome = self.measure(figures).await;
        let deleted = self.delete_all(figures).await;
        let whole = outcome?;
        deleted.map(|()| whole)
    }

    /// Runs it for the sake of those that follow, with patience for a template that is still baked. Answers the sandbox
    /// that it had, or `None` when it was stopped.
    pub async fn run_uncounted(mut self) -> Result<Option<Sandbox>> {
        let Some(sandbox) = create::create_unless(self.client, &self.subject.create, self.stop).await? else {
            return Ok(None);
        };
        self.made.push(sandbox.id.clone());
        let mut ignored = Figures::default();
        let outcome = self.use_and_copy(&sandbox, Instant::now(), &mut ignored).await;
        let deleted = self.delete_all(&mut ignored).await;
        let whole = outcome?;
        deleted.map(|()| whole.then_some(sandbox))
    }

    async fn measure(&mut self, figures: &mut Figures) -> Result<bool> {
        let began = Instant::now();
        let key = uuid::Uuid::new_v4().to_string();
        let sandbox = self.client.create_sandbox(&self.subject.create, &key).await?;
        figures.push(Figure::Create, began.elapsed());
        self.made.push(sandbox.id.clone());
        self.use_and_copy(&sandbox, began, figures).await
    }

    async fn use_and_copy(
        &mut self,
        sandbox: &Sandbox,
        began: Instant,
        figures: &mut Figures,
    ) -> Result<bool> {
        if self.exec(&sandbox.id).await?.is_none() {
            return Ok(false);
        }
        figures.push(Figure::CreateAndExec, began.elapsed());
        let Some(took) = self.exec(&sandbox.id).await? else { return Ok(false) };
        figures.push(Figure::Exec, took);
        if self.stop.is_cancelled() {
            return Ok(false);
        }
        let began = Instant::now();
        let child = self.client.fork_sandbox(&sandbox.id, &ForkSandbox::default()).await?;
        figures.push(Figure::Fork, began.elapsed());
        self.made.push(child.id);
        Ok(true)
    }

    /// Runs the command; `None` when it was stopped. Its sandbox is deleted next, so nothing of it goes on.
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
        let failure =
            Failure::new(format!("the command exited with {}: {}", result.exit_code, result.stderr.trim()));
        Err(failure.hint("measure a command that succeeds").into())
    }

    /// Deletes everything, whatever comes of each; the first failure is told.
    async fn delete_all(self, figures: &mut Figures) -> Result<()> {
        let mut outcome = Ok(());
        for id in &self.made {
            let began = Instant::now();
            match self.client.delete_sandbox(id).await {
                Ok(()) => figures.push(Figure::Delete, began.elapsed()),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        Ok(outcome?)
    }
}
