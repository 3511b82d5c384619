//! Chooses the host of a new sandbox. Pure: facts in, decision out.
//!
//! Candidates are reachable hosts that know the template and have free memory and a free network
//! slot. Hosts with the template baked come first, then the host with the most free memory.

use pandastack_types::api::TemplateStatus;
use pandastack_types::{Error, ErrorCode, HostId};

/// A host as a candidate for placement, for one template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The host.
    pub host: HostId,
    /// Whether the host reported recently.
    pub reachable: bool,
    /// Memory that is not reserved.
    pub memory_free_mb: u64,
    /// Free memory plus the memory that sandboxes in light sleep can release.
    pub memory_obtainable_mb: u64,
    /// Percent of a sandbox's memory that has to be free.
    pub memory_promised_percent: u32,
    /// Network slots that are free.
    pub slots_free: u32,
    /// The template there, if its catalogue has it, with the memory it needs.
    pub template: Option<(TemplateStatus, u32)>,
}

/// Reason why no host accepts the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementRefused {
    /// No host has it in its catalogue.
    #[error("template `{0}` not found; `pandastack template list` shows the templates")]
    UnknownTemplate(String),
    /// No host reported recently.
    #[error("no host is reachable; try again in a few seconds")]
    NoHosts,
    /// Tenants share the installation, and its hosts emulate processors.
    #[error(
        "the hosts of this installation use emulation, which does not isolate tenants; add a host with KVM, or set \
         `allow_emulated_machines_between_tenants = true` if every tenant trusts every other"
    )]
    Emulated,
    /// Hardware virtualization was requested, but no host has it.
    #[error("no host has hardware virtualization; add a host with KVM, or leave out `isolation`")]
    NoHardware,
    /// Hosts that have it have no room.
    #[error(
        "no host has {memory_mb} MiB of free memory and a free network slot; delete or hibernate sandboxes, \
         or add a host"
    )]
    Full {
        /// Required memory.
        memory_mb: u32,
    },
}

impl From<PlacementRefused> for Error {
    fn from(refused: PlacementRefused) -> Self {
        let code = match refused {
            PlacementRefused::UnknownTemplate(_) => ErrorCode::NotFound,
            PlacementRefused::Emulated | PlacementRefused::NoHardware => ErrorCode::Conflict,
            PlacementRefused::NoHosts | PlacementRefused::Full { .. } => ErrorCode::NoCapacity,
        };
        Self::new(code, refused.to_string())
    }
}

/// Picks a host.
pub fn choose(template: &str, candidates: &[Candidate]) -> Result<HostId, PlacementRefused> {
    if !candidates.iter().any(|candidate| candidate.reachable) {
        return Err(PlacementRefused::NoHosts);
    }
    let able = candidates.iter().filter_map(|candidate| Some((candidate, candidate.template?)));
    let able: Vec<_> = able.filter(|(candidate, _)| candidate.reachable).collect();
    let Some(memory_mb) = able.iter().map(|(_, (_, memory_mb))| *memory_mb).min() else {
        return Err(PlacementRefused::UnknownTemplate(template.chars().take(80).collect()));
    };
    able.into_iter()
        .filter(|(candidate, (_, memory_mb))| {
            let promised = u64::from(*memory_mb) * u64::from(candidate.memory_promised_percent) / 100;
            candidate.memory_obtainable_mb >= promised && candidate.slots_free > 0
        })
        .max_by_key(|(candidate, (status, _))| {
            // The id breaks ties, so that the same facts always give the same answer.
            (
                *status == TemplateStatus::Ready,
                candidate.memory_free_mb,
                candidate.memory_obtainable_mb,
                std::cmp::Reverse(candidate.host.clone()),
            )
        })
        .map(|(candidate, _)| candidate.host.clone())
        .ok_or(PlacementRefused::Full { memory_mb })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, free: u64, status: TemplateStatus) -> Candidate {
        Candidate {
            host: name.parse().unwrap(),
            reachable: true,
            memory_free_mb: free,
            memory_obtainable_mb: free,
            memory_promised_percent: 100,
            slots_free: 1,
            template: Some((status, 512)),
        }
    }

    #[track_caller]
    fn check(candidates: &[Candidate], expect: Result<&str, PlacementRefused>) {
        let got = choose("base", candidates);
        assert_eq!(got.as_ref().map(HostId::as_str), expect.as_ref().map(|host| *host), "{candidates:?}");
    }

    #[test]
    fn the_host_with_most_free_memory_wins_among_equals() {
        use TemplateStatus::*;
        check(&[host("a", 1000, Ready), host("b", 2000, Ready)], Ok("b"));
        check(&[host("a", 1000, Ready), host("b", 2000, Unbaked)], Ok("a"));
        check(&[host("a", 100, Ready), host("b", 2000, Unbaked)], Ok("b"));
        check(&[host("b", 1000, Ready), host("a", 1000, Ready)], Ok("a"));
    }

    #[test]
    fn reclaimable_memory_is_used_when_no_host_has_free_memory() {
        let asleep =
            |name, free| Candidate { memory_obtainable_mb: 4000, ..host(name, free, TemplateStatus::Ready) };
        check(&[asleep("a", 0)], Ok("a"));
        check(&[asleep("a", 0), host("b", 600, TemplateStatus::Ready)], Ok("b"));
        check(&[asleep("a", 100), host("b", 200, TemplateStatus::Ready)], Ok("a"));
    }

    #[test]
    fn placement_errors_name_the_missing_resource() {
        use TemplateStatus::*;
        check(&[], Err(PlacementRefused::NoHosts));
        check(&[Candidate { reachable: false, ..host("a", 9999, Ready) }], Err(PlacementRefused::NoHosts));
        check(&[host("a", 511, Ready)], Err(PlacementRefused::Full { memory_mb: 512 }));
        check(&[Candidate { memory_promised_percent: 10, ..host("a", 51, Ready) }], Ok("a"));
        check(
            &[Candidate { memory_promised_percent: 10, ..host("a", 50, Ready) }],
            Err(PlacementRefused::Full { memory_mb: 512 }),
        );
        check(
            &[Candidate { slots_free: 0, ..host("a", 9999, Ready) }],
            Err(PlacementRefused::Full { memory_mb: 512 }),
        );
        check(
            &[Candidate { template: None, ..host("a", 9999, Ready) }],
            Err(PlacementRefused::UnknownTemplate("base".into())),
        );
    }
}
