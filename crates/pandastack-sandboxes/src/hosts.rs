//! The hosts as control knows them: the last report, its time, and a client for each.
//!
//! In memory, loaded from the store at start. Memory promised to creates that are in progress is
//! subtracted from what the last report said, so that two creates at once do not both count on the
//! same megabytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pandastack_agent_client::{AgentClient, AgentError, AgentLink};
use pandastack_store::HostRecord;
use pandastack_types::agent_api::{AgentTemplate, AgentVolume, HostReport};
use pandastack_types::api::{Host, HostLink, Template, TemplateStatus, TemplateVolume};
use pandastack_types::host_identity::HostRole;
use pandastack_types::{HostId, VolumeId, chain};

use crate::placement::{Candidate, PlacementRefused, choose};
use crate::tenancy::is_emulated;

/// All hosts.
pub struct Hosts {
    link: AgentLink,
    lost_after: Duration,
    entries: Mutex<BTreeMap<HostId, Entry>>,
}

struct Entry {
    summary: HostReport,
    client: AgentClient,
    heard: Instant,
    last_seen_at: Timestamp,
    promised_mb: u64,
    sandboxes: u64,
}

/// Memory set aside on a host for a create that is in progress.
pub struct MemoryReservation {
    hosts: Arc<Hosts>,
    host: HostId,
    memory_mb: u64,
}

impl MemoryReservation {
    /// Keeps the reservation after a successful create until the next report of the host.
    pub fn keep(self) {
        if let Some(entry) = self.hosts.lock().get_mut(&self.host) {
            let HostReport { memory_free_mb: free, memory_held_asleep_mb: held, .. } = &mut entry.summary;
            *held = held.saturating_sub(self.memory_mb.saturating_sub(*free));
            *free = free.saturating_sub(self.memory_mb);
        }
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        if let Some(entry) = self.hosts.lock().get_mut(&self.host) {
            entry.promised_mb = entry.promised_mb.saturating_sub(self.memory_mb);
        }
    }
}

/// The host chosen for a new sandbox.
pub struct Placement {
    /// The host.
    pub host: HostId,
    /// Calls its agent.
    pub client: AgentClient,
    /// The template, as that host has it.
    pub template: AgentTemplate,
    /// The host's engine.
    pub engine: String,
    /// Isolation of its machines.
    pub isolation: String,
    /// The memory set aside.
    pub promise: MemoryReservation,
}

