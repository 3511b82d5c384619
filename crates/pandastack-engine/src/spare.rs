//! Processes that are started ahead of their machines, where starting one takes longer than loading a machine into it.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::Confinement;

/// Files of a process that has no machine yet.
#[derive(Debug)]
pub struct SpareFiles {
    /// As in [`MachineFiles`](crate::MachineFiles).
    pub runtime_dir: PathBuf,
    /// Tap device opened in the machine's network namespace.
    pub tap: OwnedFd,
    /// Confinement of the process.
    pub confinement: Confinement,
}

/// An empty process of one engine, started and locked in. Dropping it ends the process.
pub struct Spare(Box<dyn Any + Send + Sync>);

impl Spare {
    /// Wraps an engine's handle of the process.
    pub fn new(process: impl Any + Send + Sync) -> Self {
        Self(Box::new(process))
    }

    /// The value that [`Spare::new`] was given; `None` if another engine made it.
    pub fn into_inner<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|process| *process)
    }
}

impl fmt::Debug for Spare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spare")
    }
}
