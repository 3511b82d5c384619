//! The operator's settings for every guest: certificate authorities, and the addresses of package
//! mirrors.
//!
//! Files of the image and the user are kept. Ours have a marker; they are replaced when the
//! operator's settings change, and removed when the settings are removed.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use pandastack_guest_proto::message::GuestSetup;

use super::etc::overwrite;
use super::warnings::Warnings;
use crate::environment::GuestEnvironment;

/// Markers of our part of the trusted certificates. The file that `update-ca-certificates` reads
/// has the same marks, so they survive its run.
const BEGIN: &str = "# begin of the operator's certificates, set by pandastack\n";
const END: &str = "# end of the operator's certificates\n";
/// First line of the configuration of cargo, if it is ours.
const CARGO_MARK: &str = "# set by pandastack\n";
/// Trusted certificates of the image.
const TRUSTED: &str = "etc/ssl/certs/ca-certificates.crt";
/// Certificates that `update-ca-certificates` adds.
const OWN: &str = "usr/local/share/ca-certificates/pandastack-operator.crt";
/// Cargo reads `.cargo/config.toml` of every directory above the one it runs in.
const CARGO_CONFIG: &str = ".cargo/config.toml";
/// Files in which Debian lists its archives.
const APT_SOURCES: [&str; 2] = ["etc/apt/sources.list", "etc/apt/sources.list.d/debian.sources"];
/// Names of Debian's archives, the last part of their addresses.
const ARCHIVES: [&str; 2] = ["debian", "debian-security"];

/// Writes the files.
pub(super) fn apply(around: &GuestEnvironment, setup: &GuestSetup, warnings: &mut Warnings) {
    let root = &around.root;
    warnings.note("trust the operator's certificates", trust(root, setup.ca_bundle.as_deref()));
    warnings.note("configure cargo", configure_cargo(root, setup.cargo_config.as_deref()));
    if let Some(mirror) = &setup.apt_mirror {
        for path in APT_SOURCES {
            warnings.note(&format!("set the mirror in /{path}"), use_apt_mirror(&root.join(path), mirror));
        }
    }
}

fn trust(root: &Path, ca_bundle: Option<&str>) -> io::Result<()> {
    let (trusted, own) = (root.join(TRUSTED), root.join(OWN));
    let Some(pem) = ca_bundle else {
        return match std::fs::remove_file(own) {
            Ok(()) => write_section(&trusted, ""),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
    };
    let section = format!("{BEGIN}{}\n{END}", pem.trim_end());
    write(&own, &section)?;
    write_section(&trusted, &section)
}

/// Replaces our part of the trusted certificates. A new one is appended: the file is large, and every sandbox
/// writes it on its own disk.
fn write_section(path: &Path, section: &str) -> io::Result<()> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return write(path, section),
        text => text?,
    };
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    match parts {
        Some((before, after)) => write(path, &format!("{before}{section}{after}")),
        None => {
            let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            OpenOptions::new().append(true).open(path)?.write_all(format!("{gap}{section}").as_bytes())
        }
    }
}

fn configure_cargo(root: &Path, config: Option<&str>) -> io::Result<()> {
    let path = root.join(CARGO_CONFIG);
    let present = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        text => Some(text?),
    };
    if present.as_ref().is_some_and(|text| !text.starts_with(CARGO_MARK)) {
        return Ok(());
    }
    match config {
        Some(config) => write(&path, &format!("{CARGO_MARK}{config}")),
        None if present.is_some() => std::fs::remove_file(path),
        None => Ok(()),
    }
}

/// Changes the addresses of Debian's archives, wherever they lead now; other sources stay.
fn use_apt_mirror(path: &Path, mirror: &str) -> io::Result<()> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text?,
    };
    overwrite(path, &with_apt_mirror(&text, mirror), 0o644)
}

