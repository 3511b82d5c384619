//! What a rebuild of a template changed.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::BuildId;

/// Differences between a rebuilt version and the version that it repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateChanges {
    /// Build of the version that was repeated.
    pub previous_build_id: BuildId,
    /// Base in the Dockerfile.
    pub base: String,
    /// Digest of the base image, or build of the base template, in the previous version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_before: Option<String>,
    /// The same in the new version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_after: Option<String>,
    /// Size of the previous version in bytes.
    pub size_bytes_before: u64,
    /// Size of the new version in bytes.
    pub size_bytes_after: u64,
    /// Debian packages that were added, removed or changed, by name. Absent if neither version has any, or if
    /// they could not be compared; then the build's log has the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<Vec<PackageChange>>,
    /// Number of further package changes that are not listed.
    #[serde(default)]
    pub packages_omitted: usize,
}

/// A Debian package that differs between two versions of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PackageChange {
    /// Package name; with its architecture if that is not the machine's.
    pub name: String,
    /// Version before; absent if the package was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Version after; absent if the package was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl fmt::Display for TemplateChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = match (&self.base_before, &self.base_after) {
            (Some(before), Some(after)) if before == after => "base unchanged",
            (Some(_), Some(_)) => "base changed",
            _ => "base unknown",
        };
        f.write_str(base)?;
        if let Some(packages) = &self.packages {
            let count = |is: fn(&PackageChange) -> bool| packages.iter().filter(|one| is(one)).count();
            let added = count(|one| one.before.is_none());
            let removed = count(|one| one.after.is_none());
            let changed = packages.len() - added - removed;
            write!(f, ", packages: {added} added, {removed} removed, {changed} changed")?;
            if self.packages_omitted > 0 {
                write!(f, ", {} more", self.packages_omitted)?;
            }
        }
        let mib = |bytes: u64| bytes / (1 << 20);
        write!(f, ", size {} -> {} MiB", mib(self.size_bytes_before), mib(self.size_bytes_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_summed_up_in_a_line() {
        let package = |before: Option<&str>, after: Option<&str>| PackageChange {
            name: "a".to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        let mut changes = TemplateChanges {
            previous_build_id: BuildId::random(),
            base: "debian:12".to_owned(),
            base_before: Some("sha256:1".to_owned()),
            base_after: Some("sha256:2".to_owned()),
            size_bytes_before: 5 << 20,
            size_bytes_after: 6 << 20,
            packages: Some(vec![
                package(None, Some("1")),
                package(Some("1"), Some("2")),
                package(Some("1"), Some("3")),
                package(Some("1"), None),
            ]),
            packages_omitted: 0,
        };
        assert_eq!(
            changes.to_string(),
            "base changed, packages: 1 added, 1 removed, 2 changed, size 5 -> 6 MiB"
        );
        (changes.base_after, changes.packages) = (changes.base_before.clone(), None);
        assert_eq!(changes.to_string(), "base unchanged, size 5 -> 6 MiB");
    }
}
