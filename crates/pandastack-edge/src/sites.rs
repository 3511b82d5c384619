//! Sandboxes that were requested recently, with their routes.
//!
//! A route is kept until a change is reported, not for a time. It is used although it may be stale while its
//! source does not respond, and a sandbox in use is never evicted. A cache with expiry (`moka`) offers none of
//! the three.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pandastack_types::SandboxId;

use crate::error::EdgeError;
use crate::limits::SITES_MAX;
use crate::route::{Location, Route, RouteSource};
use crate::site::Site;
use crate::spread::Load;

/// Recently requested sandboxes.
#[derive(Default)]
pub(crate) struct Sites {
    by_id: RwLock<HashMap<SandboxId, Arc<Site>>>,
    /// Counts all changes, for sandboxes that are not in the map yet: a route that was read before a change
    /// is not stored as fresh after it.
    change: AtomicU64,
}

impl Sites {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<SandboxId, Arc<Site>>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<SandboxId, Arc<Site>>> {
        self.by_id.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &SandboxId) -> Option<Arc<Site>> {
        self.read().get(id).cloned()
    }

    /// The sandbox and its route, from memory if nothing changed.
    pub(crate) async fn find(
        &self,
        id: &SandboxId,
        source: &dyn RouteSource,
    ) -> Result<(Arc<Site>, Arc<Route>), EdgeError> {
        let (site, route) = self.find_any(id, source).await?;
        match &route.to {
            Location::Closed(why) => Err(EdgeError::Suspended(why.clone())),
            Location::Sandbox { .. } | Location::Fixed(_) => Ok((site, route)),
        }
    }

    async fn find_any(
        &self,
        id: &SandboxId,
        source: &dyn RouteSource,
    ) -> Result<(Arc<Site>, Arc<Route>), EdgeError> {
        let Some(site) = self.get(id) else { return self.find_new(id, source).await };
        let change = match site.fresh_route() {
            Ok(route) => return Ok((site, route)),
            Err(change) => change,
        };
        match source.find(id).await {
            Ok(Some(route)) => {
                let route = site.renew(route, change);
                Ok((site, route))
            }
            Ok(None) => {
                self.write().remove(id);
                Err(EdgeError::Unknown)
            }
            Err(error) => {
                tracing::debug!(%error, "cannot refresh a route; using the last known one");
                let route = site.route();
                Ok((site, route))
            }
        }
    }

    async fn find_new(
        &self,
        id: &SandboxId,
        source: &dyn RouteSource,
    ) -> Result<(Arc<Site>, Arc<Route>), EdgeError> {
        let change = self.change.load(Ordering::SeqCst);
        match source.find(id).await {
            Ok(Some(route)) => {
                let site = self.insert(id, route, change);
                let route = site.route();
                Ok((site, route))
            }
            Ok(None) => Err(EdgeError::Unknown),
            Err(error) => Err(EdgeError::Unavailable(error.to_string())),
        }
    }

    /// The number of requests from this edge to a sandbox that are in flight.
    pub(crate) fn load(&self, id: &SandboxId) -> Load {
        self.get(id).map_or_else(Load::default, |site| site.load())
    }

    fn insert(&self, id: &SandboxId, route: Route, change: u64) -> Arc<Site> {
        let mut sites = self.write();
        if sites.len() >= SITES_MAX {
            sites.retain(|_, site| site.is_in_use());
        }
        // Read with the map locked, so that a later change finds the sandbox in the map.
        let is_fresh = self.change.load(Ordering::SeqCst) == change;
        let made = || Arc::new(Site::new(id.clone(), route, is_fresh));
        Arc::clone(sites.entry(id.clone()).or_insert_with(made))
    }

    /// The route of one sandbox, or of all, is read again before its next use.
    pub(crate) fn invalidate(&self, id: Option<&SandboxId>) {
        self.change.fetch_add(1, Ordering::SeqCst);
        match id {
            Some(id) => self.get(id).iter().for_each(|site| site.invalidate()),
            None => self.read().values().for_each(|site| site.invalidate()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use pandastack_types::preview::Visibility;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::route::RouteUnavailable;

    /// A source that returns the state at the time of the request, once released.
    struct Source {
        holds: Mutex<Visibility>,
        asked: Semaphore,
        may_answer: Semaphore,
    }

    impl Source {
        fn new(holds: Visibility) -> Self {
            Self { holds: Mutex::new(holds), asked: Semaphore::new(0), may_answer: Semaphore::new(0) }
        }
    }

    #[async_trait]
    impl RouteSource for Source {
        async fn find(&self, _: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
            let visibility = *self.holds.lock().unwrap();
            self.asked.add_permits(1);
            self.may_answer.acquire().await.unwrap().forget();
            Ok(Some(Route {
                to: Location::Fixed([127, 0, 0, 1].into()),
                visibility,
                host_header: None,
                key: None,
            }))
        }
    }

    /// Looks up a route, which changes while the lookup is in progress.
    async fn find_during_change(sites: &Sites, source: &Source, id: &SandboxId) -> Visibility {
        let change = async {
            source.asked.acquire().await.unwrap().forget();
            *source.holds.lock().unwrap() = Visibility::Off;
            sites.invalidate(Some(id));
            source.may_answer.add_permits(1);
        };
        let (found, ()) = tokio::join!(sites.find(id, source), change);
        found.unwrap_or_else(|_| panic!("not found")).1.visibility
    }

    async fn find(sites: &Sites, source: &Source, id: &SandboxId) -> Visibility {
        source.may_answer.add_permits(1);
        let found = sites.find(id, source).await.unwrap_or_else(|_| panic!("not found"));
        source.may_answer.forget_permits(1);
        found.1.visibility
    }

    #[tokio::test]
    async fn a_route_read_before_an_invalidation_is_reread() {
        let (sites, id) = (Sites::default(), SandboxId::random());
        for visibility in [Visibility::Unlisted, Visibility::Private] {
            // In the first round the sandbox is not cached yet, in the second it is cached and
            // invalid.
            let source = Source::new(visibility);
            sites.invalidate(Some(&id));
            assert_eq!(find_during_change(&sites, &source, &id).await, visibility);
            assert_eq!(find(&sites, &source, &id).await, Visibility::Off);
            *source.holds.lock().unwrap() = Visibility::Unlisted;
            assert_eq!(find(&sites, &source, &id).await, Visibility::Off, "nothing changed: it is not read");
        }
    }
}
