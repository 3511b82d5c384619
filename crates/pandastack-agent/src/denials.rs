//! Collects connections that network policies denied, for reports to control.
//!
//! A guest that tries one destination a thousand times is reported once a minute with a count. One
//! that tries a thousand destinations is reported with a few of them and the number of the rest: a
//! guest must not be able to fill a database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pandastack_net::{Denial, SlotIndex};
use pandastack_types::SandboxId;
use pandastack_types::agent_api::AgentDenial;
use tokio::time::Instant;

use crate::host::Host;

/// Interval at which the same refusal is reported.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Time for which refusals are gathered before the first of them is reported.
const GATHER_FOR: Duration = Duration::from_millis(500);
/// Distinct refusals of one sandbox reported per [`REPORT_EVERY`]. Further ones are counted
/// together.
const REPORTED_PER_SANDBOX_MAX: usize = 30;
/// Different refusals remembered. Further ones are counted with their sandbox's others.
const REMEMBERED_MAX: usize = 16 * 1024;
/// Gathers until the agent stops.
pub(crate) async fn run(host: Arc<Host>) {
    let Some(mut denials) = host.slots.denials() else { return };
    let mut gathered = PendingDenials::default();
    loop {
        let due = gathered.due();
        tokio::select! {
            denial = denials.recv() => match denial {
                Some(denial) => gathered.add(denial, Instant::now()),
                None => return,
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let told = gathered.take_due(Instant::now(), &sandboxes_by_slot(&host));
                if !told.is_empty() {
                    host.denials.put(told);
                    host.changed.notify_one();
                }
            }
            () = host.shutdown.cancelled() => return,
        }
    }
}

/// Looks up the sandbox in each slot by address.
fn sandboxes_by_slot(host: &Host) -> impl Fn(SlotIndex) -> Option<SandboxId> {
    let handles = host.sandboxes();
    let views = handles.values().map(|handle| handle.view());
    let by_address: HashMap<String, SandboxId> =
        views.filter_map(|view| Some((view.guest_ip?, view.id))).collect();
    let slots = Arc::clone(&host.slots);
    move |index| by_address.get(&slots.address(index).to_string()).cloned()
}

/// Denied connections, and when each may be reported.
#[derive(Debug, Default)]
struct PendingDenials {
    seen: HashMap<Denial, SeenDenial>,
    /// Budget of reports of each slot in the present period, and the refusals beyond it.
    slots: HashMap<SlotIndex, Budget>,
}

#[derive(Debug)]
struct SeenDenial {
    count: u64,
    next: Instant,
}

#[derive(Debug)]
struct Budget {
    told: usize,
    others: u64,
    until: Instant,
}

impl PendingDenials {
    fn add(&mut self, denial: Denial, now: Instant) {
        if let Some(seen) = self.seen.get_mut(&denial) {
            seen.count += 1;
        } else if self.seen.len() < REMEMBERED_MAX {
            self.seen.insert(denial, SeenDenial { count: 1, next: now + GATHER_FOR });
        } else {
            self.budget(denial.slot, now).others += 1;
        }
    }

    fn budget(&mut self, slot: SlotIndex, now: Instant) -> &mut Budget {
        self.slots.entry(slot).or_insert(Budget { told: 0, others: 0, until: now + REPORT_EVERY })
    }

    /// When [`PendingDenials::take_due`] next has something to report or to forget.
    fn due(&self) -> Option<Instant> {
        self.seen.values().map(|seen| seen.next).chain(self.slots.values().map(|budget| budget.until)).min()
    }

    fn take_due(&mut self, now: Instant, owner: &dyn Fn(SlotIndex) -> Option<SandboxId>) -> Vec<AgentDenial> {
        let due: Vec<Denial> =
            self.seen.iter().filter(|(_, seen)| seen.next <= now).map(|(denial, _)| denial.clone()).collect();
        let mut told = Vec::new();
        for denial in due {
            let count = self.seen.get(&denial).map_or(0, |seen| seen.count);
            // Silent for a whole period: forgotten.
            if count == 0 {
                self.seen.remove(&denial);
                continue;
            }
            self.seen.insert(denial.clone(), SeenDenial { count: 0, next: now + REPORT_EVERY });
            let budget = self.budget(denial.slot, now);
            if budget.told >= REPORTED_PER_SANDBOX_MAX {
                budget.others += count;
                continue;
            }
            budget.told += 1;
            let Denial { slot, protocol, address, port, name, limit } = denial;
            told.extend(owner(slot).map(|sandbox| AgentDenial {
                sandbox,
                protocol,
                address,
                port,
                name,
                limit,
                count,
            }));
        }
        self.slots.retain(|slot, budget| {
            if budget.until > now {
                return true;
            }
            let others = owner(*slot).filter(|_| budget.others > 0).map(|sandbox| AgentDenial {
                sandbox,
                protocol: "other".to_owned(),
                address: None,
                port: None,
                name: None,
                limit: None,
                count: budget.others,
            });
            told.extend(others);
            false
        });
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(port: u16) -> Denial {
        let address = Some(std::net::Ipv4Addr::new(10, 0, 0, 1));
        Denial {
            slot: SlotIndex(3),
            protocol: "tcp".to_owned(),
            address,
            port: Some(port),
            name: None,
            limit: None,
        }
    }

    fn owner(_: SlotIndex) -> Option<SandboxId> {
        "a".parse().ok()
    }

    #[test]
    fn the_same_denial_is_reported_once_a_minute_with_a_count() {
        let (mut gathered, start) = (PendingDenials::default(), Instant::now());
        for _ in 0..5 {
            gathered.add(denial(80), start);
        }
        assert_eq!(gathered.due(), Some(start + GATHER_FOR));
        let told = gathered.take_due(start + GATHER_FOR, &owner);
        assert_eq!((told.len(), told[0].count), (1, 5));
        assert_eq!(told[0].sentence(), "tcp 10.0.0.1:80, 5 times");
        gathered.add(denial(80), start + REPORT_EVERY / 2);
        assert!(gathered.take_due(start + REPORT_EVERY / 2, &owner).is_empty());
        let told = gathered.take_due(start + GATHER_FOR + REPORT_EVERY, &owner);
        assert_eq!((told.len(), told[0].count), (1, 1));
        gathered.take_due(start + 4 * REPORT_EVERY, &owner);
        assert_eq!(gathered.due(), None, "a silent one is forgotten");
    }

    #[test]
    fn denials_beyond_the_report_limit_are_summarized_with_a_count() {
        let (mut gathered, start) = (PendingDenials::default(), Instant::now());
        for port in 0..100 {
            gathered.add(denial(port), start);
        }
        assert_eq!(gathered.take_due(start + GATHER_FOR, &owner).len(), REPORTED_PER_SANDBOX_MAX);
        let told = gathered.take_due(start + GATHER_FOR + REPORT_EVERY, &owner);
        assert_eq!((told.len(), told[0].count), (1, 70));
        assert_eq!(told[0].sentence(), "other destinations, 70 times");
    }
}
