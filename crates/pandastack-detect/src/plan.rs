//! Plans: commands to install, build and start an app.

use std::collections::BTreeMap;

use crate::framework::Framework;
use crate::node_version::NodeRequirement;
use crate::python_version::PythonRequirement;

/// How an app serves: by its own process, or as static files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serve {
    /// A command that listens on 0.0.0.0 and `$PORT`.
    Command(String),
    /// Files.
    Files {
        /// Their directory within the app.
        directory: String,
        /// Unknown paths get `index.html`: the page finds its own way.
        single_page: bool,
    },
}

/// Commands to install, build and start an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Kind of app.
    pub framework: Framework,
    /// Installs dependencies.
    pub install: Option<String>,
    /// Files whose content decides whether installing again would change anything.
    pub locks: Vec<String>,
    /// Runs instead of `install` where packages were restored: what of it the source itself decides.
    pub refresh: Option<String>,
    /// Builds.
    pub build: Option<String>,
    /// Serves.
    pub serve: Serve,
    /// Variables of build and run.
    pub env: BTreeMap<String, String>,
    /// Major version of the requested Node.
    pub node_major: Option<u32>,
    /// Conditions on the Node's version that name no one major number.
    pub node: Option<NodeRequirement>,
    /// The Python version that a file requires.
    pub python: Option<PythonRequirement>,
    /// Reasons, one sentence each, for the log.
    pub reasons: Vec<String>,
}

impl Plan {
    pub(crate) fn new(framework: Framework, serve: Serve, reason: String) -> Self {
        Self {
            framework,
            install: None,
            locks: Vec::new(),
            refresh: None,
            build: None,
            serve,
            env: BTreeMap::new(),
            node_major: None,
            node: None,
            python: None,
            reasons: vec![reason],
        }
    }

    /// Adds a reason.
    pub(crate) fn because(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }
}
