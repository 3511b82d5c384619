//! package.json.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::local;
use crate::undetected::Undetected;
use crate::view::View;

/// The parts of package.json that decide something.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Package {
    scripts: BTreeMap<String, String>,
    dependencies: BTreeMap<String, serde_json::Value>,
    #[serde(rename = "devDependencies")]
    dev_dependencies: BTreeMap<String, serde_json::Value>,
    #[serde(rename = "optionalDependencies")]
    optional_dependencies: BTreeMap<String, serde_json::Value>,
    pub(super) main: Option<String>,
    pub(super) engines: BTreeMap<String, serde_json::Value>,
    #[serde(rename = "packageManager")]
    pub(super) package_manager: Option<String>,
}

impl Package {
    pub(super) fn read(view: &View) -> Result<Self, Undetected> {
        let unreadable = |why: String| Undetected::Unreadable { file: "package.json", why };
        let text =
            view.text("package.json").ok_or_else(|| unreadable("the file does not exist".to_owned()))?;
        serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))
    }

    pub(super) fn needs(&self, name: &str) -> bool {
        self.dependencies.contains_key(name) || self.dev_dependencies.contains_key(name)
    }

    pub(super) fn needs_any(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().find(|name| self.needs(name)).copied()
    }

    pub(super) fn script(&self, name: &str) -> Option<&str> {
        self.scripts.get(name).map(|script| script.trim()).filter(|script| !script.is_empty())
    }

    pub(super) fn has_dependencies(&self) -> bool {
        !self.dependencies.is_empty() || !self.dev_dependencies.is_empty()
    }

    /// Returns whether a directory of the source is among its packages.
    pub(super) fn names_directory(&self) -> bool {
        let lists = [&self.dependencies, &self.dev_dependencies, &self.optional_dependencies];
        lists.iter().flat_map(|list| list.values()).any(local::is_node)
    }
}
