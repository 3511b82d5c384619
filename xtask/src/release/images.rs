//! Prebuilt templates: with them, a first start installs no packages.

use anyhow::Result;

use super::plan::{Release, product};
use crate::host;
use crate::program::run;

/// Writes an archive of the kernel and of each template that `up` prepares.
pub fn write(release: &Release) -> Result<()> {
    host::install_for_product()?;
    let dir = release.out.join("images");
    let mut export = host::as_root(product());
    export.args(["image", "export"]).arg(&dir);
    run(export)?;
    host::give_back(&dir)
}
