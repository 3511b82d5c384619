//! Rate limits: requests of a workspace, and invalid keys from an address. Each is a bucket, refilled
//! steadily.
//!
//! Kept in memory: with several replicas, each one limits the requests that it receives.
//!
//! Written by hand because a limiter of the `governor` crate has one rate for all its keys and
//! charges every call. Here a workspace may have its own rate, and an address is checked before its
//! key, and charged only if the key is invalid.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pandastack_types::limits::{KEY_FAILURES_BURST, KEY_FAILURES_PER_SECOND, REQUEST_BURST_SECONDS};
use pandastack_types::{Error, ErrorCode, WorkspaceId};

/// Buckets remembered at once. Beyond it the fuller half is forgotten: for a full bucket that changes nothing,
/// and for the others the least.
const BUCKETS_MAX: usize = 10_000;

/// Fill rate and capacity of a bucket.
#[derive(Debug, Clone, Copy)]
struct Flow {
    per_second: f64,
    full: f64,
}

struct Bucket {
    left: f64,
    at: Instant,
    /// Rate and capacity of the bucket's owner.
    flow: Flow,
}

impl Bucket {
    /// Level of the bucket now, if it fills at this rate.
    fn filled(&self, flow: Flow, now: Instant) -> f64 {
        flow.full.min(self.left + flow.per_second * now.saturating_duration_since(self.at).as_secs_f64())
    }

    /// Level of the bucket as a fraction of its capacity.
    fn share(&self, now: Instant) -> f64 {
        self.filled(self.flow, now) / self.flow.full
    }
}

/// A bucket for each key.
struct Buckets<K>(Mutex<HashMap<K, Bucket>>);

impl<K: Eq + Hash + Clone> Buckets<K> {
    /// Takes an amount from a bucket; returns whether there was any.
    fn take(&self, key: &K, flow: Flow, amount: f64, now: Instant) -> bool {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = buckets.get(key).map_or(flow.full, |bucket| bucket.filled(flow, now));
        let admitted = left >= 1.0;
        if admitted && amount > 0.0 {
            if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(key) {
                prune(&mut buckets, now);
            }
            buckets.insert(key.clone(), Bucket { left: left - amount, at: now, flow });
        }
        admitted
    }

    /// Returns one request to a bucket.
    fn put_back(&self, key: &K, flow: Flow, now: Instant) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get_mut(key) {
            let left = flow.full.min(bucket.filled(flow, now) + 1.0);
            *bucket = Bucket { left, at: now, flow };
        }
    }
}

/// Removes full buckets, and the fuller half of the rest, so that not every new key causes a prune.
fn prune<K>(buckets: &mut HashMap<K, Bucket>, now: Instant) {
    let mut shares: Vec<f64> = buckets.values().map(|bucket| bucket.share(now)).collect();
    let middle = shares.len() / 2;
    let limit = *shares.select_nth_unstable_by(middle, f64::total_cmp).1;
    let mut ties = middle - shares.iter().filter(|share| **share < limit).count();
    buckets.retain(|_, bucket| {
        let share = bucket.share(now);
        let is_tie = share == limit && share < 1.0 && ties > 0;
        ties -= usize::from(is_tie);
        share < limit || is_tie
    });
}

impl<K> Default for Buckets<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Requests of workspaces.
pub(crate) struct Rates {
    /// Default rate of a workspace; `None` for no limit.
    per_second: Option<NonZeroU32>,
    /// Workspaces with one.
    own: Mutex<HashMap<WorkspaceId, NonZeroU32>>,
    buckets: Buckets<WorkspaceId>,
}

impl Rates {
    pub(crate) fn new(per_second: Option<NonZeroU32>) -> Self {
        Self { per_second, own: Mutex::default(), buckets: Buckets::default() }
    }

    /// Records the rate that a workspace's quota gives it.
    pub(crate) fn learn(&self, workspace: &WorkspaceId, rate: Option<u32>) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match rate.and_then(NonZeroU32::new) {
            Some(rate) => own.insert(workspace.clone(), rate),
            None => own.remove(workspace),
        };
    }

    fn of(&self, workspace: &WorkspaceId) -> Option<NonZeroU32> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.get(workspace).copied().or(self.per_second)
    }

    /// Takes one request out of a workspace's bucket, or refuses it.
    pub(crate) fn admit(&self, workspace: &WorkspaceId, now: Instant) -> Result<(), Error> {
        let Some(per_second) = self.of(workspace) else { return Ok(()) };
        let rate = f64::from(per_second.get());
        let flow = Flow { per_second: rate, full: rate * f64::from(REQUEST_BURST_SECONDS) };
        if self.buckets.take(workspace, flow, 1.0, now) {
            return Ok(());
        }
        let what = format!(
            "rate limit exceeded: the workspace may send {per_second} requests per second \
             (`requests_per_second`); slow down"
        );
        Err(Error::new(ErrorCode::RateLimited, what))
    }
}

