//! `pandastack.toml`: what a repository says about itself.

use serde::Deserialize;

/// Its name, at the root of the app.
pub const MANIFEST: &str = "pandastack.toml";

/// Its `[app]` table. Words that are not known are refused: a mistyped one would be ignored for ever.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Manifest {
    /// Name of the app, read by the command line only.
    pub name: Option<String>,
    /// Kind of app.
    pub framework: Option<String>,
    /// Directory of the app, read by the command line only.
    pub root_directory: Option<String>,
    /// Installs dependencies.
    pub install_command: Option<String>,
    /// Builds.
    pub build_command: Option<String>,
    /// Starts the server.
    pub start_command: Option<String>,
    /// The app's `$PORT`.
    pub port: Option<u16>,
    /// Path of the health check.
    pub health_path: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    app: Manifest,
}

/// Why it is not readable.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ManifestError(String);

impl Manifest {
    /// Reads its text.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let document: Document =
            toml::from_str(text).map_err(|error| ManifestError(error.message().to_owned()))?;
        Ok(document.app)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_is_refused() {
        let read = Manifest::parse("[app]\nname = \"a\"\nstart_command = \"x\"\nport = 3000\n").unwrap();
        assert_eq!((read.start_command.as_deref(), read.port), (Some("x"), Some(3000)));
        let error = Manifest::parse("[app]\nstrat_command = \"x\"\n").unwrap_err().to_string();
        assert!(error.contains("strat_command"), "{error}");
        assert_eq!(Manifest::parse("").unwrap(), Manifest::default());
    }
}
