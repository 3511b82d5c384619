//! `pandastack app init`: a pandastack.toml to begin with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The app's directory
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Its name; the directory's when absent
    #[arg(long)]
    name: Option<String>,
}

/// Carries it out.
pub(super) fn run(args: Args, output: Output) -> Result<ExitCode> {
    let file = args.directory.join(pandastack_detect::MANIFEST);
    if file.exists() {
        return Err(Failure::new(format!("{} is already there", file.display())).into());
    }
    let name = args.name.unwrap_or_else(|| name_of(&args.directory));
    let text = format!(
        "# How this app is deployed. What is not said is found out; `pandastack app deploy` tells what it found.\n\
         [app]\nname = \"{name}\"\n# framework = \"node\"\n# install_command = \"npm ci\"\n# build_command = \"npm run build\"\n\
         # start_command = \"node server.js\"   # listens on 0.0.0.0 and $PORT\n# port = 8080\n# health_path = \"/\"\n\n\
         # Plain variables of build and run. Secrets belong to the app: pandastack app env set --secret\n# [env]\n# LOG_LEVEL = \"info\"\n"
    );
    std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    output.line(&file.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// A directory's name as an app's name.
pub(super) fn name_of(directory: &Path) -> String {
    let full = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let name = full.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    let name = name.trim_matches('-').trim_start_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
    if name.is_empty() { "app".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_become_names() {
        for (directory, name) in
            [("/x/My_Shop", "my-shop"), ("/x/2-a", "a"), ("/x/...", "app"), ("/x/a.b-", "a-b")]
        {
            assert_eq!(name_of(Path::new(directory)), name, "{directory}");
        }
    }
}
