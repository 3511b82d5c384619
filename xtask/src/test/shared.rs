//! The platform that most end-to-end tests use. One lane starts it, others wait for it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};

use super::seed;
use crate::platform::{Platform, Scratch};
use crate::{azurite, host, postgres, python};

/// Variable with the path of Azure's emulator.
pub const AZURITE: &str = "PANDASTACK_TEST_AZURITE";
/// Time limit of one test in a full run.
const FULL_TEST_SECONDS_MAX: &str = "7200";
const NOT_STARTED: &str = "no platform was started";

/// A running platform, and what tests on it need.
pub struct SharedPlatform {
    scratch: Scratch,
    /// The store that other platforms start with.
    seed: Option<PathBuf>,
    interpreter: PathBuf,
    postgres: PathBuf,
    azurite: Option<PathBuf>,
    /// Tests that take many minutes run, too.
    full: bool,
}

impl SharedPlatform {
    /// Installs what the tests need and starts it.
    fn start(start: impl FnOnce(&[&str]) -> Result<Scratch>, full: bool) -> Result<Self> {
        host::install_for_tests()?;
        host::install_browser()?;
        let (interpreter, postgres, azurite) = (python::ensure()?, postgres::ensure()?, azurite::ensure()?);
        let scratch = start(&["base", "postgres-16"])?;
        let platform = scratch.platform()?;
        // Before the others, which only tests on the shared platform use: every platform copies all of it.
        let seed = seed::make(&platform.ready.data_dir)?;
        platform.build_template("code-interpreter")?;
        Ok(Self { scratch, seed, interpreter, postgres, azurite, full })
    }

    /// The platform.
    pub fn platform(&self) -> Result<&Platform> {
        self.scratch.platform()
    }

    /// The interpreter of the tests, pointed at the platform.
    pub fn python(&self) -> Result<Command> {
        // Tests that start platforms of their own need root.
        let mut python = self.platform()?.point(host::as_root(&self.interpreter));
        python.env("PANDASTACK_TEST_POSTGRES_BIN", &self.postgres);
        python.envs(self.azurite.as_ref().map(|program| (AZURITE, program)));
        python.envs(self.seed.as_ref().map(|image| (seed::SEED, image)));
        python.envs(self.full.then_some(("PANDASTACK_TEST_FULL", "1")));
        python.envs(self.full.then_some(("PANDASTACK_TEST_SLEEPS", "100")));
        python.envs(self.full.then_some(("PYTEST_TIMEOUT", FULL_TEST_SECONDS_MAX)));
        Ok(python)
    }
}

enum State {
    /// The platform was not started yet, or is starting.
    Expected,
    Running(Arc<SharedPlatform>),
    /// The platform failed to start, or was stopped.
    Absent,
}

/// The platform that lanes share. Those that need it wait until it has started.
pub struct Shared {
    state: Mutex<State>,
    settled: Condvar,
}

impl Shared {
    /// Before the start of the platform.
    pub fn new() -> Self {
        Self { state: Mutex::new(State::Expected), settled: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, state: State) {
        *self.lock() = state;
        self.settled.notify_all();
    }

    /// Starts the platform; `start` makes one with these templates.
    pub fn start(&self, start: impl FnOnce(&[&str]) -> Result<Scratch>, full: bool) -> Result<()> {
        /// Ends the wait of other lanes even if the start panics.
        struct Settle<'a>(&'a Shared);
        impl Drop for Settle<'_> {
            fn drop(&mut self) {
                if matches!(*self.0.lock(), State::Expected) {
                    self.0.settle(State::Absent);
                }
            }
        }
        let _settle = Settle(self);
        self.settle(State::Running(Arc::new(SharedPlatform::start(start, full)?)));
        Ok(())
    }

    /// The platform, once it runs.
    pub fn get(&self) -> Result<Arc<SharedPlatform>> {
        let waited = self.settled.wait_while(self.lock(), |state| matches!(state, State::Expected));
        match &*waited.unwrap_or_else(PoisonError::into_inner) {
            State::Running(shared) => Ok(Arc::clone(shared)),
            State::Expected | State::Absent => Err(anyhow!(NOT_STARTED)),
        }
    }

    /// Stops the platform and returns what it left behind.
    pub fn stop(&self) -> Result<Vec<String>> {
        let State::Running(shared) = std::mem::replace(&mut *self.lock(), State::Absent) else {
            return Err(anyhow!(NOT_STARTED));
        };
        let shared = Arc::into_inner(shared).context("a lane still uses the platform")?;
        shared.scratch.stop()
    }
}
