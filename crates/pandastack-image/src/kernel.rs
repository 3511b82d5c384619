//! The guest kernel: Debian 12's cloud kernel package, fetched by apt and unpacked here.
//!
//! The package is pinned by `templates/kernel/lock.toml`. Debian's archive keeps only recent
//! versions, so when the pinned version is gone, the current one is used (it is signed like any
//! other) and [`KernelSet::drifted`] is set. The set in the cache is keyed by the pin: a host keeps
//! its kernel until the pin changes, also offline.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::archive;
use crate::cache::{self, Cache, KeyHasher};
use crate::command::Program;
use crate::deb;
use crate::debian::{IndexEntry, Mirror, PrivateApt};
use crate::digest::check_sha256;
use crate::error::ImageError;
use crate::lock::{self, KernelLock};
use crate::modules::{BOOT_MODULES, ModuleIndex};
use crate::progress::{Phase, Progress, ProgressFn};
use crate::vmlinux;

/// Changes whenever the same package would be laid out differently.
const LAYOUT: &str = "kernel-4";

/// The release whose kernel machines run; measured here and validated with Firecracker.
const SUITE: &str = "bookworm";

/// Always depends on the current cloud kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// The one guest kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kernel;

/// A kernel on disk, ready to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSet {
    /// The bzImage.
    pub vmlinuz: PathBuf,
    /// `uname -r` of it.
    pub release: String,
    /// `lib/modules/<release>` with the modules a guest may use and their indexes, ready for modprobe.
    pub modules: PathBuf,
    /// Modules to load at boot, in order, relative to [`KernelSet::modules`].
    pub boot_modules: Vec<PathBuf>,
    /// Identifies the kernel in templates' keys: hash of the package's contents.
    pub sha256: String,
    /// Debian's version of it.
    pub version: String,
    /// Whether the version differs from the pinned one.
    pub drifted: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    package: String,
    version: String,
    sha256: String,
    release: String,
    boot_modules: Vec<PathBuf>,
    drifted: bool,
}

impl Kernel {
    /// Returns the pinned kernel, fetching it on first use.
    pub fn ensure(cache_dir: &Path, progress: ProgressFn<'_>) -> Result<KernelSet, ImageError> {
        Self::ensure_pin(lock::kernel_lock(), cache_dir, progress)
    }

    /// Returns the pinned kernel if it is in the cache.
    pub fn cached(cache_dir: &Path) -> Option<KernelSet> {
        load(&Cache::at(cache_dir).kernel(&pin_key(lock::kernel_lock())))
    }

    /// Returns the kernel of another pin, such as [`Kernel::current_pin`].
    pub fn ensure_pin(
        pin: &KernelLock,
        cache_dir: &Path,
        progress: ProgressFn<'_>,
    ) -> Result<KernelSet, ImageError> {
        let key = pin_key(pin);
        let cache = Cache::at(cache_dir);
        let home = cache.kernel(&key);
        let say = |phase, detail: &str| progress(Progress { subject: "kernel", phase, detail });
        if let Some(found) = load(&home) {
            say(Phase::Done, &found.release);
            return Ok(found);
        }
        let lock = cache.lock(&key, || say(Phase::WaitForOther, ""))?;
        if load(&home).is_none() {
            let work = cache.work_dir(&key, &lock)?;
            let staged = match archive::find(&key) {
                Some(found) => {
                    say(Phase::Unpack, &pin.package);
                    let staged = work.path().join("kernel");
                    archive::unpack(&found, &key, &staged)?;
                    staged
                }
                None => {
                    say(Phase::Kernel, &pin.package);
                    prepare(work.path(), pin)?
                }
            };
            cache::publish(&staged, &home)?;
        }
        let found = load(&home).ok_or_else(|| {
            ImageError::malformed(home.display().to_string(), "the kernel just unpacked is not there")
        })?;
        say(Phase::Done, &found.release);
        Ok(found)
    }

    /// Writes the pinned kernel as an archive into `dir`, fetching it first if need be. Returns the archive's path.
    pub fn export(cache_dir: &Path, dir: &Path, progress: ProgressFn<'_>) -> Result<PathBuf, ImageError> {
        let pin = lock::kernel_lock();
        Self::ensure_pin(pin, cache_dir, progress)?;
        let key = pin_key(pin);
        let home = Cache::at(cache_dir).kernel(&key);
        let mut files = Vec::new();
        list_files(&home, &home, &mut files)?;
        // Made from the other one where an engine needs it.
        files.retain(|(name, _)| name != Path::new(vmlinux::FILE));
        files.sort();
        archive::write(dir, &key, &files)
    }

    /// The package that pinning today would pin.
    pub fn current_pin(cache_dir: &Path) -> Result<KernelLock, ImageError> {
        let cache = Cache::at(cache_dir);
        let lock = cache.lock("kernel-pin", || {})?;
        let work = cache.work_dir("kernel-pin", &lock)?;
        let apt = PrivateApt::update(work.path(), &Mirror::discover()?, SUITE)?;
        let entry = current(&apt)?;
        Ok(KernelLock { package: entry.name, version: entry.version, sha256: entry.sha256 })
    }
}

impl KernelSet {
    /// The kernel as an uncompressed ELF image, for engines that take no bzImage. Unpacked beside it on first use.
    pub fn vmlinux(&self) -> Result<PathBuf, ImageError> {
        let path = self.vmlinuz.with_file_name(vmlinux::FILE);
        if !path.exists() {
            vmlinux::extract(&self.vmlinuz, &path)?;
        }
        Ok(path)
    }
}

