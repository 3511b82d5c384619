//! The limit of open files of a server role. A host needs several for each of its 16,384 slots and
//! an edge two for every connection; a login shell often allows only 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that a role needs. Machines have their own limit.
const DESCRIPTORS_WANTED: u64 = 131_072;

/// Raises the limit to what a role needs, or to the user's maximum.
pub fn raise_limit() {
    // No limit is `None`.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|now| now >= DESCRIPTORS_WANTED) {
        return;
    }
    let wanted = Some(DESCRIPTORS_WANTED);
    let most = maximum.map(|most| most.max(DESCRIPTORS_WANTED));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: most });
    // Only root can raise the hard limit.
    if raised.is_err() && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        tracing::debug!(now = current, "cannot raise the limit of open files");
    }
}
