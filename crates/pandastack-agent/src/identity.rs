//! The identity that a guest gets before user processes run.

use pandastack_guest_proto::message::{Identity, Secret};
use pandastack_types::{SandboxState, chain};

use crate::record::SandboxRecord;

/// Bytes of fresh entropy for each machine.
const ENTROPY_BYTES: usize = 64;

/// A fresh identity for a sandbox.
pub(crate) fn identity(record: &SandboxRecord, reset_outbound_tcp: bool) -> Identity {
    let mut entropy = vec![0u8; ENTROPY_BYTES];
    // The host's generator is initialised long before an agent starts; it does not fail after that.
    // If it did, the guest refuses an identity without entropy, and the create fails.
    if let Err(error) = getrandom::fill(&mut entropy) {
        tracing::error!(error = %chain(&error), "the host has no entropy");
        entropy.clear();
    }
    let id = record.spec.id.as_str();
    let short: String = id.chars().filter(|c| *c != '-').take(12).collect();
    Identity {
        entropy: entropy.into(),
        realtime_ns: realtime_ns(),
        sandbox_id: id.to_owned(),
        hostname: Some(format!("sandbox-{short}")),
        // Stable across sleep, different for every sandbox, and no way back to the id.
        machine_id: Some(blake3::hash(id.as_bytes()).to_hex()[..32].to_owned()),
        token: None,
        env: record.spec.env.iter().map(|(k, v)| (k.clone(), Secret::from(v.clone()))).collect(),
        user: record.spec.user.clone(),
        cwd: record.spec.cwd.clone(),
        dns: vec![pandastack_net::GUEST_DNS.to_string()],
        reset_outbound_tcp,
        // One that wakes or goes back keeps its own; a new one has a copy of another's.
        regenerate_ssh_host_keys: record.state == SandboxState::Creating,
        only_stood_still: false,
    }
}

/// The time of day in nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    jiff::Timestamp::now().as_nanosecond() as u64
}

/// Sets the clock and entropy of a sandbox that an earlier agent may have left in any state; everything
/// else is kept.
pub(crate) fn refresh(record: &SandboxRecord) -> Identity {
    Identity {
        hostname: None,
        machine_id: None,
        dns: Vec::new(),
        regenerate_ssh_host_keys: false,
        ..identity(record, false)
    }
}
