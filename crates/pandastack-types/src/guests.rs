//! Operator settings for the programs in guests: certificate authorities and package mirrors.
//!
//! Pure data: which variables and files they become. The agent sends those to each guest with its identity.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::GUEST_MIRROR_BYTES_MAX;
use crate::network::Target;

/// Certificates that programs in guests trust: those of the image and the operator's.
pub const GUEST_CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The operator's certificates alone. Debian's `update-ca-certificates` reads them there.
pub const GUEST_OWN_CA_FILE: &str = "/usr/local/share/ca-certificates/pandastack-operator.crt";

/// Variables that name [`GUEST_CA_FILE`], for programs that do not read it by themselves.
const CA_VARIABLES: [&str; 6] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
];

/// A package manager that can use a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MirrorKind {
    /// pip and uv: a simple index.
    Pip,
    /// npm, pnpm and Yarn: a registry.
    Npm,
    /// apt: the parent of `debian` and `debian-security`.
    Apt,
    /// cargo: a sparse index in place of crates.io.
    Cargo,
    /// Go: a module proxy.
    Go,
    /// Template builds: a registry in place of Docker Hub.
    Oci,
}

const MIRROR_KINDS: [MirrorKind; 6] =
    [MirrorKind::Pip, MirrorKind::Npm, MirrorKind::Apt, MirrorKind::Cargo, MirrorKind::Go, MirrorKind::Oci];

/// Address of a mirror: `http` or `https`, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MirrorUrl(String);

/// A mirror as a flag: `pip=https://pypi.example.com/simple`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Package manager.
    pub kind: MirrorKind,
    /// Address.
    pub url: MirrorUrl,
}

/// Reason why a text is not a mirror.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// The package manager is unknown.
    #[error("invalid mirror `{0}`; write TOOL=URL with pip, npm, apt, cargo, go or oci as the tool")]
    Kind(String),
    /// The address cannot be used.
    #[error("invalid mirror URL `{0}`; write http://HOST/PATH or https://HOST/PATH")]
    Url(String),
}

/// Settings of the operator for all guests of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestSettings {
    /// Certificate authorities to trust besides those of the image, as PEM.
    pub ca_bundle: Option<String>,
    /// Mirrors by package manager.
    pub mirrors: BTreeMap<MirrorKind, MirrorUrl>,
    /// Addresses that guests with internet access may reach, private ones too.
    pub allow: Vec<Target>,
}

impl MirrorKind {
    /// Name in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            MirrorKind::Pip => "pip",
            MirrorKind::Npm => "npm",
            MirrorKind::Apt => "apt",
            MirrorKind::Cargo => "cargo",
            MirrorKind::Go => "go",
            MirrorKind::Oci => "oci",
        }
    }
}

impl MirrorUrl {
    /// The address, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Host and port, as written.
    pub fn authority(&self) -> &str {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default()
    }

    /// Host name in lowercase, or address.
    pub fn host(&self) -> String {
        let host = self.authority().split(':').next().unwrap_or_default();
        host.to_ascii_lowercase()
    }

    /// Port; by default the scheme's.
    pub fn port(&self) -> u16 {
        let default = if self.is_plain() { 80 } else { 443 };
        self.authority().split_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(default)
    }

    fn is_plain(&self) -> bool {
        self.0.starts_with("http:")
    }
}

impl FromStr for MirrorUrl {
    type Err = MirrorError;

    /// The text ends up in configuration files of guests, so quotes, blanks and control characters are
    /// refused.
    fn from_str(text: &str) -> Result<Self, MirrorError> {
        let refuse = || MirrorError::Url(text.chars().take(80).collect());
        let url = MirrorUrl(text.trim_end_matches('/').to_owned());
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'`');
        let is_web = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
        let has_port = |(_, port): (&str, &str)| port.parse::<u16>().is_ok_and(|port| port > 0);
        let fits = url.0.len() <= GUEST_MIRROR_BYTES_MAX
            && url.0.bytes().all(is_plain)
            && !url.host().is_empty()
            && url.authority().split_once(':').is_none_or(has_port);
        if is_web && fits { Ok(url) } else { Err(refuse()) }
    }
}

impl TryFrom<String> for MirrorUrl {
    type Error = MirrorError;

    fn try_from(text: String) -> Result<Self, MirrorError> {
        text.parse()
    }
}

impl From<MirrorUrl> for String {
    fn from(url: MirrorUrl) -> String {
        url.0
    }
}

impl FromStr for Mirror {
    type Err = MirrorError;

    fn from_str(text: &str) -> Result<Self, MirrorError> {
        let refuse = || MirrorError::Kind(text.chars().take(80).collect());
        let (kind, url) = text.split_once('=').ok_or_else(refuse)?;
        let kind = MIRROR_KINDS.into_iter().find(|known| known.as_str() == kind).ok_or_else(refuse)?;
        Ok(Mirror { kind, url: url.parse()? })
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind.as_str(), self.url.as_str())
    }
}

