//! The dependency cache: the machine with installed dependencies, from which builds start.
//!
//! Must hold: a build starts from a cache of the app's current template and size, or without a
//! cache. A machine that is created from a snapshot has the snapshot's shape, regardless of the
//! app's current settings.

use pandastack_types::SnapshotId;
use serde::{Deserialize, Serialize};

use super::record::AppSpec;

/// The size and template of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The machine's template.
    pub template: String,
    /// Virtual processors, if other than the template's.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// Memory, if other than the template's.
    #[serde(default)]
    pub memory_mb: Option<u32>,
}

impl AppSpec {
    /// The shape of machines that are created without a snapshot.
    pub fn shape(&self) -> Shape {
        Shape { template: self.template.clone(), cpu: self.cpu, memory_mb: self.memory_mb }
    }

    /// The machine that builds start from, unless the app's machines now have another template or
    /// size.
    pub fn usable_cache(&self) -> Option<&SnapshotId> {
        let shape = self.cache_shape.as_ref();
        self.cache.as_ref().filter(|_| shape.is_none_or(|shape| *shape == self.shape()))
    }

    /// Records a machine that builds start from.
    pub fn set_cache(&mut self, machine: SnapshotId, shape: Shape) {
        (self.cache, self.cache_shape) = (Some(machine), Some(shape));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_cache_requires_the_same_machine_shape() {
        let installed: SnapshotId = "installed".parse().unwrap();
        let mut spec = AppSpec::default();
        assert_eq!(spec.usable_cache(), None);
        let old = AppSpec { cache: Some(installed.clone()), cpu: Some(2), ..AppSpec::default() };
        assert_eq!(old.usable_cache(), Some(&installed), "its kind was not noted");
        spec.set_cache(installed.clone(), spec.shape());
        assert_eq!(spec.usable_cache(), Some(&installed));
        let others = [
            AppSpec { template: "node".to_owned(), ..spec.clone() },
            AppSpec { cpu: Some(2), ..spec.clone() },
            AppSpec { memory_mb: Some(2048), ..spec.clone() },
        ];
        for mut other in others {
            assert_eq!(other.usable_cache(), None, "{other:?}");
            // A build that began before the change ends after it.
            other.set_cache(installed.clone(), spec.shape());
            assert_eq!(other.usable_cache(), None, "{other:?}");
            other.set_cache(installed.clone(), other.shape());
            assert_eq!(other.usable_cache(), Some(&installed), "{other:?}");
        }
        let stored: AppSpec = serde_json::from_str(r#"{"cache": "installed"}"#).unwrap();
        assert_eq!(stored.usable_cache(), Some(&installed), "a record from before");
        let again: AppSpec = serde_json::from_value(serde_json::to_value(&spec).unwrap()).unwrap();
        assert_eq!(again, spec);
    }
}
