//! `cargo xtask dist`: the files of a release, in one directory.
//!
//! ```text
//! pandastack-VERSION-linux-x86_64.tar.gz   the program, units, manual pages, completions, install.sh
//! pandastack_VERSION_amd64.deb             the same as a Debian package
//! pandastack-*.whl, pandastack-*.tar.gz    the Python SDK
//! pandastack-sdk-*.tgz                     the TypeScript SDK
//! pandastack-VERSION.cdx.json              every crate that is linked, with version, licence and digest
//! images/KEY.tar.zst                       prebuilt templates and the guest kernel
//! SHA256SUMS, SHA256SUMS.minisig           digests of all of them, and their signature
//! ```
//!
//! Two builds of one commit on one machine are equal byte for byte: every time stamp is the commit's, owners are
//! root, and lists are sorted. Archives are made by the host's `tar` and `dpkg-deb`.

mod images;
mod package;
mod plan;
mod sbom;
mod sdk;
mod sums;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use plan::Release;

use crate::program::cargo;
use crate::steps::Steps;
use crate::tree::{Profile, use_profile};
use crate::{console, host};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for the files; its previous contents are deleted
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Sign SHA256SUMS with this minisign key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Leave out the prebuilt templates, whose build needs root
    #[arg(long)]
    no_images: bool,
    /// Package the program of another cargo profile, to try this command
    #[arg(long, value_enum, default_value_t = Profile::Dist, hide = true)]
    profile: Profile,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    use_profile(args.profile);
    let mut steps = Steps::default();
    let release = Release::begin(args.out)?;
    steps.step("build", || build(args.profile))?;
    steps.step("install what is missing", host::install_for_dist)?;
    let staged = steps.step("files of the packages", || tree::stage(&release))?;
    steps.step("tarball and Debian package", || package::write(&release, &staged))?;
    steps.step("SDKs", || sdk::write(&release))?;
    steps.step("list of crates", || sbom::write(&release))?;
    if !args.no_images {
        steps.step("prebuilt templates", || images::write(&release))?;
    }
    steps.step("digests", || sums::write(&release, args.key.as_deref()))?;
    eprintln!("\n{}\n\nThe release is in {}.", steps.table(), release.out.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the program. Paths of this machine are replaced in it, so that clones elsewhere give the same bytes.
fn build(profile: Profile) -> Result<()> {
    console::build()?;
    let mut build = cargo(&["build", "--locked", "--profile", profile.name()]);
    match profile {
        Profile::Dist => {
            build.args(["--package", "pandastack"]).env("CARGO_ENCODED_RUSTFLAGS", remapped_paths()?)
        }
        // As the tests build it, so that nothing is compiled twice.
        _ => build.args(["--workspace", "--bins", "--tests"]),
    };
    crate::program::run(build)
}

fn remapped_paths() -> Result<String> {
    let home = std::env::home_dir().context("find the home directory")?;
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let pairs: [(&Path, &str); 2] = [(crate::tree::root(), "/pandastack"), (&cargo_home, "/cargo")];
    let flags = pairs.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    Ok(flags.join("\x1f"))
}
