//! Converts records to API responses.

use pandastack_store::{SandboxRecord, SnapshotRecord};
use pandastack_types::api::{Metadata, Sandbox, Snapshot};

use super::hosts::Hosts;

/// Labels with this start are written, never read back.
const SECRET_START: &str = "secret.";

fn shown_metadata(metadata: Metadata) -> Metadata {
    metadata.into_iter().filter(|(key, _)| !key.starts_with(SECRET_START)).collect()
}

/// A sandbox.
pub fn sandbox(hosts: &Hosts, record: SandboxRecord) -> Sandbox {
    let spec = record.spec;
    Sandbox {
        id: record.id,
        name: spec.name,
        workspace: record.workspace,
        template: spec.from_template.unwrap_or(record.template),
        cpu: spec.cpu,
        memory_mb: spec.memory_mb,
        status: record.state,
        residency: spec.residency,
        kept: spec.kept,
        guest_ip: spec.guest_ip,
        host_reachable: hosts.reachable(&record.host),
        host: Some(record.host),
        engine: spec.engine,
        isolation: spec.isolation,
        metadata: shown_metadata(record.metadata),
        network: spec.network,
        from_snapshot: spec.from_snapshot,
        parent_id: record.parent,
        boot_mode: spec.boot_mode,
        boot_ms: spec.boot_ms,
        boot_stages_us: spec.boot_stages_us,
        pause_ms: spec.pause_ms,
        volumes: spec.volumes,
        persistent: spec.persistent,
        ttl_seconds: (!spec.persistent).then_some(spec.ttl_seconds),
        created_at: record.created_at,
        expires_at: record.expires_at,
        failure: spec.failure,
    }
}

/// A snapshot.
pub fn snapshot(record: SnapshotRecord) -> Snapshot {
    Snapshot {
        id: record.id,
        sandbox_id: record.sandbox,
        workspace: record.workspace,
        template: record.spec.from_template.unwrap_or(record.spec.template),
        name: record.spec.name,
        metadata: shown_metadata(record.spec.metadata),
        size_bytes: record.spec.size_bytes,
        pause_ms: record.spec.pause_ms,
        host: record.host,
        kind: record.spec.kind,
        created_at: record.created_at,
        expires_at: record.expires_at,
    }
}
