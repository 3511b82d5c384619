//! The suite that every engine passes.
//!
//! The suite drives real machines through the [`Engine`] trait alone. A [`Fixture`] supplies what only an
//! engine's own tests know: files to boot from, clones of disks and memory, and a guest program that keeps
//! one number in memory and one on disk. Run the suite from an integration test and let
//! [`Summary::assert_passed`] decide.

mod fork_cases;

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::{Boot, Engine, EngineError, Machine, MachineFiles, Restore, RunState, SaveTarget, Shape};

/// Longest time for one case.
const CASE_MAX: Duration = Duration::from_secs(400);
/// Longest time for a guest to boot.
const BOOT_MAX: Duration = Duration::from_secs(120);
/// Longest time for one answer of a running guest.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// A question to a guest. Every answer is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Keep the number in memory; answers with it.
    Remember(u64),
    /// The number in memory.
    Recall,
    /// Keep the number on disk, past every cache of the guest; answers with it.
    Write(u64),
    /// The number on disk, past every cache of the guest.
    Read,
}

/// The fixture that an engine's tests provide.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The engine under test.
    fn engine(&self) -> &dyn Engine;

    /// Shape of all machines.
    fn shape(&self) -> Shape;

    /// All inputs for a booting machine, with its own disk and an empty memory file.
    async fn boot(&self) -> Boot;

    /// A place whose disk is a clone of `disk`.
    async fn place(&self, disk: &Path) -> MachineFiles;

    /// A place for the paused `parent`'s child: its disk is a clone of the parent's. Differs from
    /// [`Fixture::place`] only in a fork's requirements, such as the parent's user.
    async fn place_beside(&self, parent: &dyn Machine) -> MachineFiles;

    /// A clone of a memory file, private to the caller.
    async fn clone_memory(&self, memory: &Path) -> PathBuf;

    /// A path where nothing is yet.
    fn fresh_path(&self, name: &str) -> PathBuf;

    /// Sends a question to a running guest; resynchronises the stream first.
    async fn ask(&self, stream: &mut UnixStream, question: Question) -> std::io::Result<u64>;

    /// Machine processes of this engine that are alive.
    fn living(&self) -> usize;
}

/// Reason why a case failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The guest did not answer.
    #[error("the guest did not answer {question:?}")]
    Guest {
        /// The request.
        question: Question,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// The deadline passed.
    #[error("{0} took too long")]
    Late(&'static str),
    /// The engine broke a promise.
    #[error("{0}")]
    Broken(String),
}

type CaseResult = Result<(), Failure>;
type CaseFuture<'a> = Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;
type Case = for<'a> fn(&'a Suite<'a>) -> CaseFuture<'a>;

/// Result of one case.
#[derive(Debug)]
pub struct Outcome {
    /// The case.
    pub name: &'static str,
    /// `Ok(None)`: passed; `Ok(Some(reason))`: not possible on this host.
    pub result: Result<Option<String>, Failure>,
    /// Duration of the case.
    pub took: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, result, took } = self;
        write!(f, "case {name} ... ")?;
        match result {
            Ok(None) => write!(f, "ok ({:.1} ms)", took.as_secs_f64() * 1_000.0),
            Ok(Some(reason)) => write!(f, "skipped: {reason}"),
            Err(failure) => write!(f, "FAILED: {}", pandastack_types::chain(failure)),
        }
    }
}

/// Results of all cases.
#[derive(Debug)]
pub struct Summary {
    /// In the order they ran.
    pub outcomes: Vec<Outcome>,
}

impl Summary {
    /// Prints a line for every case, which `cargo xtask test` counts, and panics if one failed.
    pub fn assert_passed(&self) {
        self.outcomes.iter().for_each(|outcome| println!("{outcome}"));
        let failed: Vec<_> =
            self.outcomes.iter().filter(|outcome| outcome.result.is_err()).map(|o| o.name).collect();
        assert!(failed.is_empty(), "engine conformance: {failed:?} failed");
    }
}

/// Cases that every engine runs.
const CASES: &[(&str, Case)] = &[
    ("machines are handed out paused", |suite| Box::pin(suite.machines_are_handed_out_paused())),
    ("pause and resume can be repeated", |suite| Box::pin(suite.pause_and_resume_can_be_repeated())),
    ("restore continues memory", |suite| Box::pin(suite.restore_continues_memory())),
    ("restores are independent", |suite| Box::pin(suite.restores_are_independent())),
    ("a saved machine goes on", |suite| Box::pin(suite.a_saved_machine_goes_on())),
    ("saving a running machine is refused", |suite| Box::pin(suite.saving_a_running_machine_is_refused())),
    ("a new guest stream replaces the old", |suite| Box::pin(suite.a_new_guest_stream_replaces_the_old())),
    ("adopted machines are whole", |suite| Box::pin(suite.adopted_machines_are_whole())),
    ("kill fires exited", |suite| Box::pin(suite.kill_fires_exited())),
    ("a failed restore leaves no process", |suite| Box::pin(suite.a_failed_restore_leaves_no_process())),
];

