//! A newer QEMU for tests than the one a Debian 12 installs: Debian's own build of it for that
//! release. It is unpacked into the cache, not installed, and replaces the installed one for one
//! program and its children.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::host::as_root;
use crate::program::{program, read, run};
use crate::tree;

/// Major version.
pub const MAJOR: u32 = 10;
/// Packages as a Debian archive has them, with their SHA-256. An archive drops superseded packages;
/// then the newest are used.
const PACKAGES: [(&str, &str); 3] = [
    (
        "pool/main/q/qemu/qemu-system-x86_10.0.2+ds-2+deb13u1~bpo12+1_amd64.deb",
        "4a6b1856c8b0d7df4ff8e70249e12c473ccf8d516aadb4ae14d3d938faed0c65",
    ),
    (
        "pool/main/q/qemu/qemu-system-data_10.0.2+ds-2+deb13u1~bpo12+1_all.deb",
        "2d831088187087013b3fcbd19bdfb955b182a2d5a08f6dafa0ad1c6d2007fb4e",
    ),
    (
        "pool/main/s/seabios/seabios_1.16.3-2~bpo12+1_all.deb",
        "48390d0a534c66d11789e39518aa219773a9d3677b29fe1af8799dfb563ec713",
    ),
];
/// Packages, and where newer ones appear.
const NAMES: [&str; 3] = ["qemu-system-x86", "qemu-system-data", "seabios"];
const SUITE: &str = "bookworm";
const BACKPORTS: &str = "bookworm-backports";
/// The emulator, installed or unpacked.
const EMULATOR: &str = "usr/bin/qemu-system-x86_64";
/// Mounts the files at the paths that the program was built for, out of others' sight.
const IN_PLACE: &str = r#"
for path in usr/bin/qemu-system-x86_64 usr/share/qemu usr/share/seabios; do
    mount --bind "$0/$path" "/$path" || exit
done
qemu-system-x86_64 --version && exec "$@"
"#;

/// The directory it is unpacked in. The error has the reason if it is not available here.
pub fn ensure() -> Result<PathBuf> {
    let installed =
        major(&Path::new("/").join(EMULATOR)).context("ask the installed QEMU for its version")?;
    ensure!(installed < MAJOR, "the installed one is QEMU {installed}, and the other tests ran with it");
    let mut hasher = DefaultHasher::new();
    PACKAGES.hash(&mut hasher);
    let dir = tree::cache_dir().join(format!("qemu/{:016x}", hasher.finish()));
    if !dir.exists() {
        fetch(&dir)?;
    }
    let found = major(&dir.join(EMULATOR)).context("start it with this host's libraries")?;
    ensure!(found == MAJOR, "the archive has QEMU {found}");
    Ok(dir)
}

/// A command that runs `test` with the unpacked one in the installed one's place.
pub fn in_place(dir: &Path, test: &Path) -> Command {
    let mut command = as_root("unshare");
    command.args(["--mount", "sh", "-c", IN_PLACE]).arg(dir).arg(test);
    command
}

fn fetch(dir: &Path) -> Result<()> {
    let begun = dir.with_extension("begun");
    if begun.exists() {
        std::fs::remove_dir_all(&begun).context("remove what an interrupted download left")?;
    }
    let packages = begun.join("packages");
    std::fs::create_dir_all(&packages).with_context(|| format!("make {}", packages.display()))?;
    let archive = archive()?;
    if let Err(error) = download_pinned(&archive, &packages) {
        eprintln!("warning: {error:#}; taking the newest of {BACKPORTS}");
        download_newest(&archive, &packages).context("this host cannot fetch Debian's packages of it")?;
    }
    for entry in std::fs::read_dir(&packages).context("list the packages")? {
        let package = entry.context("list the packages")?.path();
        if package.extension().is_some_and(|kind| kind == "deb") {
            let mut unpack = program("dpkg-deb");
            unpack.arg("-x").arg(&package).arg(&begun);
            run(unpack)?;
        }
    }
    std::fs::remove_dir_all(&packages).context("remove packages that are unpacked")?;
    std::fs::rename(&begun, dir).with_context(|| format!("move the emulator to {}", dir.display()))
}

fn download_pinned(archive: &str, dir: &Path) -> Result<()> {
    for ((path, sha256), name) in PACKAGES.iter().zip(NAMES) {
        // The host's apt knows how to reach the archive, and compares the hash.
        let mut download = program("/usr/lib/apt/apt-helper");
        // apt's sandbox user may not write into the cache.
        download.args(["-o", "APT::Sandbox::User=root", "download-file"]);
        download.arg(format!("{archive}/{path}")).arg(dir.join(format!("{name}.deb")));
        download.arg(format!("SHA256:{sha256}"));
        run(download).context("the archive has the pinned packages no longer")?;
    }
    Ok(())
}

/// The host's apt with lists of its own, which it checks the signatures of.
fn download_newest(archive: &str, dir: &Path) -> Result<()> {
    let (sources, lists, cache) = (dir.join("sources.list"), dir.join("lists"), dir.join("cache"));
    let suites = [SUITE, BACKPORTS].map(|suite| format!("deb {archive} {suite} main\n"));
    std::fs::write(&sources, suites.concat()).with_context(|| format!("write {}", sources.display()))?;
    for part in [lists.join("partial"), cache.join("archives/partial")] {
        std::fs::create_dir_all(&part).with_context(|| format!("make {}", part.display()))?;
    }
    let apt = |args: &[&str]| {
        let mut apt = program("apt-get");
        let settings = [
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=-".to_owned(),
            format!("Dir::State::Lists={}", lists.display()),
            format!("Dir::Cache={}", cache.display()),
            "APT::Sandbox::User=root".to_owned(),
        ];
        apt.args(settings.iter().flat_map(|setting| ["-o", setting]));
        apt.current_dir(dir).args(args);
        run(apt)
    };
    apt(&["-q", "update"])?;
    apt(&[&["-q", "-t", BACKPORTS, "download"], NAMES.as_slice()].concat())
}

/// The Debian archive that this host's apt uses, or the one that the environment names for templates.
fn archive() -> Result<String> {
    if let Ok(named) = std::env::var("PANDASTACK_DEBIAN_MIRROR") {
        return Ok(named.trim_end_matches('/').to_owned());
    }
    let mut targets = program("apt-get");
    targets.args(["indextargets", "--no-release-info", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let targets = read(targets)?;
    let mut archives = targets.lines().map(|uri| uri.trim_end_matches('/'));
    let debian = archives.find(|uri| uri.ends_with("/debian")).map(str::to_owned);
    debian
        .context("find a Debian archive in this host's apt configuration; PANDASTACK_DEBIAN_MIRROR names one")
}

/// The number before the first dot in `QEMU emulator version 10.0.2 (Debian ...)`.
fn major(emulator: &Path) -> Result<u32> {
    let printed = program(emulator).arg("--version").output();
    let printed = printed.with_context(|| format!("start {}", emulator.display()))?;
    if !printed.status.success() {
        bail!("{}", String::from_utf8_lossy(&printed.stderr).trim());
    }
    let text = String::from_utf8_lossy(&printed.stdout);
    let number = text.split_once("version ").and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
    number.with_context(|| format!("read a version from `{}`", text.lines().next().unwrap_or_default()))
}
