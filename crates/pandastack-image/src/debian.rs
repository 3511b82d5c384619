//! Access to Debian archives: the mirror, and a private apt for any release.
//!
//! The host's apt decides the mirror, proxy and certificates, so that builds work wherever `apt-get install` does.
//! The private apt keeps its lists and cache in a work directory: the host's own package state is never touched,
//! and a host of another release, or with stale lists, gives the same answer.

use std::path::{Path, PathBuf};

use crate::command::Program;
use crate::error::ImageError;
use crate::host::DEBIAN_KEYRING;

/// Archive addresses, without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(crate) main: String,
    pub(crate) security: Option<String>,
}

impl Mirror {
    /// Takes the environment's mirror, else the first Debian archive of the host's apt.
    pub(crate) fn discover() -> Result<Mirror, ImageError> {
        if let Ok(main) = std::env::var("PANDASTACK_DEBIAN_MIRROR") {
            let security = std::env::var("PANDASTACK_DEBIAN_SECURITY_MIRROR").ok();
            return Ok(Mirror { main: trim(&main), security: security.as_deref().map(trim) });
        }
        // --no-release-info: without it sources whose lists were never fetched are left out.
        let targets = Program::new("apt-get", "read this host's package sources")
            .args(["indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE)"])
            .arg("Created-By: Packages")
            .read()?;
        Mirror::from_targets(&targets).ok_or(ImageError::NoMirror)
    }

    fn from_targets(targets: &str) -> Option<Mirror> {
        let sources: Vec<(&str, &str)> = targets.lines().filter_map(|line| line.split_once(' ')).collect();
        let debian = |uri: &str, name: &str| trim(uri).rsplit('/').next() == Some(name);
        let main = sources.iter().find(|(uri, release)| debian(uri, "debian") && !release.contains('-'))?;
        let security = sources
            .iter()
            .find(|(uri, release)| release.ends_with("-security") && debian(uri, "debian-security"));
        Some(Mirror { main: trim(main.0), security: security.map(|(uri, _)| trim(uri)) })
    }

    /// The same archives, addressed without the host's user name and password.
    pub(crate) fn without_credentials(&self) -> Mirror {
        let strip = |uri: &String| match uri.split_once("://") {
            Some((scheme, rest)) => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                format!("{scheme}://{}/{path}", host.rsplit('@').next().unwrap_or(host))
            }
            None => uri.clone(),
        };
        Mirror { main: strip(&self.main), security: self.security.as_ref().map(strip) }
    }

    /// Lines for a `sources.list` of `suite`, checked against Debian's keys.
    pub(crate) fn sources(&self, suite: &str) -> Vec<String> {
        let line = |uri: &str, suite: &str| format!("deb [signed-by={DEBIAN_KEYRING}] {uri} {suite} main");
        let mut lines = vec![line(&self.main, suite), line(&self.main, &format!("{suite}-updates"))];
        lines.extend(self.security.iter().map(|uri| line(uri, &format!("{suite}-security"))));
        lines
    }
}

fn trim(uri: &str) -> String {
    uri.trim_end_matches('/').to_owned()
}

/// Settings of the host's apt that concern reaching the mirror, as lines of an apt configuration file.
pub(crate) fn host_transport_settings() -> Result<Vec<String>, ImageError> {
    let dump = Program::new("apt-config", "read this host's apt settings").arg("dump").read()?;
    let concerns = |line: &&str| {
        ["Acquire::http::", "Acquire::https::", "Acquire::Retries", "Acquire::Check-Valid-Until"]
            .iter()
            .any(|prefix| line.starts_with(prefix))
    };
    Ok(dump.lines().filter(concerns).map(str::to_owned).collect())
}

/// One version of a package in an archive's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
    pub(crate) depends: String,
}

/// Reads the stanzas of a `Packages` index or of `apt-cache show`; incomplete ones are skipped.
pub(crate) fn parse_index(text: &str) -> Vec<IndexEntry> {
    text.split("\n\n").filter_map(parse_stanza).collect()
}

fn parse_stanza(stanza: &str) -> Option<IndexEntry> {
    let field = |name: &str| {
        stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
    };
    Some(IndexEntry {
        name: field("Package")?,
        version: field("Version")?,
        sha256: field("SHA256")?,
        depends: field("Depends").unwrap_or_default(),
    })
}

