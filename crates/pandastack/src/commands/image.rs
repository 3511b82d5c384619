//! `pandastack image`: builds root file systems of the catalogue into the cache, without a server.
//! For developers and for machines that prepare a shared cache; users run `pandastack template
//! build`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use pandastack_image::{ImageBuilder, Kernel, Locking, Recipe};

use crate::failure::Failure;
use crate::output::{Output, size};
use crate::progress::Progress;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the templates of the catalogue and their built images
    List,
    /// Update a template's lock file to the versions that the registries have now
    Lock {
        /// Template name, or `kernel`
        name: String,
        /// Directory with the templates
        templates: PathBuf,
    },
    /// Build a root file system and print its path
    Build {
        /// Template name
        name: String,
        /// Fail if the Debian archive no longer has a locked version
        #[arg(long)]
        locked: bool,
        /// Directory of templates to use instead of those built in
        #[arg(long, value_name = "DIR")]
        templates: Option<PathBuf>,
    },
    /// Write images and the guest kernel as archives, which other hosts use instead of building
    ///
    /// Copy the archives to `/usr/share/pandastack/images` of a host, or name their directory in
    /// PANDASTACK_IMAGES_DIR.
    Export {
        /// Directory for the archives
        dir: PathBuf,
        /// Template names
        #[arg(default_values = ["base", "code-interpreter"])]
        names: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        let cache = pandastack_image::default_cache_dir();
        let builder = ImageBuilder::new(&cache);
        match self {
            Command::List => list(&builder, output)?,
            Command::Lock { name, templates } => lock(&name, &templates)?,
            Command::Build { name, locked, templates } => {
                let locking = if locked { Locking::Strict } else { Locking::AllowDrift };
                let builder = builder.locking(locking);
                let image = build(&builder, &name, templates.as_deref())?;
                output.line(&image.display().to_string())?;
            }
            Command::Export { dir, names } => {
                for archive in export(&builder, &cache, &dir, &names)? {
                    output.line(&archive.display().to_string())?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list(builder: &ImageBuilder, output: Output) -> Result<()> {
    let mut rows: Vec<(String, String, String)> = Vec::new();
    for recipe in pandastack_image::catalog() {
        let image = builder.cached(recipe)?;
        let used = image.as_ref().map_or_else(|| "-".to_owned(), |image| size(image.manifest.used_bytes));
        rows.push((recipe.name.clone(), builder.key(recipe)?, used));
    }
    output
        .table(&rows, ["NAME", "KEY", "SIZE"], |(name, key, used)| [name.clone(), key.clone(), used.clone()])
}

fn lock(name: &str, templates: &Path) -> Result<()> {
    let cache = pandastack_image::default_cache_dir();
    if name == "kernel" {
        pandastack_image::relock_kernel(templates, &cache)?;
        return Ok(());
    }
    let progress = Progress::start(format!("Locking {name}"));
    pandastack_image::relock_template(&templates.join(name), &cache, &|step| {
        progress.step(step.to_string())
    })?;
    Ok(())
}

fn unknown(name: &str) -> Failure {
    Failure::new(format!("template `{name}` not found"))
        .hint("run `pandastack image list` to see all templates")
}

fn export(builder: &ImageBuilder, cache: &Path, dir: &Path, names: &[String]) -> Result<Vec<PathBuf>> {
    let find = |name: &String| pandastack_image::find(name).ok_or_else(|| unknown(name));
    let recipes = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let progress = Progress::start("Exporting images");
    let mut archives = vec![Kernel::export(cache, dir, &|step| progress.step(step.to_string()))?];
    for recipe in recipes {
        let archive = builder.export(recipe, dir, &|step| progress.step(step.to_string()))?;
        archives.push(archive);
    }
    Ok(archives)
}

fn build(builder: &ImageBuilder, name: &str, templates: Option<&Path>) -> Result<PathBuf> {
    let recipes = match templates {
        Some(dir) => {
            let read = |recipe: &Recipe| Recipe::read(&dir.join(&recipe.name));
            pandastack_image::catalog().iter().map(read).collect::<Result<Vec<_>, _>>()?
        }
        None => pandastack_image::catalog().to_vec(),
    };
    let recipe = recipes.iter().find(|recipe| recipe.answers_to(name)).ok_or_else(|| unknown(name))?;
    let progress = Progress::start(format!("Building {name}"));
    let image = builder.clone().parents(recipes.clone()).ensure(recipe, &|step| {
        progress.step(step.to_string());
    })?;
    for change in &image.manifest.drifted {
        eprintln!("warning: differs from the lock file: {change}");
    }
    Ok(image.path)
}
