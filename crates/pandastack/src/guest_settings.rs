//! Settings of the operator for the programs in guests: `[guests]`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pandastack_types::guests::{GuestSettings, Mirror, MirrorKind, MirrorUrl};
use pandastack_types::limits::{GUEST_ALLOW_MAX, GUEST_CA_BYTES_MAX};
use pandastack_types::network::Target;
use serde::Deserialize;

use crate::failure::Failure;

/// Flags. Lists in variables are separated by `;`, because targets and addresses may contain commas.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct GuestArgs {
    /// PEM file with certificate authorities that programs in sandboxes trust [default: none]
    #[arg(long = "guest-ca-bundle", env = "PANDASTACK_GUEST_CA_BUNDLE", value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// Package mirror for all sandboxes, with pip, npm, apt, cargo, go or oci as TOOL; can be repeated
    /// [default: none]
    #[arg(
        long = "guest-mirror",
        env = "PANDASTACK_GUEST_MIRRORS",
        value_delimiter = ';',
        value_name = "TOOL=URL"
    )]
    mirrors: Vec<Mirror>,
    /// Address that sandboxes and builds with internet access can reach although it is private; can be
    /// repeated
    /// [default: none]
    #[arg(
        long = "guest-allow",
        env = "PANDASTACK_GUEST_ALLOW",
        value_delimiter = ';',
        value_name = "CIDR[:PORTS]"
    )]
    allow: Vec<Target>,
}

/// Table `guests`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestSection {
    ca_bundle: Option<PathBuf>,
    mirrors: BTreeMap<MirrorKind, MirrorUrl>,
    allow: Vec<Target>,
}

/// The settings, resolved. The certificates are in their file.
#[derive(Debug, Clone, Default)]
pub struct GuestOptions {
    /// PEM file.
    pub ca_bundle: Option<PathBuf>,
    /// Mirrors by package manager.
    pub mirrors: BTreeMap<MirrorKind, MirrorUrl>,
    /// Addresses for guests with internet access.
    pub allow: Vec<Target>,
}

impl GuestOptions {
    /// Takes flags and variables, then the file.
    pub fn resolve(args: &GuestArgs, file: GuestSection) -> Result<Self> {
        let given = args.mirrors.iter().map(|mirror| (mirror.kind, mirror.url.clone())).collect();
        let ca_bundle = args.ca_bundle.clone().or(file.ca_bundle).filter(|path| !path.as_os_str().is_empty());
        let ca_bundle = ca_bundle.map(std::path::absolute).transpose();
        let found = Self {
            ca_bundle: ca_bundle.context("cannot resolve the path of `ca_bundle`")?,
            mirrors: if args.mirrors.is_empty() { file.mirrors } else { given },
            allow: if args.allow.is_empty() { file.allow } else { args.allow.clone() },
        };
        if let Some(name) = found.allow.iter().find(|target| !target.is_network()) {
            let failure = Failure::new(format!("`allow` in [guests] does not accept the name `{name}`"));
            return Err(failure.hint("list the addresses of its servers, such as 10.0.0.5:443").into());
        }
        if found.allow.len() > GUEST_ALLOW_MAX {
            let count = found.allow.len();
            let failure = Failure::new(format!(
                "`allow` in [guests] has {count} entries, but the limit is {GUEST_ALLOW_MAX}"
            ));
            return Err(failure.hint("use larger networks").into());
        }
        Ok(found)
    }

    /// The same settings as flags, for the agent that `up` starts.
    pub fn arguments(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let ca_bundle = self.ca_bundle.iter().map(|path| ("--guest-ca-bundle", OsString::from(path)));
        let mirrors = self.mirrors.iter().map(|(kind, url)| {
            let mirror = Mirror { kind: *kind, url: url.clone() };
            ("--guest-mirror", OsString::from(mirror.to_string()))
        });
        let allow = self.allow.iter().map(|target| ("--guest-allow", OsString::from(target.to_string())));
        ca_bundle.chain(mirrors).chain(allow)
    }

    /// The settings with the certificates, for the agent.
    pub fn load(&self) -> Result<GuestSettings> {
        let ca_bundle = self.ca_bundle.as_deref().map(read_certificates).transpose()?;
        Ok(GuestSettings { ca_bundle, mirrors: self.mirrors.clone(), allow: self.allow.clone() })
    }
}

