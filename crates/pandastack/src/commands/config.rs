//! `pandastack config`: the client configuration, `~/.config/pandastack/config.json`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Config, ConfigFile};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Output, fields};

/// Characters of a key that are shown: its prefix, which `token list` shows too.
const KEY_SHOWN: usize = 12;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the server and the key in use, and where each comes from
    #[command(visible_alias = "list", visible_alias = "ls")]
    Show,
    /// Print one setting: api_url or token
    Get {
        /// Setting
        setting: Setting,
    },
    /// Change one setting in the configuration file
    #[command(visible_alias = "update")]
    Set {
        /// Setting
        setting: Setting,
        /// New value; `-` reads it from standard input, which keeps keys out of the shell's history
        value: String,
    },
    /// Remove settings from the configuration file
    #[command(visible_alias = "delete", visible_alias = "rm")]
    Unset {
        /// Settings
        #[arg(required = true, value_name = "SETTING")]
        settings: Vec<Setting>,
    },
    /// Print the path of the configuration file
    Path,
}

/// A setting of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// URL of the server.
    ApiUrl,
    /// API key.
    Token,
}

impl Setting {
    fn name(self) -> &'static str {
        match self {
            Setting::ApiUrl => "api_url",
            Setting::Token => "token",
        }
    }
}

impl std::str::FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "api_url" | "api-url" | "url" => Ok(Setting::ApiUrl),
            "token" | "key" | "api_key" | "api-key" => Ok(Setting::Token),
            _ => Err("expected `api_url` or `token`".to_owned()),
        }
    }
}

/// The configuration in use, as printed with `--json`.
#[derive(Debug, Serialize)]
struct ShownConfig {
    api_url: String,
    /// Beginning of the key; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    file: PathBuf,
    /// Whether the file exists.
    file_exists: bool,
    /// Environment variables that take precedence over the file.
    environment: Vec<&'static str>,
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        let path = file_path()?;
        match self {
            Command::Path => output.value(&path, |path| path.display().to_string())?,
            Command::Show => show(path, output)?,
            Command::Get { setting } => {
                let config = Config::from_environment()?;
                let value = match setting {
                    Setting::ApiUrl => Some(config.api_url),
                    Setting::Token => config.token,
                };
                let missing = || {
                    let failure = Failure::new(format!("`{}` is not set", setting.name()));
                    failure.hint(format!("set it with `pandastack config set {} VALUE`", setting.name()))
                };
                output.value(&value.ok_or_else(missing)?, Clone::clone)?;
            }
            Command::Set { setting, value } => {
                let mut file = ConfigFile::read(&path)?;
                file.set(setting.name(), &checked(setting, &read_value(value)?)?);
                file.write()?;
                output.note(&format!("{} changed", path.display()));
                warn_overridden(output);
            }
            Command::Unset { settings } => {
                let mut file = ConfigFile::read(&path)?;
                settings.iter().for_each(|setting| file.unset(setting.name()));
                file.write()?;
                output.note(&format!("{} changed", path.display()));
                warn_overridden(output);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn file_path() -> Result<PathBuf> {
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    Ok(Config::path_in(&home.context("this user has no home directory")?))
}

fn read_value(value: String) -> Result<String> {
    if value != "-" {
        return Ok(value);
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the value from standard input")?;
    Ok(line)
}

/// A value that the client can use: a mistake is found here, not with the next call.
fn checked(setting: Setting, text: &str) -> Result<String> {
    let text = text.trim();
    match setting {
        Setting::ApiUrl => {
            pandastack_client::Client::new(Config { api_url: text.to_owned(), token: None })?;
        }
        Setting::Token if text.is_empty() || text.chars().any(char::is_whitespace) => {
            let failure = Failure::new("the API key is empty or contains spaces");
            return Err(failure
                .hint("keys look like `pds_...`; create one with `pandastack token create`")
                .into());
        }
        Setting::Token => {}
    }
    Ok(text.to_owned())
}

fn show(path: PathBuf, output: Output) -> Result<()> {
    let Config { api_url, token } = Config::from_environment()?;
    let token = token.map(|token| match token.char_indices().nth(KEY_SHOWN) {
        Some((end, _)) => format!("{}...", &token[..end]),
        None => "...".to_owned(),
    });
    let file_exists = path.exists();
    let shown =
        ShownConfig { api_url, token, file_exists, file: path, environment: Config::variables_in_use() };
    output.value(&shown, |shown| {
        fields(&[
            ("api_url", shown.api_url.clone()),
            ("token", shown.token.clone().unwrap_or_else(|| "not set".to_owned())),
            (
                "file",
                format!(
                    "{}{}",
                    shown.file.display(),
                    if shown.file_exists { "" } else { " (does not exist)" }
                ),
            ),
            ("environment", shown.environment.join(", ")),
        ])
    })
}

fn warn_overridden(output: Output) {
    let variables = Config::variables_in_use();
    if !variables.is_empty() {
        output.note(&format!("{} in the environment takes precedence", variables.join(" and ")));
    }
}
