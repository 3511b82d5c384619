//! Refused connections that wait for the next report to control.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use pandastack_types::agent_api::AgentDenial;

/// Refusals that wait for a report. The oldest are dropped.
const WAITING_MAX: usize = 4096;

/// Refusals that wait for the next report.
#[derive(Debug, Default)]
pub(crate) struct DenialQueue(Mutex<VecDeque<AgentDenial>>);

impl DenialQueue {
    /// Takes all entries; a caller that cannot send them puts them back.
    pub(crate) fn take(&self) -> Vec<AgentDenial> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    pub(crate) fn put(&self, denials: Vec<AgentDenial>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(denials);
        let excess = waiting.len().saturating_sub(WAITING_MAX);
        waiting.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_denial_queue_is_bounded() {
        let waiting = DenialQueue::default();
        let one = AgentDenial {
            sandbox: "a".parse().expect("id"),
            protocol: "tcp".to_owned(),
            address: None,
            port: None,
            name: None,
            limit: None,
            count: 1,
        };
        waiting.put(vec![one; WAITING_MAX + 5]);
        assert_eq!(waiting.take().len(), WAITING_MAX);
        assert!(waiting.take().is_empty());
    }
}