/// Reads certificates. A file without any, or with a damaged one, would leave every guest without the mirror.
pub fn read_certificates(path: &Path) -> Result<String> {
    let invalid = |why: String| {
        Failure::new(format!("`ca_bundle` in [guests]: {}: {why}", path.display()))
            .hint("name a PEM file with the certificates of your authorities, without private keys")
    };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(pandastack_types::chain(&error)))?;
    if text.len() > GUEST_CA_BYTES_MAX {
        let why = format!("it has {} bytes, but the limit is {GUEST_CA_BYTES_MAX}", text.len());
        return Err(invalid(why).into());
    }
    if text.contains("PRIVATE KEY") {
        return Err(invalid("it contains a private key, which every sandbox could read".to_owned()).into());
    }
    pandastack_http::certificates(&text).map_err(|error| invalid(pandastack_types::chain(&error)))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(toml: &str) -> GuestSection {
        toml::from_str(toml).unwrap()
    }

    const FILE: &str = "ca_bundle = '/etc/ca.pem'\nallow = ['10.7.0.5:443', '10.8.0.0/16']\n\
                        [mirrors]\npip = 'https://pypi.corp/simple'\ngo = 'https://go.corp'\n";

    #[test]
    fn flags_override_the_file_and_are_passed_to_the_agent() {
        let found = GuestOptions::resolve(&GuestArgs::default(), section(FILE)).unwrap();
        let arguments: Vec<String> =
            found.arguments().map(|(flag, value)| format!("{flag} {}", value.display())).collect();
        assert_eq!(
            arguments,
            [
                "--guest-ca-bundle /etc/ca.pem",
                "--guest-mirror pip=https://pypi.corp/simple",
                "--guest-mirror go=https://go.corp",
                "--guest-allow 10.7.0.5/32:443",
                "--guest-allow 10.8.0.0/16",
            ]
        );
        let args = GuestArgs {
            ca_bundle: None,
            mirrors: vec!["npm=https://npm.corp".parse().unwrap()],
            allow: vec!["10.9.0.1".parse().unwrap()],
        };
        let found = GuestOptions::resolve(&args, section(FILE)).unwrap();
        assert_eq!(found.mirrors.keys().copied().collect::<Vec<_>>(), [MirrorKind::Npm]);
        assert_eq!(found.allow.len(), 1);
        assert_eq!(found.ca_bundle.as_deref(), Some(Path::new("/etc/ca.pem")));
    }

    #[test]
    fn errors_in_guest_settings_name_the_invalid_value() {
        for (toml, word) in [
            ("mirrors = { maven = 'https://a' }", "maven"),
            ("mirrors = { pip = 'pypi.corp' }", "pypi.corp"),
            ("allow = ['10.0.0.300']", "10.0.0.300"),
            ("bundle = 'x'", "bundle"),
        ] {
            let error = toml::from_str::<GuestSection>(toml).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let name = GuestOptions::resolve(&GuestArgs::default(), section("allow = ['pypi.corp:443']"));
        assert!(name.unwrap_err().to_string().contains("pypi.corp"));
        let many: Vec<String> = (0..=GUEST_ALLOW_MAX).map(|at| format!("'10.0.0.{at}'")).collect();
        let many = section(&format!("allow = [{}]", many.join(",")));
        assert!(GuestOptions::resolve(&GuestArgs::default(), many).is_err());
    }

    #[test]
    fn ca_bundles_must_contain_only_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = dir.path().join("ca.pem");
            std::fs::write(&path, text).unwrap();
            read_certificates(&path).map_err(|error| format!("{error:#}"))
        };
        let valid = include_str!("../tests/data/ca.pem");
        assert_eq!(read(valid).as_deref(), Ok(valid));
        assert!(read("").unwrap_err().contains("no certificate"));
        assert!(read("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
        assert!(read(&format!("{valid}-----BEGIN PRIVATE KEY-----\n")).unwrap_err().contains("private key"));
        assert!(read(&"#".repeat(GUEST_CA_BYTES_MAX + 1)).unwrap_err().contains("limit"));
        assert!(read_certificates(&dir.path().join("none")).is_err());
    }
}
