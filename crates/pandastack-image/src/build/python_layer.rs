//! Wheels: downloaded by the host's pip against the lock's digests, installed by the tree's pip without network. Of wheels
//! that only carry programs, the wanted files are moved in instead.

use std::path::Path;

use super::chroot::Chroot;
use crate::command::Program;
use crate::error::ImageError;
use crate::lock::{Pin, Pins};
use crate::recipe::Recipe;

/// Wheels built for these C libraries run on the tree's (Debian 13 has glibc 2.41).
const GLIBC_MINORS: std::ops::RangeInclusive<u32> = 17..=41;

/// Directory in the tree that shows the wheels while they are installed.
const WHEELS: &str = "/run/wheels";

/// Installs the lock's wheels for the system's Python, compiled, or what `python.place` names of them.
pub(super) fn install(chroot: &Chroot, download: &Path, recipe: &Recipe) -> Result<(), ImageError> {
    let wheels = download.join("wheels");
    std::fs::create_dir_all(&wheels).map_err(ImageError::io("create", &wheels))?;
    let list = wheels.join("requirements.txt");
    std::fs::write(&list, requirements(&recipe.lock.python)).map_err(ImageError::io("write", &list))?;
    let version = &recipe.python.version;
    pip("download Python packages", "download", version)
        .args(["--no-deps", "--require-hashes", "--requirement"])
        .arg(&list)
        .arg("--dest")
        .arg(&wheels)
        .run()?;
    if !recipe.python.place.is_empty() {
        let unpacked = download.join("unpacked-wheels");
        unpack(&wheels, &unpacked)?;
        return super::place::copy(chroot.root(), &unpacked, &recipe.python.place);
    }
    // A wheel is a zip file, and Python imports from those: a tree without pip can be given pip by pip itself.
    let install = format!(
        "PYTHONPATH=$(echo {WHEELS}/pip-[0-9]*.whl) python3 -m pip install --quiet --no-index --no-deps --require-hashes --no-compile --no-cache-dir \
         --break-system-packages --root-user-action=ignore --find-links {WHEELS} -r {WHEELS}/requirements.txt"
    );
    chroot.with_dir(&wheels, WHEELS, || chroot.shell(&install, "install Python packages"))?;
    // pip compiles on one core. Some packages carry files for other Python versions: those may fail.
    let compile =
        format!("python3 -m compileall -q -q -j 0 /usr/local/lib/python{version}/dist-packages || true");
    chroot.shell(&compile, "compile Python packages")
}

/// Unpacks every wheel into one directory, as an installer would.
fn unpack(wheels: &Path, to: &Path) -> Result<(), ImageError> {
    let listing = std::fs::read_dir(wheels).map_err(ImageError::io("list", wheels))?;
    let is_wheel = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    for wheel in listing.filter_map(|entry| Some(entry.ok()?.path())).filter(is_wheel) {
        Program::new("python3", "unpack a Python package")
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(to)
            .run()?;
    }
    Ok(())
}

fn requirements(pins: &Pins) -> String {
    let line =
        |(name, pin): (&String, &Pin)| format!("{name}=={} --hash=sha256:{}\n", pin.version, pin.sha256);
    pins.iter().map(line).collect()
}

/// The host's pip, choosing wheels for the tree instead of for the host.
fn pip(purpose: &str, command: &str, python_version: &str) -> Program {
    let platforms = GLIBC_MINORS.map(|minor| format!("manylinux_2_{minor}_x86_64"));
    let platforms = platforms.chain(["manylinux2014_x86_64".into(), "manylinux1_x86_64".into()]);
    Program::new("python3", purpose)
        .args(["-m", "pip", command, "--quiet", "--only-binary=:all:", "--implementation=cp"])
        .args(["--python-version", python_version])
        .args(platforms.flat_map(|platform| [String::from("--platform"), platform]))
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
}

/// Finds the versions that the recipe's requirements mean today, dependencies included.
pub(crate) fn resolve(work: &Path, recipe: &Recipe) -> Result<Pins, ImageError> {
    if recipe.python.packages.is_empty() {
        return Ok(Pins::new());
    }
    // Packages that are only used for their files are resolved without dependencies.
    let alone: &[&str] = if recipe.python.place.is_empty() { &[] } else { &["--no-deps"] };
    let report = pip("resolve Python packages", "install", &recipe.python.version)
        .args(alone)
        .args(["--dry-run", "--ignore-installed", "--report", "-", "--target"])
        .arg(work.join("resolve"))
        .args(&recipe.python.packages)
        .read()?;
    parse_report(&report)
}

fn parse_report(report: &str) -> Result<Pins, ImageError> {
    let malformed = |why: &str| ImageError::malformed("pip's report", why);
    let report: serde_json::Value =
        serde_json::from_str(report).map_err(|error| ImageError::malformed("pip's report", error))?;
    let installs = report["install"].as_array().ok_or_else(|| malformed("it has no list of packages"))?;
    let pin = |entry: &serde_json::Value| {
        let name = entry["metadata"]["name"].as_str()?;
        let version = entry["metadata"]["version"].as_str()?.to_owned();
        let sha256 = entry["download_info"]["archive_info"]["hashes"]["sha256"].as_str()?.to_owned();
        Some((normalized(name), Pin { version, sha256 }))
    };
    installs.iter().map(|entry| pin(entry).ok_or_else(|| malformed("a package has no digest"))).collect()
}

/// PyPI's rule for comparing names.
fn normalized(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pip_report_is_converted_to_pins() {
        let report = r#"{"install": [{"metadata": {"name": "Scikit_Learn", "version": "1.9"},
            "download_info": {"archive_info": {"hashes": {"sha256": "ab"}}}}]}"#;
        let pins = parse_report(report).unwrap();
        assert_eq!(requirements(&pins), "scikit-learn==1.9 --hash=sha256:ab\n");
    }

    #[test]
    fn a_package_without_digest_is_refused() {
        let report = r#"{"install": [{"metadata": {"name": "a", "version": "1"}, "download_info": {}}]}"#;
        assert!(parse_report(report).is_err());
    }
}