/// apt with state of its own, asking `mirror` for `suite`.
#[derive(Debug)]
pub(crate) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Prepares it below `dir` and fetches the indexes.
    pub(crate) fn update(dir: &Path, mirror: &Mirror, suite: &str) -> Result<PrivateApt, ImageError> {
        let apt = PrivateApt { dir: dir.to_path_buf() };
        for sub in ["state/lists/partial", "cache/archives/partial"].map(|sub| dir.join(sub)) {
            std::fs::create_dir_all(&sub).map_err(ImageError::io("create", &sub))?;
        }
        for (name, text) in
            [("status", String::new()), ("sources.list", mirror.sources(suite).join("\n") + "\n")]
        {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(ImageError::io("write", &path))?;
        }
        apt.program("apt-get", format!("fetch the package index of {suite}")).arg("update").run()?;
        Ok(apt)
    }

    /// Every version of `package` that the archive carries, best first.
    pub(crate) fn versions(&self, package: &str) -> Result<Vec<IndexEntry>, ImageError> {
        let shown = self.program("apt-cache", format!("look up {package}")).args(["show", package]).read()?;
        Ok(parse_index(&shown))
    }

    /// Downloads one version into `into` and returns the file.
    pub(crate) fn download(&self, entry: &IndexEntry, into: &Path) -> Result<PathBuf, ImageError> {
        self.program("apt-get", format!("download {}", entry.name))
            .arg("download")
            .arg(format!("{}={}", entry.name, entry.version))
            .current_dir(into)
            .run()?;
        let listing = std::fs::read_dir(into).map_err(ImageError::io("list", into))?;
        let prefix = format!("{}_", entry.name);
        listing
            .filter_map(Result::ok)
            .map(|file| file.path())
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
            .ok_or_else(|| ImageError::malformed(entry.name.clone(), "apt-get downloaded no such file"))
    }

    fn program(&self, name: &str, purpose: String) -> Program {
        let set = |key: &str, value: String| [String::from("-o"), format!("{key}={value}")];
        let path = |sub: &str| self.dir.join(sub).display().to_string();
        Program::new(name, purpose)
            .args(set("Dir::State", path("state")))
            .args(set("Dir::State::status", path("status")))
            .args(set("Dir::Cache", path("cache")))
            .args(set("Dir::Etc::sourcelist", path("sources.list")))
            .args(set("Dir::Etc::sourceparts", "-".into()))
            .args(set("Dir::Etc::preferencesparts", "-".into()))
            .args(set("APT::Architecture", "amd64".into()))
            .args(set("APT::Sandbox::User", "root".into()))
            .args(set("Acquire::Languages", "none".into()))
            // Desktop hosts hook their own indexes and refreshes into every update.
            .args(set("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()))
            .args(set("APT::Update::Post-Invoke-Success::", String::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_debian_archive_is_the_mirror() {
        let targets = "https://packages.example/apt/ cloud-sdk\n\
                       http://mirror.example/debian/ bookworm-updates\n\
                       http://mirror.example/debian/ bookworm\n\
                       http://mirror.example/debian-security/ bookworm-security\n";
        let mirror = Mirror::from_targets(targets).unwrap();
        assert_eq!(mirror.main, "http://mirror.example/debian");
        assert_eq!(mirror.security.as_deref(), Some("http://mirror.example/debian-security"));
        assert_eq!(mirror.sources("trixie").len(), 3);
    }

    #[test]
    fn a_host_without_debian_has_no_mirror() {
        assert_eq!(Mirror::from_targets("http://mirror.example/ubuntu/ noble\n"), None);
    }

    #[test]
    fn mirror_credentials_are_not_passed_to_guests() {
        let mirror = Mirror { main: "https://me:secret@mirror.example/debian".into(), security: None };
        assert_eq!(mirror.without_credentials().main, "https://mirror.example/debian");
    }

    #[test]
    fn index_stanzas_are_parsed_and_broken_ones_skipped() {
        let text = "Package: a\nVersion: 1\nDepends: b (= 1)\nSHA256: aa\n\nPackage: no-version\nSHA256: bb\n\n\
                    Package: c\nVersion: 2:1-1\nSHA256: cc\nDescription: x\n more\n";
        let entries = parse_index(text);
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].name.as_str(), entries[0].depends.as_str()), ("a", "b (= 1)"));
        assert_eq!(entries[1].version, "2:1-1");
    }
}
