//! Predefined lists of hosts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Ceiling, PortRange};

/// A predefined list of hosts, maintained by the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Registries of pip, npm, cargo, go, apt and similar package managers, over HTTP and HTTPS.
    PackageRegistries,
}

/// Names that [`Preset::PackageRegistries`] allows.
pub(super) const PACKAGE_REGISTRIES: [&str; 36] = [
    "pypi.org",
    "files.pythonhosted.org",
    "conda.anaconda.org",
    "repo.anaconda.com",
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "repo.yarnpkg.com",
    "npm.jsr.io",
    "jsr.io",
    "deno.land",
    "crates.io",
    "index.crates.io",
    "static.crates.io",
    "static.rust-lang.org",
    "proxy.golang.org",
    "sum.golang.org",
    "go.dev",
    "dl.google.com",
    "rubygems.org",
    "*.rubygems.org",
    "packagist.org",
    "repo.packagist.org",
    "api.nuget.org",
    "repo.maven.apache.org",
    "repo1.maven.org",
    "plugins.gradle.org",
    "services.gradle.org",
    "hex.pm",
    "repo.hex.pm",
    "cran.r-project.org",
    "deb.debian.org",
    "security.debian.org",
    "archive.ubuntu.com",
    "security.ubuntu.com",
    "dl-cdn.alpinelinux.org",
    "*.fedoraproject.org",
];

/// Ports that a preset opens.
pub(super) const WEB_PORTS: [PortRange; 2] =
    [PortRange { first: 80, last: 80 }, PortRange { first: 443, last: 443 }];

impl Preset {
    /// Name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::PackageRegistries => "package-registries",
        }
    }

    /// Returns whether the list has a name. The operator's mirrors are on it, too.
    pub(super) fn has(self, name: &str, ceiling: &Ceiling) -> bool {
        let Preset::PackageRegistries = self;
        let is_mirror = ceiling.mirrors.iter().any(|mirror| mirror == name);
        is_mirror
            || PACKAGE_REGISTRIES.iter().any(|entry| match entry.strip_prefix('*') {
                Some(below) => name.ends_with(below),
                None => name == *entry,
            })
    }
}
