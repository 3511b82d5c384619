//! A template in one size, and its bake.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pandastack_engine::Shape;
use pandastack_image::Recipe;
use pandastack_types::SandboxId;
use pandastack_types::agent_api::{MachineSize, SandboxSpec};

use crate::error::{AgentError, Result};
use crate::layout::Layout;
use crate::snapshot::Snapshot;

/// A template in a size: its own, or one that a create requested.
#[derive(Clone, Copy)]
pub(crate) struct Variant {
    pub recipe: &'static Recipe,
    pub shape: Shape,
}

impl Variant {
    pub(crate) fn find(name: &str, size: Option<MachineSize>) -> Result<Self> {
        let unknown = || AgentError::NoTemplate(name.chars().take(64).collect());
        let recipe = pandastack_image::find(name).ok_or_else(unknown)?;
        let own =
            MachineSize { cpu: recipe.cpu, memory_mb: u32::try_from(recipe.memory_mib).unwrap_or(u32::MAX) };
        let size = size.unwrap_or(own);
        let shape = Shape { vcpus: u8::try_from(size.cpu).unwrap_or(u8::MAX), memory_mib: size.memory_mb };
        Ok(Self { recipe, shape })
    }

    /// Names its directory and its zygote: as the template for the template's own size. No
    /// template's name has a `+`.
    pub(crate) fn name(&self) -> String {
        let Shape { vcpus, memory_mib } = self.shape;
        if u32::from(vcpus) == self.recipe.cpu && u64::from(memory_mib) == self.recipe.memory_mib {
            return self.recipe.name.clone();
        }
        format!("{}{vcpus}x{memory_mib}", sizes_prefix(self.recipe))
    }

    /// Directory of all its bakes.
    pub(crate) fn dir(&self, layout: &Layout) -> PathBuf {
        layout.templates(&self.name())
    }
}

/// Prefix of the names of a template's other sizes.
pub(crate) fn sizes_prefix(recipe: &Recipe) -> String {
    format!("{}+", recipe.name)
}

/// A template that creates can start from.
pub(crate) struct BakedTemplate {
    /// Name of the template.
    pub template: String,
    /// [`Variant::name`].
    pub name: String,
    /// Hash of everything that the bake depends on.
    pub key: String,
    pub snapshot: Snapshot,
    /// Commands that users tend to run first; a zygote runs them ahead of time.
    pub warm_commands: Vec<String>,
}

impl BakedTemplate {
    /// Spec for a zygote during warming, in place of a sandbox's.
    pub(crate) fn warm_spec(&self) -> SandboxSpec {
        let env = BTreeMap::new();
        let id = SandboxId::random();
        SandboxSpec {
            id,
            incarnation: 0,
            workspace: None,
            env,
            user: None,
            cwd: None,
            idle_timeout_seconds: None,
            network: Default::default(),
            volumes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_default_sizes_get_their_own_variant_name() {
        let name = |size: Option<(u32, u32)>| {
            let size = size.map(|(cpu, memory_mb)| MachineSize { cpu, memory_mb });
            Variant::find("base", size).map(|variant| variant.name()).unwrap_or_default()
        };
        assert_eq!(name(None), "base");
        assert_eq!(name(Some((1, 512))), "base");
        assert_eq!(name(Some((2, 2048))), "base+2x2048");
    }
}