fn with_apt_mirror(text: &str, mirror: &str) -> String {
    let rewrite = |word: &str| {
        let (blank_free, blanks) = word.split_at(word.trim_end().len());
        let is_web = blank_free.starts_with("http://") || blank_free.starts_with("https://");
        let last = blank_free.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        match is_web && ARCHIVES.contains(&last) {
            true => format!("{mirror}/{last}{blanks}"),
            false => word.to_owned(),
        }
    };
    text.split_inclusive(char::is_whitespace).map(rewrite).collect()
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    overwrite(path, text, 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(ca_bundle: Option<&str>, cargo_config: Option<&str>) -> GuestSetup {
        let own = |text: Option<&str>| text.map(str::to_owned);
        GuestSetup { ca_bundle: own(ca_bundle), apt_mirror: None, cargo_config: own(cargo_config) }
    }

    /// Applies a setup, and returns a file afterwards.
    fn apply_to(root: &Path, setup: &GuestSetup, file: &str) -> String {
        let around = GuestEnvironment { root: root.to_owned(), is_machine: false, cgroup: None };
        let mut warnings = Warnings::default();
        apply(&around, setup, &mut warnings);
        assert_eq!(warnings.into_list(), Vec::<String>::new());
        std::fs::read_to_string(root.join(file)).unwrap_or_default()
    }

    #[test]
    fn certificates_are_added_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let apply_to = |ca: Option<&str>| apply_to(dir.path(), &setup(ca, None), TRUSTED);
        assert_eq!(apply_to(None), "", "nothing is made without a setting");
        assert!(!dir.path().join("etc").exists());
        write(&dir.path().join(TRUSTED), "public").unwrap();
        let first = apply_to(Some("ONE\n"));
        assert_eq!(first, format!("public\n{BEGIN}ONE\n{END}"));
        assert_eq!(apply_to(Some("ONE")), first, "once only");
        assert_eq!(std::fs::read_to_string(dir.path().join(OWN)).unwrap(), format!("{BEGIN}ONE\n{END}"));
        assert_eq!(apply_to(Some("TWO")), first.replace("ONE", "TWO"));
        assert_eq!(apply_to(None), "public\n");
        assert!(!dir.path().join(OWN).exists());
        // An image without certificates trusts the operator's alone.
        std::fs::remove_file(dir.path().join(TRUSTED)).unwrap();
        assert_eq!(apply_to(Some("ONE")), format!("{BEGIN}ONE\n{END}"));
    }

    #[test]
    fn a_user_configuration_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let apply_to = |cargo: Option<&str>| apply_to(dir.path(), &setup(None, cargo), CARGO_CONFIG);
        assert_eq!(apply_to(Some("[a]\n")), format!("{CARGO_MARK}[a]\n"));
        assert_eq!(apply_to(Some("[b]\n")), format!("{CARGO_MARK}[b]\n"));
        assert_eq!(apply_to(None), "");
        assert!(!dir.path().join(CARGO_CONFIG).exists());
        write(&dir.path().join(CARGO_CONFIG), "[own]\n").unwrap();
        assert_eq!((apply_to(Some("[b]\n")), apply_to(None)), ("[own]\n".to_owned(), "[own]\n".to_owned()));
    }

    #[test]
    fn apt_archives_use_the_mirror_and_other_sources_stay() {
        let list = "deb [signed-by=/k.gpg] http://deb.debian.org/debian bookworm main\n\
                    deb https://old.example/debian-security/ bookworm-security main\n\
                    deb https://packages.example/node bookworm main\n";
        let moved = "deb [signed-by=/k.gpg] https://apt.corp/debian bookworm main\n\
                     deb https://apt.corp/debian-security bookworm-security main\n\
                     deb https://packages.example/node bookworm main\n";
        assert_eq!(with_apt_mirror(list, "https://apt.corp"), moved);
        assert_eq!(with_apt_mirror(moved, "https://apt.corp"), moved);
        let deb822 = "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm\n";
        assert!(with_apt_mirror(deb822, "https://apt.corp").contains("URIs: https://apt.corp/debian\n"));
    }
}
