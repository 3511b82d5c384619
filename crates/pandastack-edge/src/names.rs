//! Host names of apps, with the sandboxes and port that serve each.
//!
//! ```text
//!   Host --names, from memory if nothing changed--> sandboxes and port --spread--> one of them --site--> as any other request
//! ```
//!
//! Must hold: every request looks up its sandboxes, so a switch applies to the next request and leaves those
//! in flight alone; a name of no app costs a map lookup; while the source does not respond, the last answer is
//! used. Changes are rare and reported together: everything is then read again.
//!
//! Entries end with a change and not with time, and a stale one is still of use, so no cache with expiry
//! (`moka`) fits.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::app_route::AppRoute;
use crate::limits::NAMES_MAX;
use crate::route::{RouteSource, RouteUnavailable};

/// Recently requested names, including those of no app.
#[derive(Default)]
pub(crate) struct Names(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    by_name: HashMap<String, Entry>,
    /// Counts changes, so that an entry that was read before a change is not stored as fresh after it.
    change: u64,
}

struct Entry {
    named: Option<AppRoute>,
    change: u64,
}

impl Names {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        // Every critical section leaves the map whole, so a panic elsewhere does not make it wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The route of a name; `None` if it belongs to no app.
    pub(crate) async fn find(
        &self,
        name: &str,
        source: &dyn RouteSource,
    ) -> Result<Option<AppRoute>, RouteUnavailable> {
        let (before, change) = {
            let cache = self.cache();
            match cache.by_name.get(name) {
                Some(entry) if entry.change == cache.change => return Ok(entry.named.clone()),
                entry => (entry.map(|entry| entry.named.clone()), cache.change),
            }
        };
        match (source.find_name(name).await, before) {
            (Ok(named), _) => {
                let mut cache = self.cache();
                if cache.by_name.len() >= NAMES_MAX {
                    cache.by_name.clear();
                }
                cache.by_name.insert(name.to_owned(), Entry { named: named.clone(), change });
                Ok(named)
            }
            (Err(error), Some(before)) => {
                tracing::debug!(%error, "cannot refresh a name; using the last known route");
                Ok(before)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Everything is read again before its next use.
    pub(crate) fn invalidate(&self) {
        self.cache().change += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use pandastack_types::SandboxId;

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

        async fn find_name(&self, name: &str) -> Result<Option<AppRoute>, RouteUnavailable> {
            let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            if self.down.load(Ordering::SeqCst) {
                return Err(RouteUnavailable("down".to_owned()));
            }
            Ok((name == "app").then(|| AppRoute::NotServing(asked.to_string())))
        }
    }

    #[tokio::test]
    async fn app_names_are_cached_until_invalidated() {
        let (names, source) = (Names::default(), Source::default());
        let first = Some(AppRoute::NotServing("1".to_owned()));
        assert_eq!(names.find("app", &source).await.unwrap(), first);
        assert_eq!(names.find("app", &source).await.unwrap(), first);
        assert_eq!(names.find("other", &source).await.unwrap(), None);
        assert_eq!(names.find("other", &source).await.unwrap(), None);
        assert_eq!(source.asked.load(Ordering::SeqCst), 2);
        names.invalidate();
        assert_eq!(names.find("app", &source).await.unwrap(), Some(AppRoute::NotServing("3".to_owned())));
    }

    #[tokio::test]
    async fn cached_names_are_used_while_the_source_is_unavailable() {
        let (names, source) = (Names::default(), Source::default());
        let known = names.find("app", &source).await.unwrap();
        names.invalidate();
        source.down.store(true, Ordering::SeqCst);
        assert_eq!(names.find("app", &source).await.unwrap(), known);
        assert!(names.find("new", &source).await.is_err());
    }

    #[tokio::test]
    async fn the_app_name_cache_is_bounded() {
        let (names, source) = (Names::default(), Source::default());
        for n in 0..=NAMES_MAX {
            names.find(&n.to_string(), &source).await.unwrap();
        }
        assert!(names.cache().by_name.len() <= NAMES_MAX);
    }
}
