//! The environment of the guest program: a machine, or a directory in tests.

use std::path::PathBuf;

use crate::process::UserCgroup;

/// The environment of the guest program.
#[derive(Clone, Debug)]
pub(crate) struct GuestEnvironment {
    /// `/` on a machine; elsewhere the directory that `etc` and `run` of the identity are written to.
    pub(crate) root: PathBuf,
    /// This is a machine of our own: clock, host name and users may be changed.
    pub(crate) is_machine: bool,
    /// Group of all user processes.
    pub(crate) cgroup: Option<UserCgroup>,
}
