//! Limits open event streams, by key and by workspace.
//!
//! Each follower costs a read of the store per change of its workspace, so their number is bounded. Counted
//! in memory: with several replicas each admits its share.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pandastack_rest::Caller;
use pandastack_types::limits::{EVENT_FOLLOWERS_PER_KEY_MAX, EVENT_FOLLOWERS_PER_WORKSPACE_MAX};
use pandastack_types::{Error, ErrorCode, Result, WorkspaceId};
use tokio::time::Instant;

#[derive(Default)]
struct StreamCounts {
    /// Access tokens of sandboxes have no key of their own: those of a workspace count together.
    by_key: HashMap<(WorkspaceId, String), u32>,
    by_workspace: HashMap<WorkspaceId, u32>,
}

/// Open streams of events.
#[derive(Clone)]
pub(crate) struct Followers {
    open: Arc<Mutex<StreamCounts>>,
    comments_every: Duration,
}

/// A slot among the followers, held until it is dropped.
pub(crate) struct FollowerSlot {
    followers: Followers,
    key: (WorkspaceId, String),
}

impl Followers {
    /// No followers yet. A stream that is silent for `comments_every` gets a comment.
    pub(crate) fn new(comments_every: Duration) -> Self {
        Self { open: Arc::default(), comments_every }
    }

    /// Takes a slot for a caller, or refuses.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<FollowerSlot> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = |what: &str, limit: u32| {
            let message =
                format!("the limit of {limit} open event streams of a {what} is reached; close one first");
            Err(Error::new(ErrorCode::QuotaExceeded, message))
        };
        let key = (caller.workspace.clone(), caller.prefix.clone());
        if count(&open.by_key, &key) >= EVENT_FOLLOWERS_PER_KEY_MAX {
            return refused("key", EVENT_FOLLOWERS_PER_KEY_MAX);
        }
        if count(&open.by_workspace, &caller.workspace) >= EVENT_FOLLOWERS_PER_WORKSPACE_MAX {
            return refused("workspace", EVENT_FOLLOWERS_PER_WORKSPACE_MAX);
        }
        *open.by_key.entry(key.clone()).or_default() += 1;
        *open.by_workspace.entry(caller.workspace.clone()).or_default() += 1;
        Ok(FollowerSlot { followers: self.clone(), key })
    }
}

impl FollowerSlot {
    /// When a comment is due after a frame that is sent now.
    pub(crate) fn comment_at(&self) -> Instant {
        Instant::now() + self.followers.comments_every
    }
}

impl Drop for FollowerSlot {
    fn drop(&mut self) {
        let mut open = self.followers.open.lock().unwrap_or_else(PoisonError::into_inner);
        leave(&mut open.by_key, &self.key);
        leave(&mut open.by_workspace, &self.key.0);
    }
}

fn count<K: Eq + Hash>(counts: &HashMap<K, u32>, key: &K) -> u32 {
    counts.get(key).copied().unwrap_or_default()
}

fn leave<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use pandastack_types::api::Role;

    use super::*;

    #[test]
    fn event_followers_are_limited_per_key_and_per_workspace() {
        let caller = |workspace: &str, prefix: String| Caller {
            workspace: workspace.parse().unwrap(),
            prefix,
            label: String::new(),
            role: Role::Viewer,
            operator: false,
            revoked: Default::default(),
        };
        let followers = Followers::new(Duration::ZERO);
        let one = caller("shop", "pds_1".into());
        let mut places: Vec<_> =
            (0..EVENT_FOLLOWERS_PER_KEY_MAX).map(|_| followers.admit(&one).unwrap()).collect();
        assert_eq!(followers.admit(&one).err().unwrap().code, ErrorCode::QuotaExceeded);
        for n in EVENT_FOLLOWERS_PER_KEY_MAX..EVENT_FOLLOWERS_PER_WORKSPACE_MAX {
            places.push(followers.admit(&caller("shop", format!("pds_{n}"))).unwrap());
        }
        let another = caller("shop", "pds_other".into());
        assert_eq!(followers.admit(&another).err().unwrap().code, ErrorCode::QuotaExceeded);
        assert!(followers.admit(&caller("bakery", "pds_b".into())).is_ok(), "nobody else's");
        places.pop();
        assert!(followers.admit(&another).is_ok());
        drop(places);
        let open = followers.open.lock().unwrap();
        assert!(open.by_key.is_empty() && open.by_workspace.is_empty());
    }
}
