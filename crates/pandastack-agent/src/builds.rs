//! Builds of templates, as control shows them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use pandastack_types::api::{Build, BuildStatus};
use pandastack_types::{BuildId, chain};

use crate::error::{AgentError, Result};

/// Builds remembered; older ones are forgotten.
const BUILDS_MAX: usize = 64;
/// Log lines kept of one build; the oldest go first.
const BUILD_LOG_LINES_MAX: usize = 2_000;

/// The builds of a host, the latest last.
#[derive(Default)]
pub(crate) struct Builds(Mutex<VecDeque<Build>>);

impl Builds {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Build>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, the latest first.
    pub(crate) fn list(&self) -> Vec<Build> {
        self.lock().iter().rev().cloned().collect()
    }

    pub(crate) fn get(&self, id: &BuildId) -> Result<Build> {
        self.lock()
            .iter()
            .find(|build| build.id == *id)
            .cloned()
            .ok_or_else(|| AgentError::NoBuild(id.clone()))
    }

    /// Records the current phase of a build.
    pub(crate) fn progress(&self, id: &BuildId, phase: &str, line: String) {
        tracing::info!(build = %id, phase, "{line}");
        if let Some(build) = self.lock().iter_mut().find(|build| build.id == *id) {
            build.phase = phase.to_owned();
            if build.log.len() == BUILD_LOG_LINES_MAX {
                build.log.remove(0);
            }
            build.log.push(line);
        }
    }

    /// Notes how a build ended. The cause of a failure names files of the host, so tenants get the
    /// public text alone.
    pub(crate) fn finish(&self, id: &BuildId, error: Option<&AgentError>) {
        let cause = error.map(|error| chain(error));
        if let Some(cause) = &cause {
            tracing::error!(build = %id, error = cause, "a template could not be built");
        }
        if let Some(build) = self.lock().iter_mut().find(|build| build.id == *id) {
            build.status = if error.is_none() { BuildStatus::Done } else { BuildStatus::Failed };
            build.phase = build_phase_at_end(error.is_none()).to_owned();
            build.error = error.map(AgentError::public_text);
            build.detail = cause.filter(|cause| build.error.as_ref() != Some(cause));
            build.ended_at = Some(Timestamp::now());
        }
    }

    /// Adds a build.
    pub(crate) fn add(&self, build: Build) {
        let mut builds = self.lock();
        if builds.len() == BUILDS_MAX {
            builds.pop_front();
        }
        builds.push_back(build);
    }
}

fn build_phase_at_end(ok: bool) -> &'static str {
    if ok { "ready" } else { "failed" }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;

    #[test]
    fn only_operators_see_host_paths_in_build_failures() {
        let builds = Builds::default();
        let failed = |error: AgentError| {
            let id = BuildId::random();
            builds.add(Build {
                id: id.clone(),
                name: "base".to_owned(),
                status: BuildStatus::Running,
                phase: String::new(),
                error: None,
                detail: None,
                started_at: Timestamp::now(),
                ended_at: None,
                log: Vec::new(),
                tags: Vec::new(),
                cached_steps: None,
                steps: None,
                failure: None,
                rebuild_of: None,
                changes: None,
            });
            builds.finish(&id, Some(&error));
            let build = builds.get(&id).unwrap();
            (build.error.unwrap(), build.detail)
        };
        let path = Path::new("/srv/pandastack/images");
        let (error, detail) = failed(AgentError::io("write", path)(io::Error::other("no")));
        assert!(!error.contains("/srv"), "{error}");
        assert!(detail.is_some_and(|detail| detail.contains("/srv/pandastack/images")));
        assert_eq!(failed(AgentError::Launch("slow".to_owned())), ("slow".to_owned(), None));
    }
}