/// Invalid keys, by the address that sent them.
#[derive(Default)]
pub(crate) struct KeyFailures(Buckets<IpAddr>);

impl KeyFailures {
    const FLOW: Flow = Flow { per_second: KEY_FAILURES_PER_SECOND, full: KEY_FAILURES_BURST };

    /// Refuses an address that tried too many.
    pub(crate) fn admit(&self, address: Option<IpAddr>, now: Instant) -> Result<(), Error> {
        match address {
            Some(address) if !self.0.take(&address, Self::FLOW, 0.0, now) => {
                let what =
                    "too many requests with invalid API keys from this address; check the key, retry later";
                Err(Error::new(ErrorCode::RateLimited, what))
            }
            _ => Ok(()),
        }
    }

    /// Refunds an attempt that was charged before its key was checked.
    pub(crate) fn refund(&self, address: Option<IpAddr>, now: Instant) {
        if let Some(address) = address {
            self.0.put_back(&address, Self::FLOW, now);
        }
    }

    /// Counts one.
    pub(crate) fn note(&self, address: Option<IpAddr>, now: Instant) {
        if let Some(address) = address {
            self.0.take(&address, Self::FLOW, 1.0, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_admitted_then_the_rate_limit_applies() {
        let rates = Rates::new(NonZeroU32::new(10));
        let (one, other) = (WorkspaceId::default_workspace(), "other".parse().unwrap());
        let start = Instant::now();
        let passed = |at| (0..100).filter(|_| rates.admit(&one, at).is_ok()).count();
        assert_eq!(passed(start), 20, "two seconds' worth at once");
        assert_eq!(passed(start), 0);
        assert_eq!(passed(start + Duration::from_millis(500)), 5);
        assert_eq!(passed(start + Duration::from_secs(60)), 20, "no more than the burst is saved up");
        assert!(rates.admit(&other, start).is_ok(), "one workspace does not use up another's");
        rates.learn(&one, Some(40));
        assert_eq!(passed(start + Duration::from_secs(120)), 80, "a rate of its own");
    }

    #[test]
    fn evicting_rate_buckets_never_refills_a_spent_one() {
        let rates = Rates::new(NonZeroU32::new(10));
        let (fast, now): (WorkspaceId, _) = ("fast".parse().unwrap(), Instant::now());
        rates.learn(&fast, Some(1000));
        assert!((0..1900).all(|_| rates.admit(&fast, now).is_ok()));
        for n in 0..2 * BUCKETS_MAX {
            let other = format!("w{n}").parse().unwrap();
            // A quarter is left; of `fast` a twentieth.
            assert!((0..15).all(|_| rates.admit(&other, now).is_ok()));
            assert!(rates.buckets.0.lock().unwrap().len() <= BUCKETS_MAX);
        }
        assert_eq!((0..3000).filter(|_| rates.admit(&fast, now).is_ok()).count(), 100);
    }

    #[test]
    fn without_a_rate_limit_all_requests_are_admitted() {
        let rates = Rates::new(None);
        let now = Instant::now();
        assert!((0..10_000).all(|_| rates.admit(&WorkspaceId::default_workspace(), now).is_ok()));
    }

    #[test]
    fn failed_key_attempts_are_rate_limited_per_address() {
        let (failures, now) = (KeyFailures::default(), Instant::now());
        let (bad, good) = (Some([10, 0, 0, 1].into()), Some([10, 0, 0, 2].into()));
        let tries = |at| {
            let tried = (0..1000).take_while(|_| failures.admit(bad, at).is_ok());
            tried.inspect(|_| failures.note(bad, at)).count()
        };
        assert_eq!(tries(now), KEY_FAILURES_BURST as usize);
        assert_eq!(tries(now + Duration::from_secs(10)), (10.0 * KEY_FAILURES_PER_SECOND) as usize);
        assert!(failures.admit(good, now).is_ok() && failures.admit(None, now).is_ok());
        failures.refund(bad, now + Duration::from_secs(10));
        assert_eq!(tries(now + Duration::from_secs(10)), 1, "what is put back can be tried again");
    }
}
