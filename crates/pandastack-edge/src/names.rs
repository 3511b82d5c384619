//! Host names that lead to an app: which sandboxes and port stand behind each now.
//!
//! ```text
//!   Host --names, from memory if nothing changed--> sandboxes and port --spread--> one of them --site--> as any other request
//! ```
//!
//! Must hold: every request asks again which sandboxes it may go to, so a switch holds for the next request and leaves those
//! under way alone; what is no app's name costs a look at a map; while the source does not answer, what was known before
//! is used. Changes are rare and told as one: everything is then read anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pandastack_types::SandboxId;

use crate::limits::NAMES_MAX;
use crate::route::{RouteSource, RouteUnavailable};

/// What stands behind a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// Sandboxes that serve the same.
    Serving(Instances),
    /// Something that serves nobody yet, and what to do about it.
    NotServing(String),
}

/// Sandboxes of which any can answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instances {
    /// Which, in the order in which they are used.
    pub sandboxes: Arc<[SandboxId]>,
    /// How many of them, from the first on, share requests; each further one is used while those before it are busy.
    pub always: usize,
    /// TCP port inside each.
    pub port: u16,
}

/// Names that were asked for lately; also those that are nobody's.
#[derive(Default)]
pub(crate) struct Names(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_name: HashMap<String, Entry>,
    /// Counts changes, so that what was read before one is not remembered as fresh after it.
    change: u64,
}

struct Entry {
    named: Option<Named>,
    change: u64,
}

impl Names {
    fn known(&self) -> MutexGuard<'_, Known> {
        // Every critical section leaves the map whole, so a panic elsewhere does not make it wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What stands behind a name; `None` when it is nobody's.
    pub(crate) async fn find(
        &self,
        name: &str,
        source: &dyn RouteSource,
    ) -> Result<Option<Named>, RouteUnavailable> {
        let (before, change) = {
            let known = self.known();
            match known.by_name.get(name) {
                Some(entry) if entry.change == known.change => return Ok(entry.named.clone()),
                entry => (entry.map(|entry| entry.named.clone()), known.change),
            }
        };
        match (source.find_name(name).await, before) {
            (Ok(named), _) => {
                let mut known = self.known();
                if known.by_name.len() >= NAMES_MAX {
                    known.by_name.clear();
                }
                known.by_name.insert(name.to_owned(), Entry { named: named.clone(), change });
                Ok(named)
            }
            (Err(error), Some(before)) => {
                tracing::debug!(%error, "a name is used as last known");
                Ok(before)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Everything is read again before its next use.
    pub(crate) fn doubt(&self) {
        self.known().change += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::route::Route;

    #[derive(Default)]
    struct Source {
        asked: AtomicUsize,
        down: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl RouteSource for Source {
        async fn find(&self, _: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
            Ok(None)
        }

        async fn find_name(&self, name: &str) -> Result<Option<Named>, RouteUnavailable> {
            let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            if self.down.load(Ordering::SeqCst) {
                return Err(RouteUnavailable("down".to_owned()));
            }
            Ok((name == "app").then(|| Named::NotServing(asked.to_string())))
        }
    }

    #[tokio::test]
    async fn names_are_asked_for_once_and_again_after_a_change() {
        let (names, source) = (Names::default(), Source::default());
        let first = Some(Named::NotServing("1".to_owned()));
        assert_eq!(names.find("app", &source).await.unwrap(), first);
        assert_eq!(names.find("app", &source).await.unwrap(), first);
        assert_eq!(names.find("other", &source).await.unwrap(), None);
        assert_eq!(names.find("other", &source).await.unwrap(), None);
        assert_eq!(source.asked.load(Ordering::SeqCst), 2);
        names.doubt();
        assert_eq!(names.find("app", &source).await.unwrap(), Some(Named::NotServing("3".to_owned())));
    }

    #[tokio::test]
    async fn what_was_known_is_used_while_the_source_is_away() {
        let (names, source) = (Names::default(), Source::default());
        let known = names.find("app", &source).await.unwrap();
        names.doubt();
        source.down.store(true, Ordering::SeqCst);
        assert_eq!(names.find("app", &source).await.unwrap(), known);
        assert!(names.find("new", &source).await.is_err());
    }

    #[tokio::test]
    async fn names_are_bounded() {
        let (names, source) = (Names::default(), Source::default());
        for n in 0..=NAMES_MAX {
            names.find(&n.to_string(), &source).await.unwrap();
        }
        assert!(names.known().by_name.len() <= NAMES_MAX);
    }
}