/// Cases of engines that can fork.
const FORK_CASES: &[(&str, Case)] = &[
    ("forks are independent", |suite| Box::pin(suite.forks_are_independent())),
    ("forks have disks of their own", |suite| Box::pin(suite.forks_have_disks_of_their_own())),
    ("forks of forks continue", |suite| Box::pin(suite.forks_of_forks_continue())),
    ("a saved fork restores", |suite| Box::pin(suite.a_saved_fork_restores())),
    ("forks outlive their parent", |suite| Box::pin(suite.forks_outlive_their_parent())),
    ("an adopted machine forks", |suite| Box::pin(suite.an_adopted_machine_forks())),
    ("a parent goes on at once", |suite| Box::pin(suite.a_parent_goes_on_at_once())),
    ("a parent is forked when it is paused", |suite| Box::pin(suite.a_parent_is_forked_when_it_is_paused())),
    ("a parent that is not paused goes on", |suite| Box::pin(suite.a_parent_that_is_not_paused_goes_on())),
    ("a bad place fails alone", |suite| Box::pin(suite.a_bad_place_fails_alone())),
    ("forking a running machine is refused", |suite| Box::pin(suite.forking_a_running_machine_is_refused())),
];

/// Runs all cases on one template that is booted and saved first.
pub async fn run(fixture: &dyn Fixture) -> Summary {
    let mut outcomes = Vec::new();
    let started = Instant::now();
    let name = "boot answers and saves";
    let suite =
        match timeout(BOOT_MAX + CASE_MAX, Suite::prepare(fixture)).await.unwrap_or(Err(Failure::Late(name)))
        {
            Ok(suite) => suite,
            Err(failure) => {
                outcomes.push(Outcome { name, result: Err(failure), took: started.elapsed() });
                return Summary { outcomes };
            }
        };
    outcomes.push(Outcome { name, result: Ok(None), took: started.elapsed() });
    for &(name, case) in CASES {
        outcomes.push(suite.run_case(name, case).await);
    }
    let capabilities = fixture.engine().capabilities();
    for &(name, case) in FORK_CASES {
        if capabilities.fork {
            outcomes.push(suite.run_case(name, case).await);
        } else {
            let reason = capabilities.fork_reason.clone().unwrap_or_else(|| "no reason given".to_owned());
            outcomes.push(Outcome { name, result: Ok(Some(reason)), took: Duration::ZERO });
        }
    }
    Summary { outcomes }
}

/// A fixture and the snapshot that its cases start from. The guest in it remembers [`TEMPLATE_NUMBER`].
struct Suite<'a> {
    fixture: &'a dyn Fixture,
    state: PathBuf,
    memory: PathBuf,
    disk: PathBuf,
}

/// Number that the template's guest keeps, in memory and on disk.
const TEMPLATE_NUMBER: u64 = 7;

impl<'a> Suite<'a> {
    /// Boots a guest, has it remember, saves it.
    async fn prepare(fixture: &'a dyn Fixture) -> Result<Self, Failure> {
        let machine = fixture.engine().boot(fixture.boot().await).await?;
        machine.resume().await?;
        let mut guest = machine.connect_guest().await?;
        for question in [Question::Remember(TEMPLATE_NUMBER), Question::Write(TEMPLATE_NUMBER)] {
            let answer = ask_within(fixture, &mut guest, question, BOOT_MAX).await?;
            expect(answer, TEMPLATE_NUMBER, "the booted guest's answer")?;
        }
        machine.pause().await?;
        let target = save(fixture, &*machine).await?;
        let disk = fixture.place(&machine.record().disk).await.disk;
        machine.kill().await?;
        Ok(Self { fixture, state: target.state, memory: target.memory, disk })
    }

    async fn run_case(&self, name: &'static str, case: Case) -> Outcome {
        let started = Instant::now();
        let result = timeout(CASE_MAX, case(self)).await.unwrap_or(Err(Failure::Late(name)));
        let left = self.fixture.living();
        let result = match result {
            Ok(()) if left != 0 => Err(Failure::Broken(format!("{left} machine processes were left behind"))),
            result => result.map(|()| None),
        };
        Outcome { name, result, took: started.elapsed() }
    }

