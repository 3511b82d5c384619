//! Settings of the user, which take precedence over detection.

/// Settings of the user. They take precedence over detection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserSettings {
    /// Kind of app.
    pub framework: Option<String>,
    /// The command that installs dependencies.
    pub install: Option<String>,
    /// The command that builds.
    pub build: Option<String>,
    /// The command that starts the server.
    pub start: Option<String>,
}
