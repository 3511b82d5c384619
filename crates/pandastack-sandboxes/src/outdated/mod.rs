//! Frozen states that hold outdated kernels, guest programs and engines.
//!
//! ```text
//!   agents --components of states, versions of today--> survey --judge--> list   (GET /v1/outdated)
//!                                                          |
//!     agents <--verdicts-- watch (leader, by the policy) <-+--> event `outdated`
//! ```
//!
//! Must hold: an owner is notified before the policy acts, and an agent refuses a state or drops
//! its memory only after the grace period. The verdict is kept by the agent with the state, so that
//! it holds for every way to wake a sandbox. States of apps, functions and databases are listed
//! with their owner, and their services replace them; the policy does not touch them.

pub mod advisories;
mod judge;
mod list;
mod survey;
mod version;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use pandastack_types::api::OutdatedAction;

use self::advisories::{Advisory, AdvisoryFile};
pub use self::list::{Scope, list};
pub use self::watch::watch;

/// Default interval between checks of all states.
pub const CHECK_EVERY: Duration = Duration::from_secs(600);
/// Default number of days between notifying the owner and the first action.
pub const GRACE_DAYS: u32 = 7;

/// The operator's policy for outdated states.
#[derive(Debug, Clone)]
pub struct OutdatedPolicy {
    /// Action when an outdated state is used.
    pub action: OutdatedAction,
    /// Days between telling the owner and the first action.
    pub grace_days: u32,
    /// Act only on states that an advisory names.
    pub only_advisories: bool,
    /// Advisories; `None` for none.
    pub advisories: Option<Arc<AdvisoryFile>>,
    /// Interval between checks of all states.
    pub check_every: Duration,
}

impl Default for OutdatedPolicy {
    fn default() -> Self {
        Self {
            action: OutdatedAction::Keep,
            grace_days: GRACE_DAYS,
            only_advisories: false,
            advisories: None,
            check_every: CHECK_EVERY,
        }
    }
}

impl OutdatedPolicy {
    fn advisories(&self) -> Arc<[Advisory]> {
        self.advisories.as_ref().map_or_else(|| Arc::from([]), |file| file.current())
    }

    fn grace(&self) -> SignedDuration {
        SignedDuration::from_hours(24 * i64::from(self.grace_days))
    }
}
