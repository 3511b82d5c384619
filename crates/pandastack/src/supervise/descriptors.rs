//! Open files of a server role. A host of 16,384 slots needs a handful for each, an edge two for every connection; what a
//! login shell passes on is often 1024.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Open files that a role asks for. Machines have a limit of their own.
const DESCRIPTORS_WANTED: u64 = 131_072;

/// Asks for as many as are needed, or as many as this user may have.
pub fn allow_many() {
    let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if now >= DESCRIPTORS_WANTED {
        return;
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS_WANTED, most.max(DESCRIPTORS_WANTED));
    // Only root may have more than what it was started with.
    if raised.is_err() && setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err() {
        tracing::debug!(now, "the limit of open files stays as it is");
    }
}
