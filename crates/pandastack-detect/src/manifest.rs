//! `pandastack.toml`: the app's settings in its source.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Name of the manifest, at the root of the app.
pub const MANIFEST: &str = "pandastack.toml";

/// The manifest's `[app]` table, with `[env]`. Unknown keys are refused: a misspelt one would
/// otherwise be ignored for ever.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Manifest {
    /// Name of the app, read by the command line only: other readers already have the app.
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
    /// Variables of the build alone: `[env.build]`.
    #[serde(skip)]
    pub build_env: BTreeMap<String, String>,
    /// Variables of the run alone: `[env.run]`.
    #[serde(skip)]
    pub run_env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    app: Manifest,
    #[serde(default)]
    env: BTreeMap<String, toml::Value>,
}

/// Reason why the manifest cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ManifestError(String);

impl Manifest {
    /// Reads its text.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let document: Document =
            toml::from_str(text).map_err(|error| ManifestError(describe_error(&error, text)))?;
        let mut env = document.env;
        let [build_env, run_env] = ["build", "run"].map(|stage| table(&mut env, stage));
        Ok(Self { env: texts(env)?, build_env: build_env?, run_env: run_env?, ..document.app })
    }
}

/// Describes an error and its position.
fn describe_error(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    match before.map(|before| before.matches('\n').count() + 1) {
        Some(line) => format!("line {line}: {}", error.message()),
        None => error.message().to_owned(),
    }
}

/// Moves the variables of one stage out of the common table. A variable may have the name of a
/// stage: its value is not a table.
fn table(
    env: &mut BTreeMap<String, toml::Value>,
    stage: &str,
) -> Result<BTreeMap<String, String>, ManifestError> {
    match env.remove(stage) {
        Some(toml::Value::Table(table)) => texts(table),
        Some(value) => {
            env.insert(stage.to_owned(), value);
            Ok(BTreeMap::new())
        }
        None => Ok(BTreeMap::new()),
    }
}

fn texts(
    values: impl IntoIterator<Item = (String, toml::Value)>,
) -> Result<BTreeMap<String, String>, ManifestError> {
    values.into_iter().map(|(key, value)| plain(&key, value).map(|text| (key, text))).collect()
}

/// The text of a variable: numbers and booleans as written.
fn plain(key: &str, value: toml::Value) -> Result<String, ManifestError> {
    match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(is_true) => Ok(is_true.to_string()),
        other => Err(ManifestError(format!(
            "`{key}` in [env] is of type {}; use a string, an integer, true or false",
            other.type_str()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_manifest_key_is_refused() {
        let read = Manifest::parse("[app]\nname = \"a\"\nstart_command = \"x\"\nport = 3000\n").unwrap();
        assert_eq!((read.start_command.as_deref(), read.port), (Some("x"), Some(3000)));
        for (text, word) in [
            ("[app]\nstrat_command = \"x\"\n", "strat_command"),
            ("[aap]\nport = 1\n", "aap"),
            ("port = 1\n", "port"),
            ("[env]\nLIST = [1]\n", "LIST"),
            ("[env]\nTABLE = { A = 1 }\n", "TABLE"),
            ("[env.build]\nLIST = [1]\n", "LIST"),
            ("[env.built]\nA = 1\n", "built"),
        ] {
            let error = Manifest::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{word}`")), "{error}");
        }
        assert_eq!(Manifest::parse("").unwrap(), Manifest::default());
    }

    #[test]
    fn variable_values_become_text() {
        let read = Manifest::parse("[env]\nMODE = \"fast\"\nWORKERS = 4\nDEBUG = false\n").unwrap();
        let expect = [("DEBUG", "false"), ("MODE", "fast"), ("WORKERS", "4")];
        assert_eq!(read.env, expect.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn variables_can_be_limited_to_build_or_run() {
        let read = Manifest::parse("[env]\nA = 1\nrun = 2\n[env.build]\nB = 3\n").unwrap();
        assert_eq!(read.env.keys().collect::<Vec<_>>(), ["A", "run"], "a variable that is named as a stage");
        assert_eq!((read.build_env["B"].as_str(), read.run_env.is_empty()), ("3", true));
        let read = Manifest::parse("[env.run]\nC = true\n").unwrap();
        assert_eq!((read.run_env["C"].as_str(), read.env.is_empty()), ("true", true));
    }
}
