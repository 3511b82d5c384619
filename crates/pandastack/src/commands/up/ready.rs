//! The message of `up` when PandaStack is ready.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::client_config::{self, InvokingUser, WriteOutcome};
use crate::output::Output;

/// A ready installation. With `--json`, this is the one line on standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    /// URL of the API.
    pub api_url: String,
    /// Key of the installation's first workspace.
    pub token: String,
    /// Data directory.
    pub data_dir: PathBuf,
    /// The client configuration that now points here, if one does.
    pub client_config: Option<PathBuf>,
    /// Why no client configuration was written.
    pub client_config_note: Option<String>,
    /// Whether another `up` was already running.
    pub already_up: bool,
}

impl Ready {
    /// Reads the installation of a data directory and optionally configures the user's client.
    pub fn new(data_dir: &Path, api_url: String, client_config: bool) -> Result<Self> {
        let (token, data_dir) = (read_token(data_dir)?, data_dir.to_owned());
        let mut ready = Self {
            api_url,
            token,
            data_dir,
            client_config: None,
            client_config_note: None,
            already_up: false,
        };
        if client_config {
            // A home directory that cannot be written must not prevent startup.
            match ready.write_client_config() {
                Ok(WriteOutcome::Written(path)) => ready.client_config = Some(path),
                Ok(WriteOutcome::Foreign { path, api_url }) => {
                    let note = format!("{} points to {api_url} and was not changed.", path.display());
                    ready.client_config_note = Some(note);
                }
                Err(error) => ready.client_config_note = Some(format!("{error:#}.")),
            }
        }
        Ok(ready)
    }

    fn write_client_config(&self) -> Result<WriteOutcome> {
        let user = InvokingUser::current()?;
        client_config::write(&user, &self.data_dir, &self.api_url, &self.token)
    }

    /// Prints the next steps, or JSON.
    pub fn announce(&self, output: Output) -> Result<()> {
        if output.is_json() {
            return output.line(&serde_json::to_string(self)?);
        }
        eprintln!("PandaStack is running at {} (data directory {}).", self.api_url, self.data_dir.display());
        match (&self.client_config, &self.client_config_note) {
            (Some(path), _) => eprintln!("Client configuration written to {}.", path.display()),
            (None, note) => {
                eprintln!(
                    "{}To use this server:\n",
                    note.as_ref().map(|note| format!("{note} ")).unwrap_or_default()
                );
                eprintln!("  export PANDASTACK_API_URL={}", self.api_url);
                eprintln!("  export PANDASTACK_API_KEY=$(cat {})", token_file(&self.data_dir).display());
            }
        }
        eprintln!("\nTry:\n");
        eprintln!("  pandastack run -- uname -a");
        eprintln!("  pandastack run --template code-interpreter -- python -c 'print(2 ** 10)'");
        eprintln!("  pandastack sandbox create && pandastack sandbox list");
        Ok(())
    }
}

fn token_file(data_dir: &Path) -> PathBuf {
    data_dir.join("control/bootstrap-token")
}

/// The API key that control created for the first workspace.
pub fn read_token(data_dir: &Path) -> Result<String> {
    let path = token_file(data_dir);
    let text = std::fs::read_to_string(&path);
    Ok(text.with_context(|| format!("cannot read the initial API key {}", path.display()))?.trim().to_owned())
}
