//! Queries hosts for their frozen states, and finds the outdated ones with their records.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use pandastack_agent_client::{AgentClient, CallOptions};
use pandastack_store::{SandboxRecord, Select, SnapshotRecord};
use pandastack_types::agent_api::{Components, HostFrozen, OutdatedVerdict, endpoints};
use pandastack_types::api::{FrozenKind, OutdatedComponent};
use pandastack_types::{HostId, Owner, Result, SandboxState, WorkspaceId, chain};

use super::advisories::Advisory;
use super::judge::judge;
use crate::{Sandboxes, snapshot_owner};

/// Longest time for a host to read its frozen states.
const READ_WAIT: Duration = Duration::from_secs(30);
/// Hosts queried at once.
const HOSTS_AT_ONCE: usize = 16;

/// A frozen state with a record.
pub(super) enum Subject {
    Sandbox(Box<SandboxRecord>),
    /// A snapshot, and the template of the workspace that it is a version of.
    Snapshot(Box<SnapshotRecord>, Option<String>),
    /// A bake of one of the platform's templates.
    Bake(String),
}

impl Subject {
    pub(super) fn kind(&self) -> FrozenKind {
        match self {
            Self::Sandbox(_) => FrozenKind::Sandbox,
            Self::Snapshot(_, None) => FrozenKind::Snapshot,
            Self::Snapshot(_, Some(_)) | Self::Bake(_) => FrozenKind::Template,
        }
    }

    pub(super) fn id(&self) -> String {
        match self {
            Self::Sandbox(record) => record.id.to_string(),
            Self::Snapshot(record, _) => record.id.to_string(),
            Self::Bake(name) => name.clone(),
        }
    }

    /// The service that owns it.
    pub(super) fn owner(&self) -> Option<Owner> {
        match self {
            Self::Sandbox(record) => record.owner.clone(),
            Self::Snapshot(record, _) => snapshot_owner::of(record),
            Self::Bake(_) => None,
        }
    }
}

/// A frozen state, and its outdated components: empty if it only has an earlier verdict.
pub(super) struct SurveyEntry {
    pub host: HostId,
    pub subject: Subject,
    pub components: Vec<OutdatedComponent>,
    pub verdict: Option<OutdatedVerdict>,
}

/// The frozen states of a host that answered.
pub(super) struct HostStates {
    pub host: HostId,
    pub client: AgentClient,
    frozen: HostFrozen,
}

/// Queries every host. The second value is whether all of them answered.
pub(super) async fn hosts(sandboxes: &Sandboxes) -> (Vec<HostStates>, bool) {
    let (known, reachable) = (sandboxes.hosts.list().len(), sandboxes.hosts.clients());
    let asked = futures::stream::iter(reachable).map(|(host, client)| async move {
        match client.call(endpoints::ReadFrozen::new(), CallOptions::on_host(READ_WAIT), ()).await {
            Ok(frozen) => Some(HostStates { host, client, frozen }),
            Err(error) => {
                tracing::debug!(%host, error = %chain(&error), "no list of frozen states");
                None
            }
        }
    });
    let answers: Vec<_> = asked.buffer_unordered(HOSTS_AT_ONCE).collect().await;
    let answers: Vec<_> = answers.into_iter().flatten().collect();
    let complete = answers.len() == known;
    (answers, complete)
}

/// A host's report of one state.
struct State<'a> {
    host: &'a HostStates,
    components: &'a Components,
    verdict: &'a Option<OutdatedVerdict>,
}

impl State<'_> {
    /// The state with its record, if something is outdated or it has a verdict.
    fn surveyed(&self, subject: impl FnOnce() -> Subject, advisories: &[Advisory]) -> Option<SurveyEntry> {
        let components = judge(self.components, &self.host.frozen.current, advisories);
        (!components.is_empty() || self.verdict.is_some()).then(|| SurveyEntry {
            host: self.host.host.clone(),
            subject: subject(),
            components,
            verdict: self.verdict.clone(),
        })
    }
}

/// The states of a workspace on hosts that answered.
pub(super) async fn of_workspace(
    sandboxes: &Sandboxes,
    hosts: &[HostStates],
    workspace: &WorkspaceId,
    advisories: &[Advisory],
) -> Result<Vec<SurveyEntry>> {
    let (mut asleep, mut taken) = (HashMap::new(), HashMap::new());
    for host in hosts {
        for one in &host.frozen.sandboxes {
            asleep.insert(&one.id, State { host, components: &one.components, verdict: &one.verdict });
        }
        for one in &host.frozen.snapshots {
            taken.insert(&one.id, State { host, components: &one.components, verdict: &one.verdict });
        }
    }
    let mut found = Vec::new();
    if !asleep.is_empty() {
        for record in sandboxes.store.sandboxes(&Select::WholeWorkspace(workspace.clone())).await? {
            let is_asleep = record.state == SandboxState::Hibernated;
            if let Some(state) =
                asleep.get(&record.id).filter(|state| is_asleep && state.host.host == record.host)
            {
                found.extend(state.surveyed(|| Subject::Sandbox(Box::new(record)), advisories));
            }
        }
    }
    if !taken.is_empty() {
        for record in sandboxes.store.snapshots(workspace, None).await? {
            let Some(state) = taken.get(&record.id).filter(|state| state.host.host == record.host) else {
                continue;
            };
            let Some(mut surveyed) =
                state.surveyed(|| Subject::Snapshot(Box::new(record.clone()), None), advisories)
            else {
                continue;
            };
            let template = sandboxes.store.template_of_snapshot(workspace, &record.id).await?;
            surveyed.subject = Subject::Snapshot(Box::new(record), template);
            found.push(surveyed);
        }
    }
    Ok(found)
}

/// Bakes of the platform's templates.
pub(super) fn bakes(hosts: &[HostStates], advisories: &[Advisory]) -> Vec<SurveyEntry> {
    let of_host = |host: &HostStates| {
        let bakes = host.frozen.templates.iter().filter_map(|bake| {
            let state = State { host, components: &bake.components, verdict: &None };
            state.surveyed(|| Subject::Bake(bake.name.clone()), advisories)
        });
        bakes.collect::<Vec<_>>()
    };
    hosts.iter().flat_map(of_host).collect()
}