    async fn restored(&self) -> Result<Arc<dyn Machine>, Failure> {
        let place = self.fixture.place(&self.disk).await;
        let (state, memory) = (self.state.clone(), self.memory.clone());
        Ok(self
            .fixture
            .engine()
            .restore(Restore { shape: self.fixture.shape(), place, state, memory })
            .await?)
    }

    /// Resumes a machine and sends it a question over a new stream.
    async fn run_and_ask(&self, machine: &dyn Machine, question: Question) -> Result<u64, Failure> {
        machine.resume().await?;
        self.ask(machine, question).await
    }

    async fn ask(&self, machine: &dyn Machine, question: Question) -> Result<u64, Failure> {
        let mut guest = machine.connect_guest().await?;
        ask_within(self.fixture, &mut guest, question, ANSWER_MAX).await
    }

    async fn fork_one(&self, parent: &dyn Machine) -> Result<Arc<dyn Machine>, Failure> {
        let place = self.fixture.place_beside(parent).await;
        one(parent.fork(vec![place]).await?)
    }

    async fn machines_are_handed_out_paused(&self) -> CaseResult {
        let machine = self.restored().await?;
        expect(machine.run_state().await?, RunState::Paused, "state of a restored machine")?;
        machine.resume().await?;
        expect(machine.run_state().await?, RunState::Running, "state after resume")?;
        Ok(machine.kill().await?)
    }

    async fn pause_and_resume_can_be_repeated(&self) -> CaseResult {
        let machine = self.restored().await?;
        machine.pause().await?;
        machine.resume().await?;
        machine.resume().await?;
        expect(self.ask(&*machine, Question::Recall).await?, TEMPLATE_NUMBER, "answer after two resumes")?;
        machine.pause().await?;
        machine.pause().await?;
        expect(machine.run_state().await?, RunState::Paused, "state after two pauses")?;
        Ok(machine.kill().await?)
    }

    async fn restore_continues_memory(&self) -> CaseResult {
        let machine = self.restored().await?;
        expect(self.run_and_ask(&*machine, Question::Recall).await?, TEMPLATE_NUMBER, "remembered number")?;
        expect(self.ask(&*machine, Question::Read).await?, TEMPLATE_NUMBER, "number on disk")?;
        Ok(machine.kill().await?)
    }

    async fn restores_are_independent(&self) -> CaseResult {
        let (one, two) = (self.restored().await?, self.restored().await?);
        self.run_and_ask(&*one, Question::Remember(100)).await?;
        self.ask(&*one, Question::Write(101)).await?;
        expect(self.run_and_ask(&*two, Question::Recall).await?, TEMPLATE_NUMBER, "memory of the second")?;
        expect(self.ask(&*two, Question::Read).await?, TEMPLATE_NUMBER, "disk of the second")?;
        expect(self.ask(&*one, Question::Recall).await?, 100, "memory of the first")?;
        one.kill().await?;
        two.kill().await?;
        let third = self.restored().await?;
        expect(self.run_and_ask(&*third, Question::Recall).await?, TEMPLATE_NUMBER, "memory of a later one")?;
        Ok(third.kill().await?)
    }

    async fn a_saved_machine_goes_on(&self) -> CaseResult {
        let machine = self.restored().await?;
        self.run_and_ask(&*machine, Question::Remember(20)).await?;
        machine.pause().await?;
        let first = save(self.fixture, &*machine).await?;
        expect(machine.run_state().await?, RunState::Paused, "state after a save")?;
        expect(self.run_and_ask(&*machine, Question::Remember(21)).await?, 21, "answer after a save")?;
        machine.pause().await?;
        let second = save(self.fixture, &*machine).await?;
        for (target, expected) in [(first, 20), (second, 21)] {
            let place = self.fixture.place(&machine.record().disk).await;
            let SaveTarget { state, memory, .. } = target;
            let restore = Restore { shape: self.fixture.shape(), place, state, memory };
            let again = self.fixture.engine().restore(restore).await?;
            expect(self.run_and_ask(&*again, Question::Recall).await?, expected, "memory of a save")?;
            again.kill().await?;
        }
        Ok(machine.kill().await?)
    }

    async fn saving_a_running_machine_is_refused(&self) -> CaseResult {
        let machine = self.restored().await?;
        machine.resume().await?;
        let refused = save(self.fixture, &*machine).await.is_err();
        expect(refused, true, "refusal to save a running machine")?;
        expect(self.ask(&*machine, Question::Recall).await?, TEMPLATE_NUMBER, "answer after the refusal")?;
        Ok(machine.kill().await?)
    }

