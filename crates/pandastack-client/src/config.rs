//! Server URL and API key of a client.
//!
//! For each of the two, the first match wins:
//!
//! | | environment | file `~/.config/pandastack/config.json` | default |
//! |---|---|---|---|
//! | server | `PANDASTACK_API_URL`, `PANDASTACK_API` | `api_url`, `apiUrl` | [`API_URL_DEFAULT`] |
//! | key | `PANDASTACK_API_KEY`, `PANDASTACK_TOKEN` | `token`, `api_key`, `apiKey` | none |
//!
//! An empty variable counts as unset. The key in the file is only sent to the server in the file:
//! another server named in the environment must not receive it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{ClientError, Result};

/// Default URL of `pandastack up`.
pub const API_URL_DEFAULT: &str = "http://127.0.0.1:8080";
/// Maximum size of the configuration file, which holds two short strings.
const CONFIG_BYTES_MAX: u64 = 64 * 1024;
/// Variables for the server, the first that is set.
const URL_VARIABLES: [&str; 2] = ["PANDASTACK_API_URL", "PANDASTACK_API"];
/// Variables for the key, the first that is set.
const KEY_VARIABLES: [&str; 2] = ["PANDASTACK_API_KEY", "PANDASTACK_TOKEN"];

/// Server URL and API key.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// URL of the server, without `/v1`.
    pub api_url: String,
    /// API key, `pds_...`.
    pub token: Option<String>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "secret");
        f.debug_struct("Config").field("api_url", &self.api_url).field("token", &token).finish()
    }
}

impl Config {
    /// Path of the configuration file below a home directory.
    pub fn path_in(home: &Path) -> PathBuf {
        home.join(".config/pandastack/config.json")
    }

    /// Variables of this process's environment that take precedence over the file.
    pub fn variables_in_use() -> Vec<&'static str> {
        let is_set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
        let first = |names: [&'static str; 2]| names.into_iter().find(is_set);
        [first(URL_VARIABLES), first(KEY_VARIABLES)].into_iter().flatten().collect()
    }

    /// Resolves from this process's environment and home directory.
    pub fn from_environment() -> Result<Self> {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Self::resolve(|name| std::env::var(name).ok(), home.as_deref())
    }

    /// Resolves from a given environment and home directory.
    pub fn resolve(variable: impl Fn(&str) -> Option<String>, home: Option<&Path>) -> Result<Self> {
        let first = |names: &[&str]| {
            names.iter().find_map(|name| variable(name).filter(|value| !value.trim().is_empty()))
        };
        let file = match home {
            Some(home) => read_file(&Self::path_in(home))?,
            None => Map::new(),
        };
        let from_file = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| file.get(*name)?.as_str().filter(|v| !v.is_empty()).map(str::to_owned))
        };
        let file_url = from_file(&["api_url", "apiUrl"]);
        let given_url = first(&URL_VARIABLES);
        let api_url = given_url.or_else(|| file_url.clone()).unwrap_or_else(|| API_URL_DEFAULT.to_owned());
        let api_url = normalize(&api_url);
        let same_server = file_url.as_deref().map(normalize).as_deref().unwrap_or(API_URL_DEFAULT) == api_url;
        let token = first(&KEY_VARIABLES)
            .or_else(|| from_file(&["token", "api_key", "apiKey"]).filter(|_| same_server));
        Ok(Self { api_url, token: token.map(|token| token.trim().to_owned()) })
    }
}

/// Accepts both `http://host` and `http://host/v1/`; returns the former.
fn normalize(url: &str) -> String {
    let url = url.trim().trim_end_matches('/');
    url.strip_suffix("/v1").unwrap_or(url).trim_end_matches('/').to_owned()
}

pub(crate) fn read_file(path: &Path) -> Result<Map<String, Value>> {
    let invalid = |detail: String| ClientError::BadConfig { path: path.to_owned(), detail };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > CONFIG_BYTES_MAX => {
            return Err(invalid(format!("the file is larger than {CONFIG_BYTES_MAX} bytes")));
        }
        Ok(_) => {}
        Err(error) if is_missing(&error) => return Ok(Map::new()),
        Err(error) => return Err(invalid(error.to_string())),
    }
    let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TempHome(PathBuf);

    impl TempHome {
        fn with(config: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("pandastack-client-{}", uuid::Uuid::new_v4()));
            let path = Config::path_in(&dir);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, config).unwrap();
            Self(dir)
        }
    }

    impl Drop for TempHome {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[track_caller]
    fn check(env: &[(&str, &str)], file: Option<&str>, api_url: &str, token: Option<&str>) {
        let home = file.map(TempHome::with);
        let variable = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let config = Config::resolve(variable, home.as_ref().map(|home| home.0.as_path())).unwrap();
        assert_eq!((config.api_url.as_str(), config.token.as_deref()), (api_url, token));
    }

    #[test]
    fn environment_variables_override_the_config_file() {
        let file = Some(r#"{"api_url":"http://file:1","token":"pds_file"}"#);
        check(&[], None, API_URL_DEFAULT, None);
        check(&[], file, "http://file:1", Some("pds_file"));
        check(&[("PANDASTACK_API_KEY", "pds_env")], file, "http://file:1", Some("pds_env"));
        check(&[("PANDASTACK_TOKEN", " pds_t\n")], file, "http://file:1", Some("pds_t"));
        check(
            &[("PANDASTACK_API_URL", "http://a"), ("PANDASTACK_API", "http://b"), ("PANDASTACK_TOKEN", "t")],
            file,
            "http://a",
            Some("t"),
        );
    }

    #[test]
    fn a_configured_key_is_sent_only_to_its_server() {
        let file = Some(r#"{"api_url":"http://file:1/","token":"pds_file"}"#);
        check(&[("PANDASTACK_API", "http://other")], file, "http://other", None);
        check(&[("PANDASTACK_API", "http://file:1/v1/")], file, "http://file:1", Some("pds_file"));
    }

    #[test]
    fn camel_case_keys_are_accepted_and_empty_variables_ignored() {
        let file = Some(r#"{"apiUrl":"http://file:1","apiKey":"pds_file"}"#);
        check(&[("PANDASTACK_API_KEY", "")], file, "http://file:1", Some("pds_file"));
    }

    #[test]
    fn a_malformed_config_error_names_the_file() {
        let home = TempHome::with("[]");
        let error = Config::resolve(|_| None, Some(&home.0)).unwrap_err();
        assert!(error.to_string().contains("config.json: "), "{error}");
    }

    #[test]
    fn the_key_is_not_printed() {
        let config = Config { api_url: "http://a".into(), token: Some("pds_very_secret".into()) };
        assert!(!format!("{config:?}").contains("pds_very_secret"));
    }
}
