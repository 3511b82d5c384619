//! The identity that a guest gets before user processes run.

use std::time::{Duration, Instant};

use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::{GuestSetup, Identity, IdentityApplied, Secret};
use pandastack_types::guests::GuestSettings;
use pandastack_types::{SandboxState, chain};
use tokio::net::UnixStream;

use crate::error::Result;
use crate::launch::GUEST_ANSWER_MAX;
use crate::record::SandboxRecord;

/// Bytes of fresh entropy for each machine.
const ENTROPY_BYTES: usize = 64;
/// Longest time between sending the time of day and setting the clock. Beyond it, the clock is set again.
const CLOCK_DELAY_MAX: Duration = Duration::from_millis(500);
/// Tries to set the clock in time. On a host that is still loaded after these, it stays late.
const CLOCK_TRIES_MAX: usize = 3;

/// A fresh identity for a sandbox.
pub(crate) fn identity(record: &SandboxRecord, guests: &GuestSettings, reset_outbound_tcp: bool) -> Identity {
    let mut entropy = vec![0u8; ENTROPY_BYTES];
    // The host's generator is initialised long before an agent starts; it does not fail after that.
    // If it did, the guest refuses an identity without entropy, and the create fails.
    if let Err(error) = getrandom::fill(&mut entropy) {
        tracing::error!(error = %chain(&error), "the host has no entropy");
        entropy.clear();
    }
    let id = record.spec.id.as_str();
    let short: String = id.chars().filter(|c| *c != '-').take(12).collect();
    // The sandbox's own variables come later and win.
    let own = record.spec.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    let env = guests.environment().into_iter().chain(own);
    Identity {
        entropy: entropy.into(),
        realtime_ns: realtime_ns(),
        sandbox_id: id.to_owned(),
        hostname: Some(format!("sandbox-{short}")),
        // Stable across sleep, different for every sandbox, and no way back to the id.
        machine_id: Some(blake3::hash(id.as_bytes()).to_hex()[..32].to_owned()),
        token: None,
        env: env.map(|(name, value)| (name, Secret::from(value))).collect(),
        user: record.spec.user.clone(),
        cwd: record.spec.cwd.clone(),
        dns: vec![pandastack_net::GUEST_DNS.to_string()],
        reset_outbound_tcp,
        // A sandbox that wakes or is rolled back keeps its keys; a new one has a copy of another
        // machine's.
        regenerate_ssh_host_keys: record.state == SandboxState::Creating,
        setup: Some(GuestSetup {
            ca_bundle: guests.ca_bundle.clone(),
            apt_mirror: guests.apt_mirror(),
            cargo_config: guests.cargo_config(),
        }),
        only_stood_still: false,
    }
}

/// The time of day in nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    jiff::Timestamp::now().as_nanosecond() as u64
}

/// Fresh clock and entropy for a sandbox whose predecessor may have left it in the middle of
/// anything; everything else stays.
pub(crate) fn refresh(record: &SandboxRecord, guests: &GuestSettings) -> Identity {
    Identity {
        hostname: None,
        machine_id: None,
        dns: Vec::new(),
        regenerate_ssh_host_keys: false,
        setup: None,
        ..identity(record, guests, false)
    }
}

/// Identity with a fresh clock and entropy, for a machine that was only paused.
pub(crate) fn unchanged(record: &SandboxRecord, guests: &GuestSettings) -> Identity {
    Identity { only_stood_still: true, ..refresh(record, guests) }
}

/// Connects to a guest whose processors run, and gives it its identity, with a clock that is right.
pub(crate) async fn connect(
    stream: UnixStream,
    identity: Identity,
    record: &SandboxRecord,
    guests: &GuestSettings,
) -> Result<(GuestClient, IdentityApplied)> {
    let sent = Instant::now();
    let identity = Identity { realtime_ns: realtime_ns(), ..identity };
    let (guest, applied) = GuestClient::connect_with_identity(stream, identity, GUEST_ANSWER_MAX).await?;
    settle_clock(&guest, record, guests, clock_delay(sent, &applied)).await;
    Ok((guest, applied))
}

/// Longest time by which a guest may have set its clock, sent at `sent`, too late.
pub(crate) fn clock_delay(sent: Instant, applied: &IdentityApplied) -> Duration {
    sent.elapsed().saturating_sub(Duration::from_micros(applied.elapsed_us))
}

/// Sets the clock again of a guest that read the time of day long after it was sent, as on a loaded host.
/// A clock that stays late is no reason to end the machine.
pub(crate) async fn settle_clock(
    guest: &GuestClient,
    record: &SandboxRecord,
    guests: &GuestSettings,
    mut delay: Duration,
) {
    for _ in 0..CLOCK_TRIES_MAX {
        if delay <= CLOCK_DELAY_MAX {
            return;
        }
        let sent = Instant::now();
        let setting = guest.set_identity(unchanged(record, guests));
        match tokio::time::timeout(GUEST_ANSWER_MAX, setting).await {
            Ok(Ok(applied)) => delay = clock_delay(sent, &applied),
            Ok(Err(error)) => {
                tracing::warn!(sandbox = %record.spec.id, error = %chain(&error), "cannot correct the clock");
                return;
            }
            Err(_) => {
                tracing::warn!(sandbox = %record.spec.id, "the guest did not correct its clock in time");
                return;
            }
        }
    }
    tracing::warn!(sandbox = %record.spec.id, ?delay, "the guest's clock may be late");
}

#[cfg(test)]
mod tests {
    use pandastack_engine::Shape;
    use pandastack_types::SandboxId;
    use pandastack_types::agent_api::SandboxSpec;
    use pandastack_types::network::NetworkPolicy;

    use super::*;
    use crate::record::BootMode;

    fn record(env: &[(&str, &str)]) -> SandboxRecord {
        let spec = SandboxSpec {
            id: SandboxId::random(),
            incarnation: 0,
            workspace: None,
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            user: None,
            cwd: None,
            idle_timeout_seconds: None,
            network: NetworkPolicy::all(),
            volumes: Vec::new(),
        };
        let shape = Shape { vcpus: 1, memory_mib: 512 };
        SandboxRecord::new(spec, "base", shape, 1000, BootMode::Fork)
    }

    #[test]
    fn guests_get_the_operators_settings_and_keep_their_own_variables() {
        let mirrors = ["pip=https://pypi.corp/simple", "cargo=https://crates.corp"];
        let mirrors = mirrors.map(|text| text.parse::<pandastack_types::guests::Mirror>().unwrap());
        let guests = GuestSettings {
            ca_bundle: Some("PEM".to_owned()),
            mirrors: mirrors.into_iter().map(|mirror| (mirror.kind, mirror.url)).collect(),
            allow: Vec::new(),
        };
        let given = identity(&record(&[("PIP_INDEX_URL", "https://own")]), &guests, false);
        assert_eq!(given.env["PIP_INDEX_URL"].expose(), "https://own");
        assert!(given.env.contains_key("SSL_CERT_FILE"));
        let setup = given.setup.unwrap();
        assert_eq!(setup.ca_bundle.as_deref(), Some("PEM"));
        assert!(setup.cargo_config.unwrap().contains("crates.corp"));
        // A machine that only continues keeps its files, but its next processes need the variables.
        let refreshed = refresh(&record(&[]), &guests);
        assert_eq!((refreshed.setup, refreshed.env.len()), (None, given.env.len()));
        let none = identity(&record(&[]), &GuestSettings::default(), false);
        assert_eq!((none.env.len(), none.setup), (0, Some(GuestSetup::default())));
    }
}
