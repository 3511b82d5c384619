//! The identity of a restored or forked machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Entropy, Secret};

/// Everything that must be fresh before the first user instruction after a restore or fork.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Fresh random bytes, at least [`crate::limits::ENTROPY_BYTES_MIN`], mixed into the kernel's generator.
    pub entropy: Entropy,
    /// The wall clock, nanoseconds since 1970, taken just before sending.
    pub realtime_ns: u64,
    /// The machine's id in the platform.
    pub sandbox_id: String,
    /// Host name; unset keeps the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// 32 hex digits for `/etc/machine-id`; unset keeps the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// The machine's own credential, for `/run/pandastack/token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// Variables of every process started from now on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Secret>,
    /// Default user of processes. Default: root. An older guest ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Default working directory of processes. Default: the user's home directory. An older guest ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Name servers for `/etc/resolv.conf`; empty keeps the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<String>,
    /// Reset established connections to the outside: their other end belongs to the machine this one was
    /// copied from.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub reset_outbound_tcp: bool,
    /// Make new SSH host keys if the machine has any.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub regenerate_ssh_host_keys: bool,
    /// Certificates and mirrors of the operator; unset keeps the existing ones. Older guests ignore
    /// this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<GuestSetup>,
    /// Whether the machine is unchanged and was only paused: clock and random generator are
    /// refreshed, and nothing else changes. A guest that does not know this field repeats the other
    /// steps, which takes time but is harmless.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub only_stood_still: bool,
}

/// The operator's files for every guest. An unset file is removed again, unless it was changed in
/// the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSetup {
    /// Certificate authorities to trust besides those of the image, as PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
    /// Address below which apt finds `debian` and `debian-security`. Unset keeps the addresses there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apt_mirror: Option<String>,
    /// Configuration of cargo for all users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cargo_config: Option<String>,
}

/// The identity is in force and user processes run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityApplied {
    /// Counts identities; also in `/run/pandastack/generation` for programs that keep state warm.
    pub generation: u64,
    /// Microseconds that it took inside the guest.
    #[serde(default)]
    pub elapsed_us: u64,
    /// Steps that failed, one sentence each. Failures of entropy and clock are never among them:
    /// those fail the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
