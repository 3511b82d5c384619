//! `pandastack.toml`: what a repository says about itself.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Its name, at the root of the app.
pub const MANIFEST: &str = "pandastack.toml";

/// Its `[app]` table, with `[env]`. Words that are not known are refused: a mistyped one would be ignored for ever.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Manifest {
    /// Name of the app, read by the command line only: whoever else reads the file has the app.
    pub name: Option<String>,
    /// Kind of app.
    pub framework: Option<String>,
    /// Directory of the app, in a file at the root of the source.
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
    /// Plain variables of build and run: the table `[env]`.
    #[serde(skip)]
    pub env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    app: Manifest,
    #[serde(default)]
    env: BTreeMap<String, toml::Value>,
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
        let env = document.env.into_iter().map(|(key, value)| plain(&key, value).map(|text| (key, text)));
        Ok(Self { env: env.collect::<Result<_, _>>()?, ..document.app })
    }
}

/// The text of a variable: numbers and truth values as they are written.
fn plain(key: &str, value: toml::Value) -> Result<String, ManifestError> {
    match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(is_true) => Ok(is_true.to_string()),
        other => Err(ManifestError(format!(
            "`{key}` in [env] is of type {}; use a text, a whole number, true or false",
            other.type_str()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_is_refused() {
        let read = Manifest::parse("[app]\nname = \"a\"\nstart_command = \"x\"\nport = 3000\n").unwrap();
        assert_eq!((read.start_command.as_deref(), read.port), (Some("x"), Some(3000)));
        for (text, word) in [
            ("[app]\nstrat_command = \"x\"\n", "strat_command"),
            ("[aap]\nport = 1\n", "aap"),
            ("port = 1\n", "port"),
            ("[env]\nLIST = [1]\n", "LIST"),
            ("[env]\nTABLE = { A = 1 }\n", "TABLE"),
        ] {
            let error = Manifest::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{word}`")), "{error}");
        }
        assert_eq!(Manifest::parse("").unwrap(), Manifest::default());
    }

    #[test]
    fn variables_are_texts() {
        let read = Manifest::parse("[env]\nMODE = \"fast\"\nWORKERS = 4\nDEBUG = false\n").unwrap();
        let expect = [("DEBUG", "false"), ("MODE", "fast"), ("WORKERS", "4")];
        assert_eq!(read.env, expect.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }
}