impl Hosts {
    /// No hosts yet. A host without a report for `lost_after` counts as unreachable.
    pub fn new(link: impl Into<AgentLink>, lost_after: Duration) -> Self {
        Self { link: link.into(), lost_after, entries: Mutex::new(BTreeMap::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<HostId, Entry>> {
        // Every critical section leaves the map whole, so a panic elsewhere does not make it wrong.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the stored hosts. A host that reported shortly before a restart counts as reachable.
    pub fn load(&self, records: Vec<HostRecord>, now: Timestamp) {
        for record in records {
            let age = now.duration_since(record.last_seen_at).unsigned_abs();
            let heard = Instant::now().checked_sub(age.min(2 * self.lost_after));
            let heard = heard.unwrap_or_else(Instant::now);
            if let Err(error) = self.put(record.summary, heard, record.last_seen_at) {
                tracing::warn!(error = %chain(&error), "a stored host is not usable until it reports again");
            }
        }
    }

    /// Applies a report that another replica has just received.
    pub fn apply_record(&self, record: HostRecord) {
        if let Err(error) = self.put(record.summary, Instant::now(), record.last_seen_at) {
            tracing::warn!(error = %chain(&error), "a host is not usable until it reports again");
        }
    }

    /// Records a report, without its lists of sandboxes and snapshots.
    pub fn record_report(&self, summary: HostReport, at: Timestamp) -> Result<HostRecord, AgentError> {
        self.put(summary.clone(), Instant::now(), at)?;
        let summary = HostReport {
            sandboxes: Vec::new(),
            snapshots: Vec::new(),
            volumes: Vec::new(),
            denials: Vec::new(),
            ..summary
        };
        Ok(HostRecord { summary, last_seen_at: at })
    }

    fn put(&self, mut summary: HostReport, heard: Instant, at: Timestamp) -> Result<(), AgentError> {
        let sandboxes = summary.sandboxes.len() as u64;
        summary.sandboxes = Vec::new();
        summary.snapshots = Vec::new();
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(&summary.host) {
            if entry.summary.address != summary.address {
                entry.client = AgentClient::new(summary.host.clone(), &summary.address, self.link.clone())?;
            }
            (entry.summary, entry.heard, entry.last_seen_at) = (summary, heard, at);
            entry.sandboxes = sandboxes;
            return Ok(());
        }
        let client = AgentClient::new(summary.host.clone(), &summary.address, self.link.clone())?;
        let host = summary.host.clone();
        let entry = Entry { summary, client, heard, last_seen_at: at, promised_mb: 0, sandboxes };
        entries.insert(host, entry);
        Ok(())
    }

    /// Treats a host as unreachable until its next report: it was removed.
    pub fn forget_report(&self, host: &HostId) {
        if let Some(entry) = self.lock().get_mut(host) {
            entry.heard = entry.heard.checked_sub(2 * self.lost_after).unwrap_or(entry.heard);
        }
    }

    fn is_reachable(&self, entry: &Entry) -> bool {
        entry.heard.elapsed() < self.lost_after
    }

    /// Returns whether the host reported recently.
    pub fn reachable(&self, host: &HostId) -> bool {
        self.lock().get(host).is_some_and(|entry| self.is_reachable(entry))
    }

    /// A client for a host that reported recently.
    pub fn client(&self, host: &HostId) -> Result<AgentClient, AgentError> {
        let entries = self.lock();
        let entry = entries.get(host).filter(|entry| self.is_reachable(entry));
        let unreachable = || AgentError::Unreachable { host: host.clone(), source: None };
        entry.map(|entry| entry.client.clone()).ok_or_else(unreachable)
    }

    /// Address of a host's agent, if it reported recently.
    pub fn address(&self, host: &HostId) -> Result<String, AgentError> {
        let entries = self.lock();
        let entry = entries.get(host).filter(|entry| self.is_reachable(entry));
        let unreachable = || AgentError::Unreachable { host: host.clone(), source: None };
        entry.map(|entry| entry.summary.address.clone()).ok_or_else(unreachable)
    }

    /// Clients for all hosts that reported recently.
    pub fn clients(&self) -> Vec<(HostId, AgentClient)> {
        let entries = self.lock();
        let reachable = entries.iter().filter(|(_, entry)| self.is_reachable(entry));
        reachable.map(|(host, entry)| (host.clone(), entry.client.clone())).collect()
    }

    /// Chooses a host for a template, by name or alias, and reserves memory there. `only` restricts
    /// the choice to a host that holds the sandbox's files; `hardware` excludes hosts that emulate
    /// processors.
    pub fn place(
        self: &Arc<Self>,
        template: &str,
        memory_mb: Option<u32>,
        only: Option<&HostId>,
        hardware: bool,
    ) -> Result<Placement, PlacementRefused> {
        let mut entries = self.lock();
        let eligible = entries.values().filter(|entry| only.is_none_or(|host| entry.summary.host == *host));
        let eligible: Vec<_> = eligible.collect();
        let emulated = |entry: &Entry| hardware && is_emulated(&entry.summary.isolation);
        if !eligible.is_empty() && eligible.iter().all(|entry| emulated(entry)) {
            return Err(PlacementRefused::Emulated);
        }
        let eligible = eligible.into_iter().filter(|entry| !emulated(entry));
        let mut candidates: Vec<_> =
            eligible.map(|entry| entry.candidate(template, self.is_reachable(entry))).collect();
        if let Some(wanted) = memory_mb {
            for (_, needed) in candidates.iter_mut().filter_map(|candidate| candidate.template.as_mut()) {
                *needed = wanted;
            }
        }
        let host = choose(template, &candidates)?;
        let unknown = || PlacementRefused::UnknownTemplate(template.to_owned());
        let entry = entries.get_mut(&host).ok_or_else(unknown)?;
        let template = entry.template(template).cloned().ok_or_else(unknown)?;
        let memory_mb = entry.promised_to(memory_mb.unwrap_or(template.template.memory_mb));
        entry.promised_mb += memory_mb;
        Ok(Placement {
            client: entry.client.clone(),
            template,
            engine: entry.summary.engine.clone(),
            isolation: entry.summary.isolation.clone(),
            promise: MemoryReservation { hosts: Arc::clone(self), host: host.clone(), memory_mb },
            host,
        })
    }

    /// The host that should bake a template: of the hosts without the bake, the one with the most
    /// free memory; else any host that has it.
    pub fn place_bake(&self, template: &str) -> Result<(String, AgentClient), PlacementRefused> {
        let entries = self.lock();
        let reachable: Vec<_> = entries.values().filter(|entry| self.is_reachable(entry)).collect();
        if reachable.is_empty() {
            return Err(PlacementRefused::NoHosts);
        }
        reachable
            .iter()
            .filter_map(|entry| Some((entry, entry.template(template)?)))
            .max_by_key(|(entry, known)| {
                (known.status != TemplateStatus::Ready, entry.summary.memory_free_mb)
            })
            .map(|(entry, known)| (known.template.name.clone(), entry.client.clone()))
            .ok_or_else(|| PlacementRefused::UnknownTemplate(template.chars().take(80).collect()))
    }

    /// Returns whether the platform has a template of that name or alias.
    pub fn has_template(&self, name: &str) -> bool {
        self.lock().values().any(|entry| entry.template(name).is_some())
    }

    /// Keys of the images that hosts make for a template: one, or several while hosts are being
    /// upgraded.
    pub fn image_keys(&self, template: &str) -> BTreeSet<String> {
        let entries = self.lock();
        entries
            .values()
            .filter_map(|entry| Some(entry.template(template)?.template.image_key.clone()))
            .collect()
    }

    /// The volume that a template's sandboxes have.
    pub fn template_volume(&self, template: &str) -> Option<TemplateVolume> {
        let entries = self.lock();
        entries.values().find_map(|entry| entry.template(template)?.template.volume.clone())
    }

    /// The host for a new volume: the reachable host with the most free disk space.
    pub fn place_volume(&self) -> Result<(HostId, AgentClient), PlacementRefused> {
        let entries = self.lock();
        let reachable = entries.iter().filter(|(_, entry)| self.is_reachable(entry));
        reachable
            .max_by_key(|(host, entry)| (entry.summary.disk_free_bytes, std::cmp::Reverse((*host).clone())))
            .map(|(host, entry)| (host.clone(), entry.client.clone()))
            .ok_or(PlacementRefused::NoHosts)
    }

    /// A volume as its host reported it last.
    pub fn volume(&self, host: &HostId, id: &VolumeId) -> Option<AgentVolume> {
        self.lock().get(host)?.summary.volumes.iter().find(|volume| volume.id == *id).cloned()
    }

    /// Returns whether any host emulates processors.
    pub fn any_emulated(&self) -> bool {
        self.lock().values().any(|entry| is_emulated(&entry.summary.isolation))
    }

    /// Engine and isolation of a host.
    pub fn engine(&self, host: &HostId) -> (String, String) {
        let entries = self.lock();
        let summary = entries.get(host).map(|entry| &entry.summary);
        summary.map(|s| (s.engine.clone(), s.isolation.clone())).unwrap_or_default()
    }

    /// Templates of all hosts, merged by name: the best status any host has.
    pub fn templates(&self) -> Vec<Template> {
        let entries = self.lock();
        let mut merged = BTreeMap::<String, Template>::new();
        for entry in entries.values() {
            let reachable = self.is_reachable(entry);
            for known in &entry.summary.templates {
                let shown = shown_template(known, reachable);
                merged
                    .entry(shown.name.clone())
                    .and_modify(|best| {
                        if rank(shown.status) > rank(best.status) {
                            best.status = shown.status;
                            best.error.clone_from(&shown.error);
                        }
                        best.size_bytes = best.size_bytes.max(shown.size_bytes);
                    })
                    .or_insert(shown);
            }
        }
        merged.into_values().collect()
    }

    /// All hosts, as operators see them.
    pub fn list(&self) -> Vec<Host> {
        let entries = self.lock();
        let shown = entries.iter().map(|(id, entry)| Host {
            id: id.clone(),
            reachable: self.is_reachable(entry),
            engine: entry.summary.engine.clone(),
            isolation: entry.summary.isolation.clone(),
            sandboxes: entry.sandboxes,
            memory_free_mb: entry.memory_free_mb(),
            disk_free_bytes: entry.summary.disk_free_bytes,
            version: entry.summary.version.clone(),
            last_seen_at: entry.last_seen_at,
            role: HostRole::Agent,
            link: HostLink::of(&entry.summary.address),
            certificate_expires_at: None,
        });
        shown.collect()
    }
}

impl Entry {
    fn memory_free_mb(&self) -> u64 {
        self.summary.memory_free_mb.saturating_sub(self.promised_mb)
    }

    /// Memory available to a new sandbox, including memory that others can release.
    fn memory_obtainable_mb(&self) -> u64 {
        let HostReport { memory_free_mb: free, memory_held_asleep_mb: held, .. } = &self.summary;
        (free + held).saturating_sub(self.promised_mb)
    }

    fn template(&self, name: &str) -> Option<&AgentTemplate> {
        self.summary.templates.iter().find(|known| {
            known.template.name == name || known.template.aliases.iter().any(|alias| alias == name)
        })
    }

    /// Memory that the host promises to a sandbox of so much.
    fn promised_to(&self, memory_mb: u32) -> u64 {
        u64::from(memory_mb) * u64::from(self.summary.memory_promised_percent) / 100
    }

    fn candidate(&self, template: &str, reachable: bool) -> Candidate {
        Candidate {
            host: self.summary.host.clone(),
            reachable,
            memory_free_mb: self.memory_free_mb(),
            memory_obtainable_mb: self.memory_obtainable_mb(),
            memory_promised_percent: self.summary.memory_promised_percent,
            slots_free: self.summary.slots_free,
            template: self.template(template).map(|known| (known.status, known.template.memory_mb)),
        }
    }
}

fn rank(status: TemplateStatus) -> u8 {
    match status {
        TemplateStatus::Ready => 3,
        TemplateStatus::Baking => 2,
        TemplateStatus::Failed => 1,
        TemplateStatus::Unbaked => 0,
    }
}

/// A template as one host has it; on a host that does not respond it cannot be used.
fn shown_template(known: &AgentTemplate, reachable: bool) -> Template {
    let info = &known.template;
    Template {
        name: info.name.clone(),
        aliases: info.aliases.clone(),
        label: info.label.clone(),
        description: info.description.clone(),
        category: info.category.clone(),
        base: info.base.clone(),
        tools: info.tools.clone(),
        cpu: info.cpu,
        memory_mb: info.memory_mb,
        size_bytes: known.size_bytes,
        is_global: true,
        status: if reachable { known.status } else { TemplateStatus::Unbaked },
        error: known.error.clone(),
        volume: info.volume.clone(),
        version: None,
        sharing: None,
        shared_by: None,
    }
}