    async fn a_new_guest_stream_replaces_the_old(&self) -> CaseResult {
        let machine = self.restored().await?;
        machine.resume().await?;
        let mut old = machine.connect_guest().await?;
        ask_within(self.fixture, &mut old, Question::Recall, ANSWER_MAX).await?;
        let mut new = machine.connect_guest().await?;
        let answer = ask_within(self.fixture, &mut new, Question::Recall, ANSWER_MAX).await?;
        expect(answer, TEMPLATE_NUMBER, "answer on the new stream")?;
        let stale = ask_within(self.fixture, &mut old, Question::Recall, ANSWER_MAX).await;
        expect(stale.is_err(), true, "end of the old stream")?;
        Ok(machine.kill().await?)
    }

    async fn adopted_machines_are_whole(&self) -> CaseResult {
        let machine = self.restored().await?;
        self.run_and_ask(&*machine, Question::Remember(30)).await?;
        let record = machine.record().clone();
        drop(machine);
        let adopted = self.fixture.engine().adopt(record.clone()).await?;
        expect(adopted.record() == &record, true, "equality of the records")?;
        expect(adopted.run_state().await?, RunState::Running, "state of the adopted machine")?;
        expect(self.ask(&*adopted, Question::Recall).await?, 30, "memory of the adopted machine")?;
        adopted.kill().await?;
        match self.fixture.engine().adopt(record).await {
            Err(EngineError::Exited(_)) => Ok(()),
            Err(error) => Err(Failure::Broken(format!("adopting a dead machine must say so, not {error:?}"))),
            Ok(_) => Err(Failure::Broken("a dead machine was adopted".to_owned())),
        }
    }

    async fn kill_fires_exited(&self) -> CaseResult {
        let machine = self.restored().await?;
        let mut exited = machine.exited();
        expect(exited.borrow().is_none(), true, "silence of a living machine")?;
        machine.resume().await?;
        machine.kill().await?;
        machine.kill().await?;
        let fired = timeout(ANSWER_MAX, exited.wait_for(Option::is_some)).await;
        expect(fired.is_ok_and(|fired| fired.is_ok()), true, "event of the end")?;
        expect(machine.resume().await.is_err(), true, "refusal to resume a dead machine")
    }

    async fn a_failed_restore_leaves_no_process(&self) -> CaseResult {
        let whole = std::fs::read(&self.state).map_err(EngineError::io("read the state", &self.state))?;
        let state = self.fixture.fresh_path("truncated");
        std::fs::write(&state, &whole[..whole.len() / 2])
            .map_err(EngineError::io("write the state", &state))?;
        let place = self.fixture.place(&self.disk).await;
        let restore = Restore { shape: self.fixture.shape(), place, state, memory: self.memory.clone() };
        match self.fixture.engine().restore(restore).await {
            Err(_) => Ok(()),
            Ok(_) => Err(Failure::Broken("half a state was restored".to_owned())),
        }
    }
}

async fn ask_within(
    fixture: &dyn Fixture,
    guest: &mut UnixStream,
    question: Question,
    limit: Duration,
) -> Result<u64, Failure> {
    let answer = timeout(limit, fixture.ask(guest, question)).await;
    answer
        .map_err(|_| Failure::Late("the guest's answer"))?
        .map_err(|source| Failure::Guest { question, source })
}

async fn save(fixture: &dyn Fixture, machine: &dyn Machine) -> Result<SaveTarget, Failure> {
    save_over(fixture, machine, machine.record().base_memory.clone()).await
}

/// Saves over a clone of `base`.
async fn save_over(
    fixture: &dyn Fixture,
    machine: &dyn Machine,
    base: PathBuf,
) -> Result<SaveTarget, Failure> {
    let memory = fixture.clone_memory(&base).await;
    let state = fixture.fresh_path("state");
    let target = SaveTarget { state: state.clone(), memory: memory.clone(), base: base.clone() };
    let saved = machine.save(target).await?;
    expect(saved.state_bytes > 0, true, "size of the state")?;
    Ok(SaveTarget { state, memory, base })
}

fn one(mut outcomes: Vec<crate::Result<Arc<dyn Machine>>>) -> Result<Arc<dyn Machine>, Failure> {
    match (outcomes.pop(), outcomes.len()) {
        (Some(outcome), 0) => Ok(outcome?),
        _ => Err(Failure::Broken("one place did not give one outcome".to_owned())),
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, what: &str) -> CaseResult {
    if found == wanted {
        return Ok(());
    }
    Err(Failure::Broken(format!("{what}: {found:?} instead of {wanted:?}")))
}
