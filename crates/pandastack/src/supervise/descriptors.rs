//! Open files of a server role. A host of 16,384 slots needs a handful for each, an edge two for every connection; what a
//! login shell passes on is often 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that a role asks for. Machines have a limit of their own.
const DESCRIPTORS_WANTED: u64 = 131_072;

/// Asks for as many as are needed, or as many as this user may have.
pub fn allow_many() {
    // No limit is `None`.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|now| now >= DESCRIPTORS_WANTED) {
        return;
    }
    let wanted = Some(DESCRIPTORS_WANTED);
    let most = maximum.map(|most| most.max(DESCRIPTORS_WANTED));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: most });
    // Only root may have more than what it was started with.
    if raised.is_err() && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        tracing::debug!(now = current, "the limit of open files stays as it is");
    }
}
