//! The SDKs, as their registries take them.

use anyhow::{Context, Result};

use super::plan::Release;
use crate::program::{npm, program, run};
use crate::{host, python, tree};

/// The build backend that `sdk/python/pyproject.toml` names.
const BACKEND: &str = "hatchling==1.27.0";

/// Writes wheel, source distribution and npm package.
pub fn write(release: &Release) -> Result<()> {
    python(release).context("build the Python SDK")?;
    host::install_for_tests()?;
    run(npm("sdk/typescript", &["ci"]))?;
    let destination = format!("--pack-destination={}", release.out.display());
    run(npm("sdk/typescript", &["pack", &destination])).context("pack the TypeScript SDK")
}

fn python(release: &Release) -> Result<()> {
    let (interpreter, backend) = (python::ensure()?, release.work.join("hatchling"));
    let mut install = program(&interpreter);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
    install.arg(&backend).arg(BACKEND);
    run(install)?;
    let mut build = release.program(&interpreter);
    build.current_dir(tree::root().join("sdk/python")).env("PYTHONPATH", &backend);
    build.args(["-m", "hatchling", "build", "--target", "wheel", "--target", "sdist", "--directory"]);
    build.arg(&release.out);
    run(build)
}
