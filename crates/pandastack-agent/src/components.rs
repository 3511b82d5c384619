//! Versions of the kernel, the guest program and the engine of machines.

use std::sync::LazyLock;

use pandastack_types::agent_api::{Components, EngineVersion, GuestVersion};

use crate::embedded::GUEST_PROGRAM;
use crate::host_resources::HostResources;

/// Characters of the guest program's digest.
const BUILD_CHARS: usize = 16;

/// The guest program that is embedded here. It is built with this program, so it has the same version.
static GUEST: LazyLock<GuestVersion> = LazyLock::new(|| GuestVersion {
    version: env!("CARGO_PKG_VERSION").to_owned(),
    build: blake3::hash(GUEST_PROGRAM).to_hex()[..BUILD_CHARS].to_owned(),
});

/// Components of a machine that is booted now.
pub(crate) fn booted(host: &HostResources, kernel: Option<String>) -> Components {
    Components { kernel, guest: Some(GUEST.clone()), engine: Some(engine(host)) }
}

/// Components of a machine that is restored from a state now: its process is of the host's engine.
pub(crate) fn restored(host: &HostResources, state: &Components) -> Components {
    Components { engine: Some(engine(host)), ..state.clone() }
}

fn engine(host: &HostResources) -> EngineVersion {
    let capabilities = host.engine.capabilities();
    EngineVersion { name: capabilities.name.to_owned(), version: capabilities.version.clone() }
}
