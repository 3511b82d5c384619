//! Debian packages: a fresh release by mmdebstrap, or more packages on top of a parent's tree.
//!
//! Pinned versions are asked for through apt preferences: apt takes a pinned version wherever the
//! archive still has it, and the current one where it does not. The installed version is read back
//! from the tree afterwards.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::chroot::Chroot;
use crate::command::Program;
use crate::debian::{self, Mirror};
use crate::error::ImageError;
use crate::lock::{Pin, Pins};
use crate::recipe::Recipe;

const PREFERENCES: &str = "etc/apt/preferences.d/pandastack-lock";
const BUILD_SETTINGS: &str = "etc/apt/apt.conf.d/99mmdebstrap";
const LISTS: &str = "var/lib/apt/lists";

/// Installs a minimal Debian and the recipe's packages into `root`. Returns the installed packages.
pub(crate) fn bootstrap(
    root: &Path,
    download: &Path,
    suite: &str,
    recipe: &Recipe,
) -> Result<Pins, ImageError> {
    let mirror = Mirror::discover()?;
    let preferences = write(download, "preferences", &recipe.lock.apt_preferences())?;
    let transport =
        write(download, "transport.conf", &(debian::host_transport_settings()?.join("\n") + "\n"))?;
    let copy_preferences = format!(
        "mkdir -p \"$1/etc/apt/preferences.d\" && cp '{}' \"$1/{PREFERENCES}\"",
        preferences.display()
    );
    let mut program = Program::confined("mmdebstrap", format!("install Debian {suite}"), &["--mount-proc"])
        .args(["--mode=root", "--variant=minbase", "--format=directory", "--skip=cleanup/apt/lists"])
        .arg(format!("--aptopt={}", transport.display()))
        .arg("--aptopt=Acquire::Languages \"none\"")
        .arg("--dpkgopt=force-unsafe-io")
        .arg(format!("--setup-hook={copy_preferences}"))
        .args(recipe.debian.packages.iter().map(|package| format!("--include={package}")));
    let globs = recipe.debian.exclude.iter().map(|glob| format!("--dpkgopt=path-exclude={glob}"));
    let globs =
        globs.chain(recipe.debian.include.iter().map(|glob| format!("--dpkgopt=path-include={glob}")));
    program = program.args(globs).arg(suite).arg(root);
    program.args(mirror.sources(suite)).run()?;
    let installed = installed(root)?;
    remove_build_settings(root, &mirror, suite)?;
    Ok(installed)
}

/// Adds the recipe's packages to a parent's tree: the host's apt downloads, the tree's own installs offline.
pub(super) fn extend(chroot: &Chroot, recipe: &Recipe) -> Result<Pins, ImageError> {
    let root = chroot.root();
    let before = versions(root)?;
    let preferences = root.join(PREFERENCES);
    std::fs::write(&preferences, recipe.lock.apt_preferences())
        .map_err(ImageError::io("write", &preferences))?;
    let packages = &recipe.debian.packages;
    let settings = debian::host_transport_settings()?;
    tree_apt(root, "fetch the package index", &settings).arg("update").run()?;
    tree_apt(root, "download Debian packages", &settings)
        .args(["--yes", "--download-only", "install"])
        .args(packages)
        .run()?;
    let packages = packages.join(" ");
    let install =
        format!("apt-get --yes --no-download --no-install-recommends install {packages} && apt-get clean");
    chroot.shell(&install, "install Debian packages")?;
    let mut installed = installed(root)?;
    installed.retain(|name, pin| before.get(name) != Some(&pin.version));
    remove_build_settings(root, &Mirror::discover()?, &suite_of(root)?)?;
    Ok(installed)
}

