//! Probing the host: Firecracker, jailer, KVM device and cgroup version.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

use pandastack_engine::{EngineError, Result, host};

use crate::config::{BINARY_VARIABLE, FirecrackerConfig, JAILER_VARIABLE, Launcher};
use crate::devices::DEVICES_GENERATION;
use crate::version::Version;

/// Programs and settings to spawn processes with.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) binary: PathBuf,
    /// Empty for [`Launcher::Direct`].
    pub(crate) jailer: PathBuf,
    /// cgroup version of the host. The jailer assumes 1 by default.
    pub(crate) cgroup_version: u8,
}

impl Programs {
    /// Fails if a program was removed since the probe. Without this the jailer's own message would be all
    /// that a user sees.
    pub(crate) fn check(&self) -> Result<()> {
        for path in [&self.binary, &self.jailer] {
            if path.as_os_str().is_empty() {
                continue;
            }
            path.metadata().map_err(|error| {
                let program = path.file_name().unwrap_or_default().display();
                EngineError::Unavailable(format!(
                    "Firecracker cannot be started: {program}: {error}; run `pandastack engine install firecracker`",
                ))
            })?;
        }
        Ok(())
    }
}

/// Outcome of the probe.
#[derive(Debug, Clone)]
pub(crate) struct ProbeOutcome {
    pub(crate) programs: Programs,
    pub(crate) version: Version,
    /// A snapshot loads only where this is equal.
    pub(crate) compatibility_key: String,
}

/// Finds the programs and checks their versions. Blocks.
pub(crate) fn find(config: &FirecrackerConfig) -> Result<ProbeOutcome> {
    check_device(Path::new("/dev/kvm"))?;
    let binary = config.binary.clone().or_else(|| from_environment(BINARY_VARIABLE));
    let binary = binary.or_else(|| host::program_on_path("firecracker")).ok_or_else(|| {
        EngineError::Unavailable(format!(
            "firecracker is not installed: run `pandastack engine install firecracker`, or name it in \
             {BINARY_VARIABLE}"
        ))
    })?;
    let version = version_of(&binary)?;
    let format = version.snapshot_format();
    let format = format.map_err(|error| EngineError::Unavailable(error.to_string()))?;
    check_format(&binary, format)?;
    let jailer = match config.launcher {
        Launcher::Jailer => find_jailer(config.jailer.clone(), &binary, version)?,
        Launcher::Direct => PathBuf::new(),
    };
    let cgroup_version = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2 } else { 1 };
    let compatibility_key = [
        "firecracker".to_owned(),
        version.series(),
        format!("snapshots {format}"),
        format!("devices {DEVICES_GENERATION}"),
        host::processor(),
    ]
    .join("; ");
    Ok(ProbeOutcome { programs: Programs { binary, jailer, cgroup_version }, version, compatibility_key })
}

fn from_environment(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn check_device(path: &Path) -> Result<()> {
    let unavailable = |error| {
        EngineError::Unavailable(format!(
            "Firecracker needs KVM, and {} cannot be opened: {error}",
            path.display()
        ))
    };
    OpenOptions::new().read(true).write(true).open(path).map(drop).map_err(unavailable)
}

fn find_jailer(configured: Option<PathBuf>, binary: &Path, version: Version) -> Result<PathBuf> {
    let beside = || Some(binary.with_file_name("jailer")).filter(|path| path.is_file());
    let jailer = configured.or_else(|| from_environment(JAILER_VARIABLE)).or_else(beside);
    let jailer = jailer.or_else(|| host::program_on_path("jailer")).ok_or_else(|| {
        EngineError::Unavailable(format!(
            "the jailer of Firecracker is not installed: put it beside {} or name it in {JAILER_VARIABLE}",
            binary.display()
        ))
    })?;
    let jailer_version = version_of(&jailer)?;
    if jailer_version == version {
        return Ok(jailer);
    }
    Err(EngineError::Unavailable(format!(
        "{} is version {jailer_version}, but {} is {version}; install both of one release",
        jailer.display(),
        binary.display()
    )))
}

fn version_of(program: &Path) -> Result<Version> {
    let text = output_of(program, "--version")?;
    Version::parse(&text).ok_or_else(|| {
        let line = text.lines().next().unwrap_or_default();
        EngineError::Unavailable(format!("{} says {line:?} instead of its version", program.display()))
    })
}

/// Checks the snapshot format the program reports; a patched build may differ from its release.
fn check_format(binary: &Path, expected: &str) -> Result<()> {
    let text = output_of(binary, "--snapshot-version")?;
    let said = text.lines().next().unwrap_or_default().trim().trim_start_matches('v');
    if said == expected {
        return Ok(());
    }
    Err(EngineError::Unavailable(format!(
        "{} writes snapshots of format {said:?} instead of {expected}; install an official release",
        binary.display()
    )))
}

fn output_of(program: &Path, argument: &str) -> Result<String> {
    let output = Command::new(program).arg(argument).output();
    let output = output.map_err(EngineError::io("run", program))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(dir: &Path, name: &str, version: &str, format: &str) -> PathBuf {
        let path = dir.join(name);
        let text = format!(
            "#!/bin/sh\ncase $1 in --version) echo '{version}';; --snapshot-version) echo '{format}';; esac\n"
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn firecracker_jailer_and_snapshot_versions_must_match() {
        let dir = tempfile::tempdir().unwrap();
        let good = script(dir.path(), "good", "Firecracker v1.16.1", "v10.0.0");
        let patched = script(dir.path(), "patched", "Firecracker v1.16.1", "v11.0.0");
        let jailer = script(dir.path(), "jailer", "Jailer v1.15.0", "");
        let version = version_of(&good).unwrap();
        check_format(&good, "10.0.0").unwrap();
        let refused = check_format(&patched, "10.0.0").unwrap_err().to_string();
        assert!(refused.contains("11.0.0"), "{refused}");
        let refused = find_jailer(None, &good, version).unwrap_err().to_string();
        assert!(refused.contains("1.15.0") && refused.contains("1.16.1"), "{refused}");
        assert_eq!(find_jailer(Some(good.clone()), &good, version).unwrap(), good, "{jailer:?}");
        assert!(version_of(Path::new("/bin/true")).is_err());
    }

    #[test]
    fn a_missing_engine_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let [binary, jailer] = ["firecracker", "jailer"].map(|name| script(dir.path(), name, "", ""));
        let programs = Programs { binary: binary.clone(), jailer, cgroup_version: 2 };
        programs.check().unwrap();
        Programs { jailer: PathBuf::new(), ..programs.clone() }.check().unwrap();
        std::fs::remove_file(&binary).unwrap();
        let refused = programs.check().unwrap_err().to_string();
        assert!(refused.contains("started: firecracker: "), "{refused}");
        assert!(!refused.contains(&dir.path().display().to_string()), "tenants read it: {refused}");
        assert!(refused.contains("engine install firecracker"), "{refused}");
    }

    #[test]
    fn a_missing_kvm_device_is_reported() {
        let refused = check_device(Path::new("/nonexistent/kvm")).unwrap_err().to_string();
        assert!(refused.contains("/nonexistent/kvm"), "{refused}");
    }
}