impl GuestSettings {
    /// Variables of every process in a guest. Those of the sandbox override them.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        let mut set = |name: &str, value: &str| drop(env.insert(name.to_owned(), value.to_owned()));
        if self.ca_bundle.is_some() {
            CA_VARIABLES.iter().for_each(|name| set(name, GUEST_CA_FILE));
            set("NODE_EXTRA_CA_CERTS", GUEST_OWN_CA_FILE);
        }
        for (kind, url) in &self.mirrors {
            match kind {
                MirrorKind::Pip => {
                    set("PIP_INDEX_URL", url.as_str());
                    set("UV_DEFAULT_INDEX", url.as_str());
                    if url.is_plain() {
                        set("PIP_TRUSTED_HOST", url.authority());
                    }
                }
                MirrorKind::Npm => {
                    set("npm_config_registry", &format!("{}/", url.as_str()));
                    set("YARN_NPM_REGISTRY_SERVER", url.as_str());
                }
                MirrorKind::Go => set("GOPROXY", url.as_str()),
                // Read by the program that fetches images of template builds.
                MirrorKind::Oci => set("PANDASTACK_OCI_MIRROR", url.as_str()),
                // These read files only: [`Self::cargo_config`], and `sources.list`.
                MirrorKind::Cargo | MirrorKind::Apt => {}
            }
        }
        env
    }

    /// Configuration of cargo, which reads the address of its index from files only.
    pub fn cargo_config(&self) -> Option<String> {
        let url = self.mirrors.get(&MirrorKind::Cargo)?.as_str();
        Some(format!(
            "[source.crates-io]\nreplace-with = \"mirror\"\n\n[source.mirror]\nregistry = \"sparse+{url}/\"\n"
        ))
    }

    /// Parent of the Debian archives. The address of the main archive is accepted, too.
    pub fn apt_mirror(&self) -> Option<String> {
        let url = self.mirrors.get(&MirrorKind::Apt)?.as_str();
        Some(url.strip_suffix("/debian").unwrap_or(url).to_owned())
    }

    /// Host names of the mirrors.
    pub fn mirror_hosts(&self) -> Vec<String> {
        self.mirrors.values().map(MirrorUrl::host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mirrors: &[&str], ca_bundle: Option<&str>) -> GuestSettings {
        let mirrors = mirrors.iter().map(|text| text.parse::<Mirror>().unwrap());
        GuestSettings {
            ca_bundle: ca_bundle.map(str::to_owned),
            mirrors: mirrors.map(|mirror| (mirror.kind, mirror.url)).collect(),
            allow: Vec::new(),
        }
    }

    #[test]
    fn every_package_manager_gets_its_mirror() {
        let mirrors = [
            "pip=https://pypi.corp/simple/",
            "npm=https://npm.corp",
            "apt=https://apt.corp/debian",
            "cargo=https://crates.corp/index",
            "go=https://go.corp",
            "oci=https://hub.corp",
        ];
        let all = settings(&mirrors, Some("PEM"));
        let env = all.environment();
        for (name, value) in [
            ("PIP_INDEX_URL", "https://pypi.corp/simple"),
            ("UV_DEFAULT_INDEX", "https://pypi.corp/simple"),
            ("npm_config_registry", "https://npm.corp/"),
            ("GOPROXY", "https://go.corp"),
            ("PANDASTACK_OCI_MIRROR", "https://hub.corp"),
            ("SSL_CERT_FILE", GUEST_CA_FILE),
            ("REQUESTS_CA_BUNDLE", GUEST_CA_FILE),
            ("NODE_EXTRA_CA_CERTS", GUEST_OWN_CA_FILE),
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!env.contains_key("PIP_TRUSTED_HOST"), "its certificate is checked");
        assert!(all.cargo_config().unwrap().contains("\"sparse+https://crates.corp/index/\""));
        assert_eq!(all.apt_mirror().as_deref(), Some("https://apt.corp"));
        let hosts = ["pypi.corp", "npm.corp", "apt.corp", "crates.corp", "go.corp", "hub.corp"];
        assert_eq!(all.mirror_hosts(), hosts);
    }

    #[test]
    fn default_guest_settings_add_no_environment() {
        let none = GuestSettings::default();
        assert!(none.environment().is_empty());
        assert_eq!((none.cargo_config(), none.apt_mirror()), (None, None));
        let plain = settings(&["pip=http://10.0.0.5:8080/simple"], None).environment();
        assert_eq!(plain["PIP_TRUSTED_HOST"], "10.0.0.5:8080");
        assert!(!plain.contains_key("SSL_CERT_FILE"));
    }

    #[test]
    fn mirror_urls_are_validated() {
        let url = |text: &str| text.parse::<MirrorUrl>();
        let found = url("https://user:pass@Pypi.Corp:8443/simple").unwrap();
        assert_eq!((found.host().as_str(), found.port()), ("pypi.corp", 8443));
        assert_eq!(url("http://a").unwrap().port(), 80);
        for refused in [
            "",
            "pypi.corp",
            "ftp://a",
            "https://",
            "https:///simple",
            "https://a b",
            "https://a\"\n[x]",
            "https://a:0",
            "https://a:port",
        ] {
            assert!(url(refused).is_err(), "{refused:?}");
        }
        for refused in ["https://a", "maven=https://a", "pip"] {
            assert!(refused.parse::<Mirror>().is_err(), "{refused:?}");
        }
        let mirror: Mirror = "go=https://go.corp/".parse().unwrap();
        assert_eq!(mirror.to_string(), "go=https://go.corp");
    }
}