/// The host's apt, working on the tree's package state.
fn tree_apt(root: &Path, purpose: &str, settings: &[String]) -> Program {
    let options = [
        format!("Dir={}", root.display()),
        format!("Dir::State::status={}", root.join("var/lib/dpkg/status").display()),
        format!("Dir::Bin::methods={HOST_METHODS}"),
        "APT::Architecture=amd64".into(),
        "APT::Sandbox::User=root".into(),
        "APT::Install-Recommends=false".into(),
        "Acquire::Languages=none".into(),
    ];
    // `Key "value";` as apt-config prints it, to `Key=value` as apt-get takes it.
    let settings = settings.iter().filter_map(|line| line.trim_end_matches(';').split_once(' '));
    let settings = settings.map(|(key, value)| format!("{key}={}", value.trim_matches('"')));
    let options = options.into_iter().chain(settings).flat_map(|option| [String::from("-o"), option]);
    Program::new("apt-get", purpose).args(options)
}

/// The tree's apt is of another release: its download methods cannot run on the host.
const HOST_METHODS: &str = "/usr/lib/apt/methods";

fn suite_of(root: &Path) -> Result<String, ImageError> {
    let path = root.join("etc/os-release");
    let text = std::fs::read_to_string(&path).map_err(ImageError::io("read", &path))?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(str::to_owned).ok_or_else(|| ImageError::malformed("etc/os-release", "it has no release"))
}

fn write(dir: &Path, name: &str, text: &str) -> Result<PathBuf, ImageError> {
    let path = dir.join(name);
    std::fs::write(&path, text).map_err(ImageError::io("write", &path))?;
    Ok(path)
}

/// The guest must be free to upgrade, and must not learn the host's proxy or credentials.
fn remove_build_settings(root: &Path, mirror: &Mirror, suite: &str) -> Result<(), ImageError> {
    for name in [PREFERENCES, BUILD_SETTINGS] {
        let path = root.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(ImageError::io("delete", &path)(error));
            }
            _ => {}
        }
    }
    let path = root.join("etc/apt/sources.list");
    let text = mirror.without_credentials().sources(suite).join("\n") + "\n";
    std::fs::write(&path, text).map_err(ImageError::io("write", &path))
}

/// Package to version, from the tree's own record.
fn versions(root: &Path) -> Result<HashMap<String, String>, ImageError> {
    let path = root.join("var/lib/dpkg/status");
    let text = std::fs::read_to_string(&path).map_err(ImageError::io("read", &path))?;
    Ok(parse_status(&text))
}

fn parse_status(text: &str) -> HashMap<String, String> {
    let package = |stanza: &str| {
        let field = |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name));
        field("Status: ")?.ends_with(" installed").then_some(())?;
        Some((field("Package: ")?.to_owned(), field("Version: ")?.to_owned()))
    };
    text.split("\n\n").filter_map(package).collect()
}

/// Every installed package with the digest that the signed index gives for its version.
fn installed(root: &Path) -> Result<Pins, ImageError> {
    let versions = versions(root)?;
    let mut pins = Pins::new();
    for entry in debian::parse_index(&read_lists(root)?) {
        if versions.get(&entry.name) == Some(&entry.version) {
            pins.insert(entry.name, Pin { version: entry.version, sha256: entry.sha256 });
        }
    }
    Ok(pins)
}

/// Reads the package indexes in the tree, with any compression that apt uses.
fn read_lists(root: &Path) -> Result<String, ImageError> {
    let dir = root.join(LISTS);
    let listing = std::fs::read_dir(&dir).map_err(ImageError::io("list", &dir))?;
    let is_index =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains("_Packages"));
    let files: Vec<PathBuf> = listing.filter_map(|entry| Some(entry.ok()?.path())).filter(is_index).collect();
    let mut text = String::new();
    for file in files {
        let program = Program::new("/usr/lib/apt/apt-helper", "read the package index");
        text.push_str(&program.arg("cat-file").arg(&file).read()?);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_are_listed() {
        let status = "Package: a\nStatus: install ok installed\nVersion: 1\n\n\
                      Package: b\nStatus: deinstall ok config-files\nVersion: 2\n";
        assert_eq!(parse_status(status), HashMap::from([("a".into(), "1".into())]));
    }
}
