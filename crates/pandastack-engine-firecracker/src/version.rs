//! Supported Firecracker versions and their quirks.
//!
//! Almost every minor version writes another snapshot format, so a snapshot is bound to the minor
//! version that made it. Firecracker rejects unknown fields, so the request types in [`crate::api`]
//! match the versions listed here.

use std::fmt;

/// Version of a Firecracker program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

/// A supported minor version and its snapshot format.
struct SupportedVersion {
    major: u32,
    minor: u32,
    snapshot_format: &'static str,
}

const SUPPORTED: &[SupportedVersion] = &[SupportedVersion { major: 1, minor: 16, snapshot_format: "10.0.0" }];

/// A version whose snapshots are not known.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Firecracker {0} is not supported; install a version of {names}", names = supported())]
pub(crate) struct UnsupportedVersion(Version);

fn supported() -> String {
    let names: Vec<_> = SUPPORTED.iter().map(|known| format!("{}.{}", known.major, known.minor)).collect();
    names.join(" or ")
}

impl Version {
    /// The version in the first line of `firecracker --version`, such as `Firecracker v1.16.1`.
    pub(crate) fn parse(output: &str) -> Option<Self> {
        let version = output.lines().next()?.rsplit_once(" v")?.1.trim();
        let mut numbers = version.split('.').map(|number| number.parse().ok());
        let parsed = Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? };
        numbers.next().is_none().then_some(parsed)
    }

    /// The snapshot format that this version writes and reads; the error names the versions that would do.
    pub(crate) fn snapshot_format(self) -> Result<&'static str, UnsupportedVersion> {
        let known = SUPPORTED.iter().find(|known| (known.major, known.minor) == (self.major, self.minor));
        known.map(|known| known.snapshot_format).ok_or(UnsupportedVersion(self))
    }

    /// The series that snapshots are bound to, such as `1.16`.
    pub(crate) fn series(self) -> String {
        format!("{}.{}", self.major, self.minor)
    }

    /// Returns whether a resume without a snapshot since the pause stops vsock from delivering to
    /// the guest: the device then waits for the guest to acknowledge a reset that was never sent.
    pub(crate) fn loses_vsock_on_plain_resume(self) -> bool {
        self.series() == "1.16" && self.patch <= 1
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firecracker_versions_are_parsed_from_its_output() {
        for (line, expected) in [
            ("Firecracker v1.16.1\n\n2026 exiting", Some((1, 16, 1))),
            ("Jailer v1.16.1", Some((1, 16, 1))),
            ("Firecracker v1.17.0-dev", None),
            ("Firecracker v1.16", None),
            ("something else", None),
            ("", None),
        ] {
            let parsed = Version::parse(line).map(|version| (version.major, version.minor, version.patch));
            assert_eq!(parsed, expected, "{line}");
        }
    }

    #[test]
    fn only_supported_firecracker_versions_are_accepted() {
        let version = |minor, patch| Version { major: 1, minor, patch };
        assert_eq!(version(16, 1).snapshot_format(), Ok("10.0.0"));
        let refused = version(12, 0).snapshot_format().unwrap_err().to_string();
        assert!(refused.contains("1.12.0") && refused.contains("1.16"), "{refused}");
        assert!(version(16, 1).loses_vsock_on_plain_resume());
        assert!(!version(16, 2).loses_vsock_on_plain_resume());
    }
}
