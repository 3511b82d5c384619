//! `pandastack app init`: writes a starter pandastack.toml.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of the app
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// App name [default: the directory name]
    #[arg(long)]
    name: Option<String>,
}

/// Runs the command.
pub(super) fn run(args: Args, output: Output) -> Result<ExitCode> {
    let file = args.directory.join(pandastack_detect::MANIFEST);
    if file.exists() {
        return Err(Failure::new(format!("{} already exists", file.display())).into());
    }
    let name = args.name.unwrap_or_else(|| name_of(&args.directory));
    let text = format!(
        "# Deployment settings. Omitted settings are detected; `pandastack app deploy` prints the result.\n\
         [app]\n\
         name = \"{name}\"\n\
         # framework = \"node\"\n\
         # install_command = \"npm ci\"\n\
         # build_command = \"npm run build\"\n\
         # start_command = \"node server.js\"   # must listen on 0.0.0.0:$PORT\n\
         # port = 8080\n\
         # health_path = \"/\"\n\n\
         # Variables for build and runtime. Set secrets with: pandastack app env set --secret\n\
         # [env]\n\
         # LOG_LEVEL = \"info\"\n"
    );
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    output.line(&file.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Derives an app name from a directory name.
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
    fn app_names_derive_from_directory_names() {
        for (directory, name) in
            [("/x/My_Shop", "my-shop"), ("/x/2-a", "a"), ("/x/...", "app"), ("/x/a.b-", "a-b")]
        {
            assert_eq!(name_of(Path::new(directory)), name, "{directory}");
        }
    }
}
