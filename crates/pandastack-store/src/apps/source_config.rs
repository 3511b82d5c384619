//! Stored settings from a source's `pandastack.toml`.
//!
//! Precedence: the app's own settings and variables, then the file, then defaults and what detection finds.

use std::collections::BTreeMap;

use pandastack_types::api::EnvStage;
use serde::{Deserialize, Serialize};

use super::record::AppRecord;

/// Settings with a default that were set on the app itself, so that the source cannot override
/// them.
///
/// Records from before this was stored count as unset: their values came from the file in the
/// source as often as from a person.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplicitSettings {
    /// `root_directory`.
    pub root_directory: bool,
    /// `port`.
    pub port: bool,
    /// `health_path`.
    pub health_path: bool,
}

/// The part of the source's settings that applies when it is started. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceConfig {
    /// Value of `$PORT`.
    pub port: Option<u16>,
    /// Path of its health check.
    pub health_path: Option<String>,
    /// Plain variables of both stages.
    pub env: BTreeMap<String, String>,
    /// Variables of builds only.
    pub build_env: BTreeMap<String, String>,
    /// Variables of serving machines only.
    pub run_env: BTreeMap<String, String>,
}

impl SourceConfig {
    /// Values of the variables in a stage. A variable of that stage wins over one of both stages.
    pub fn env_values(&self, stage: EnvStage) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        match stage {
            EnvStage::All => {}
            EnvStage::Build => env.extend(self.build_env.clone()),
            EnvStage::Run => env.extend(self.run_env.clone()),
        }
        env
    }

    /// The app as a version of this source is built and started.
    pub fn applied(&self, app: &AppRecord) -> AppRecord {
        let mut app = app.clone();
        let spec = &mut app.spec;
        if let Some(port) = self.port.filter(|_| !spec.said.port) {
            spec.port = port;
        }
        if let Some(path) = self.health_path.as_ref().filter(|_| !spec.said.health_path) {
            spec.health_path.clone_from(path);
        }
        app
    }
}
