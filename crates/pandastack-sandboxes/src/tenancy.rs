//! Tenancy: whether the installation is shared, and the restrictions that follow.
//!
//! An emulated processor is not a wall between strangers: the emulator is a large program that was
//! not written to be one. So where several workspaces share an installation, new machines are
//! created only on hosts with hardware virtualization, unless the operator explicitly allows
//! others.

use std::str::FromStr;

use pandastack_types::api::Host;
use pandastack_types::{Error, InvalidValue, Result};

use crate::placement::PlacementRefused;

/// Isolation of hosts without hardware virtualization.
const EMULATED: &str = "emulated";

/// Tenancy of an installation: one tenant or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenancyMode {
    /// Shared as soon as there is a second workspace.
    #[default]
    Auto,
    /// One: no second workspace is created.
    Single,
    /// Several, who do not trust each other.
    Shared,
}

impl TenancyMode {
    /// The name in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Single => "single",
            Self::Shared => "shared",
        }
    }
}

impl FromStr for TenancyMode {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "auto" => Ok(Self::Auto),
            "single" => Ok(Self::Single),
            "shared" => Ok(Self::Shared),
            _ => {
                Err(InvalidValue::new(format!("{text:?} is not a tenancy; use `auto`, `single` or `shared`")))
            }
        }
    }
}

/// Settings of an installation about its tenants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tenancy {
    /// Mode of the installation.
    pub mode: TenancyMode,
    /// Emulated machines may stand between strangers: `allow_emulated_machines_between_tenants`.
    pub allow_emulated: bool,
}

impl Tenancy {
    /// Returns whether machines must be on hosts with hardware virtualization, given the number of
    /// workspaces.
    pub fn needs_hardware(self, workspaces: u64) -> bool {
        self.is_shared(usize::try_from(workspaces).unwrap_or(usize::MAX)) && !self.allow_emulated
    }

    /// Returns whether several tenants share the hosts, given the number of workspaces.
    pub fn is_shared(self, workspaces: usize) -> bool {
        match self.mode {
            TenancyMode::Auto => workspaces > 1,
            TenancyMode::Single => false,
            TenancyMode::Shared => true,
        }
    }

    /// Refuses another workspace if it could not be isolated from the others.
    pub fn admit_workspace(self, hosts: &[Host]) -> Result<()> {
        if self.mode == TenancyMode::Single {
            return Err(Error::conflict(
                "this installation is for one tenant (`tenancy = \"single\"`); set `tenancy = \"shared\"` \
                 and restart it to create workspaces",
            ));
        }
        let emulated = !hosts.is_empty() && hosts.iter().all(|host| is_emulated(&host.isolation));
        match self.needs_hardware(2) && emulated {
            true => Err(PlacementRefused::Emulated.into()),
            false => Ok(()),
        }
    }
}

/// Returns whether machines on a host of that isolation are emulated.
pub fn is_emulated(isolation: &str) -> bool {
    isolation == EMULATED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_isolation_is_required_only_between_tenants() {
        let check = |mode, allow_emulated, workspaces, needed| {
            let tenancy = Tenancy { mode, allow_emulated };
            assert_eq!(tenancy.needs_hardware(workspaces), needed, "{tenancy:?} {workspaces}");
        };
        use TenancyMode::*;
        check(Auto, false, 1, false);
        check(Auto, false, 2, true);
        check(Auto, true, 2, false);
        check(Single, false, 2, false);
        check(Shared, false, 1, true);
        check(Shared, true, 1, false);
    }
}