fn pin_key(pin: &KernelLock) -> String {
    KeyHasher::new(LAYOUT).add(&pin.package).add(&pin.version).add(&pin.sha256).key()
}

/// Adds every file below `dir`, with its name relative to `home`.
fn list_files(home: &Path, dir: &Path, files: &mut Vec<(PathBuf, PathBuf)>) -> Result<(), ImageError> {
    let failed = || ImageError::io("list", dir);
    for entry in std::fs::read_dir(dir).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        if path.is_dir() {
            list_files(home, &path, files)?;
        } else {
            files.push((path.strip_prefix(home).unwrap_or(&path).to_path_buf(), path));
        }
    }
    Ok(())
}

fn load(home: &Path) -> Option<KernelSet> {
    let text = std::fs::read_to_string(home.join("manifest.json")).ok()?;
    let manifest: Manifest = serde_json::from_str(&text).ok()?;
    Some(KernelSet {
        vmlinuz: home.join("vmlinuz"),
        modules: home.join("lib/modules").join(&manifest.release),
        release: manifest.release,
        boot_modules: manifest.boot_modules,
        sha256: manifest.sha256,
        version: manifest.version,
        drifted: manifest.drifted,
    })
}

/// Fetches, unpacks and prunes; returns the finished directory.
fn prepare(work: &Path, pin: &KernelLock) -> Result<PathBuf, ImageError> {
    let apt = PrivateApt::update(&work.join("apt"), &Mirror::discover()?, SUITE)?;
    let pinned =
        apt.versions(&pin.package).unwrap_or_default().into_iter().find(|entry| entry.version == pin.version);
    let drifted = pinned.is_none();
    let entry = match pinned {
        Some(entry) if entry.sha256 != pin.sha256 => {
            let why = format!("{} {} is now {}", entry.name, entry.version, entry.sha256);
            return Err(ImageError::LockMismatch { what: "the kernel package".into(), why });
        }
        Some(entry) => entry,
        None => current(&apt)?,
    };
    let package = apt.download(&entry, work)?;
    check_sha256(&package, &entry.sha256)?;
    let staged = work.join("kernel");
    deb::unpack(&package, &staged, |path| {
        path.starts_with("boot") || path.starts_with("lib/modules") || path.starts_with("usr/lib/modules")
    })?;
    arrange(&staged, &entry, drifted)?;
    Ok(staged)
}

fn current(apt: &PrivateApt) -> Result<IndexEntry, ImageError> {
    let nothing = |name: &str| ImageError::malformed("the package index", format!("it has no {name}"));
    let meta = apt.versions(META_PACKAGE)?.into_iter().next().ok_or_else(|| nothing(META_PACKAGE))?;
    let name = meta.depends.split([',', ' ']).next().unwrap_or_default().to_owned();
    apt.versions(&name)?.into_iter().next().ok_or_else(|| nothing(&name))
}

/// Names the kernel plainly, keeps only modules that guests may use, and indexes those for modprobe.
fn arrange(staged: &Path, entry: &IndexEntry, drifted: bool) -> Result<(), ImageError> {
    let boot = staged.join("boot");
    let vmlinuz = single_file(&boot, "vmlinuz-")?;
    let release = vmlinuz.trim_start_matches("vmlinuz-").to_owned();
    let target = staged.join("vmlinuz");
    std::fs::rename(boot.join(&vmlinuz), &target).map_err(ImageError::io("move", &target))?;
    std::fs::remove_dir_all(&boot).map_err(ImageError::io("delete", &boot))?;
    let modules = staged.join("lib/modules").join(&release);
    let depmod =
        || Program::new("depmod", "index the kernel's modules").arg("-b").arg(staged).arg(&release).run();
    depmod()?;
    let index = ModuleIndex::read(&modules)?;
    let boot_modules = index.load_order(BOOT_MODULES)?;
    prune(&modules, &modules, &index.selection()?)?;
    depmod()?;
    let manifest = Manifest {
        package: entry.name.clone(),
        version: entry.version.clone(),
        sha256: entry.sha256.clone(),
        release,
        boot_modules,
        drifted,
    };
    let path = staged.join("manifest.json");
    let text =
        serde_json::to_string_pretty(&manifest).map_err(|error| ImageError::malformed("manifest", error))?;
    std::fs::write(&path, text).map_err(ImageError::io("write", &path))
}

fn single_file(dir: &Path, prefix: &str) -> Result<String, ImageError> {
    let entries = std::fs::read_dir(dir).map_err(ImageError::io("list", dir))?;
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.starts_with(prefix))
        .ok_or_else(|| ImageError::malformed("the kernel package", format!("it has no {prefix} file")))
}

/// Deletes modules below `dir` that are not in `keep` (relative to `tree`), and directories left empty.
fn prune(tree: &Path, dir: &Path, keep: &[PathBuf]) -> Result<(), ImageError> {
    for entry in std::fs::read_dir(dir).map_err(ImageError::io("list", dir))?.filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            prune(tree, &path, keep)?;
            // Fails for directories that still hold something, which is the point.
            let _ = std::fs::remove_dir(&path);
            continue;
        }
        let relative = path.strip_prefix(tree).unwrap_or(&path);
        let is_module = path.extension().is_some_and(|extension| extension == "ko");
        if is_module && !keep.iter().any(|kept| kept == relative) {
            std::fs::remove_file(&path).map_err(ImageError::io("delete", &path))?;
        }
    }
    Ok(())
}
