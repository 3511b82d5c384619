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
mod sbom;
mod sdk;
mod sums;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::program::{cargo, program, read};
use crate::steps::Steps;
use crate::tree::{Profile, pandastack, target_dir, use_profile};
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

/// A release in the making.
struct Release {
    version: String,
    /// Seconds since 1970 of the commit.
    epoch: String,
    /// Directory of finished files.
    out: PathBuf,
    /// Directory of files in the making.
    work: PathBuf,
}

impl Release {
    fn begin(out: Option<PathBuf>) -> Result<Self> {
        let mut commit_time = program("git");
        commit_time.args(["log", "-1", "--format=%ct"]);
        let epoch = read(commit_time)?.trim().to_owned();
        let out = out.unwrap_or_else(|| target_dir().join("dist"));
        let work = target_dir().join("dist-work");
        for dir in [&out, &work] {
            if dir.exists() {
                std::fs::remove_dir_all(dir).with_context(|| format!("delete {}", dir.display()))?;
            }
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(Self { version: tree::workspace_version()?, epoch, out, work })
    }

    /// A program whose time stamps are the commit's.
    fn program(&self, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = program(name);
        command.env("SOURCE_DATE_EPOCH", &self.epoch).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
        command
    }
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

/// The program that is packaged.
fn product() -> PathBuf {
    pandastack()
}
