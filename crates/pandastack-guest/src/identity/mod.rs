//! The identity gate: gives a restored or forked machine its own identity.
//!
//! Order matters: first state that must never be shared (random numbers, time), then names, then
//! files that user code may read, then hooks; the caller thaws user processes last. Entropy and
//! clock are mandatory: if either fails, nothing is thawed. The rest is reported as warnings: a
//! machine with an old `/etc/hosts` is better than none.
//!
//! Everything runs on the event loop on purpose: no other work may run before it is done.

mod entropy;
mod etc;
mod hooks;
mod setup;
mod tcp_reset;
mod warnings;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};
use pandastack_guest_proto::limits::{ENTROPY_BYTES_MAX, ENTROPY_BYTES_MIN};
use pandastack_guest_proto::message::{ErrorBody, ErrorCode, Identity, IdentityApplied, Secret};

use crate::environment::GuestEnvironment;
use warnings::Warnings;

/// The identity in force.
#[derive(Debug, Default)]
pub(crate) struct IdentityState {
    env: BTreeMap<String, Secret>,
    user: Option<String>,
    cwd: Option<String>,
    generation: u64,
}

impl IdentityState {
    /// Variables of every process.
    pub(crate) fn env(&self) -> &BTreeMap<String, Secret> {
        &self.env
    }

    /// User and working directory of processes that name none.
    pub(crate) fn defaults(&self) -> (Option<String>, Option<String>) {
        (self.user.clone(), self.cwd.clone())
    }

    /// Takes an identity on. The caller thaws.
    pub(crate) fn apply(
        &mut self,
        around: &GuestEnvironment,
        identity: &Identity,
    ) -> Result<IdentityApplied, ErrorBody> {
        let begun = Instant::now();
        validate(identity)?;
        if around.is_machine {
            // Also after a mere pause: the machine may have been copied during it, and the copy
            // would have the same generator state.
            entropy::reseed(identity.entropy.expose()).map_err(|error| {
                ErrorBody::new(ErrorCode::Io, format!("cannot reseed the random generator: {error}"))
            })?;
            set_clock(identity.realtime_ns)?;
        }
        if identity.only_stood_still {
            return Ok(self.applied(begun, Warnings::default()));
        }
        self.generation += 1;
        self.env.clone_from(&identity.env);
        self.user.clone_from(&identity.user);
        self.cwd.clone_from(&identity.cwd);
        self.env.insert("PANDASTACK_SANDBOX_ID".to_owned(), identity.sandbox_id.as_str().into());
        let mut warnings = Warnings::default();
        etc::write_names(around, identity, &mut warnings);
        if let Some(wanted) = &identity.setup {
            setup::apply(around, wanted, &mut warnings);
        }
        etc::write_run_files(around, identity, self.generation, &mut warnings);
        if around.is_machine {
            if identity.reset_outbound_tcp {
                warnings.note("reset inherited connections", tcp_reset::reset_outbound());
            }
            if identity.regenerate_ssh_host_keys {
                hooks::regenerate_ssh_host_keys(&mut warnings);
            }
        }
        hooks::run_hooks(around, identity, self.generation, &mut warnings);
        Ok(self.applied(begun, warnings))
    }

    fn applied(&self, begun: Instant, warnings: Warnings) -> IdentityApplied {
        let elapsed_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        IdentityApplied { generation: self.generation, elapsed_us, warnings: warnings.into_list() }
    }
}

fn validate(identity: &Identity) -> Result<(), ErrorBody> {
    let refuse =
        |what: &str| Err(ErrorBody::new(ErrorCode::Invalid, format!("the identity is not valid: {what}")));
    let name_like = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
    };
    let entropy = identity.entropy.expose().len();
    if !(ENTROPY_BYTES_MIN..=ENTROPY_BYTES_MAX).contains(&entropy) {
        return refuse("it needs 32 to 512 bytes of entropy");
    }
    if identity.hostname.as_deref().is_some_and(|name| name.is_empty() || name.len() > 64 || !name_like(name))
    {
        return refuse("the host name has to be 1 to 64 letters, digits, dots and dashes");
    }
    if identity
        .machine_id
        .as_deref()
        .is_some_and(|id| id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    {
        return refuse("the machine id has to be 32 hex digits");
    }
    if identity.dns.iter().any(|server| server.parse::<std::net::IpAddr>().is_err()) {
        return refuse("a name server is not an address");
    }
    Ok(())
}

fn set_clock(realtime_ns: u64) -> Result<(), ErrorBody> {
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from(Duration::from_nanos(realtime_ns)))
        .map_err(|errno| ErrorBody::new(ErrorCode::Io, format!("cannot set the clock: {}", errno.desc())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Identity {
        Identity { entropy: vec![1; 32].into(), hostname: Some("box-1".to_owned()), ..Identity::default() }
    }

    #[test]
    fn invalid_input_is_rejected() {
        assert!(validate(&valid()).is_ok());
        let refused = [
            Identity { entropy: vec![1; 31].into(), ..valid() },
            Identity { entropy: vec![1; 513].into(), ..valid() },
            Identity { hostname: Some("a b".to_owned()), ..valid() },
            Identity { hostname: Some(String::new()), ..valid() },
            Identity { machine_id: Some("xyz".to_owned()), ..valid() },
            Identity { dns: vec!["evil\nnameserver".to_owned()], ..valid() },
        ];
        for identity in refused {
            assert_eq!(validate(&identity).unwrap_err().code, ErrorCode::Invalid, "{identity:?}");
        }
    }
}
