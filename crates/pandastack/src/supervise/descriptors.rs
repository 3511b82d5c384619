//! The limit of open files of a server role. A host needs several for each of its 16,384 slots and
//! an edge two for every connection; a login shell often allows only 1024.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Open files that a role needs. Machines have their own limit.
const DESCRIPTORS_WANTED: u64 = 131_072;

/// Raises the limit to what a role needs, or to the user's maximum.
pub fn raise_limit() {
    let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if now >= DESCRIPTORS_WANTED {
        return;
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS_WANTED, most.max(DESCRIPTORS_WANTED));
    // Only root can raise the hard limit.
    if raised.is_err() && setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err() {
        tracing::debug!(now, "cannot raise the limit of open files");
    }
}
