//! Installed Debian packages, from the status file of dpkg. The file is a tenant's.

use std::collections::BTreeMap;

use pandastack_types::api::PackageChange;

/// Path of the status file.
pub(crate) const STATUS: &str = "/var/lib/dpkg/status";
/// Longest line that is read; packages with a longer name or version are left out. Debian has none.
const LINE_BYTES_MAX: usize = 200;
/// Packages beyond these are left out; a desktop has some thousands.
const PACKAGES_MAX: usize = 20_000;
/// Changes that are listed; the others are counted.
const CHANGES_MAX: usize = 500;
/// Architectures of packages without a suffix.
const OWN_ARCHITECTURES: [&str; 2] = ["amd64", "all"];

/// Versions of packages, by name.
pub(crate) type Packages = BTreeMap<String, String>;

/// Reads a status file piece by piece.
#[derive(Default)]
pub(crate) struct StatusReader {
    packages: Packages,
    line: Vec<u8>,
    /// The line is longer than the limit, so it is skipped.
    is_too_long: bool,
    stanza: Stanza,
}

/// The fields of one package.
#[derive(Default)]
struct Stanza {
    name: Option<String>,
    version: Option<String>,
    architecture: Option<String>,
    is_installed: bool,
}

impl StatusReader {
    /// Takes the next bytes of the file.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                _ if self.line.len() < LINE_BYTES_MAX => self.line.push(*byte),
                _ => self.is_too_long = true,
            }
        }
    }

    /// The installed packages.
    pub(crate) fn finish(mut self) -> Packages {
        self.end_line();
        self.end_stanza();
        self.packages
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            return;
        }
        if line.is_empty() {
            return self.end_stanza();
        }
        // A line that begins with a space continues the field above.
        let Ok(text) = std::str::from_utf8(&line) else { return };
        let Some((field, value)) = text.split_once(':') else { return };
        let value = value.trim();
        match field {
            "Package" => self.stanza.name = Some(value.to_owned()),
            "Version" => self.stanza.version = Some(value.to_owned()),
            "Architecture" => self.stanza.architecture = Some(value.to_owned()),
            "Status" => self.stanza.is_installed = value.ends_with(" installed"),
            _ => {}
        }
    }

    fn end_stanza(&mut self) {
        let stanza = std::mem::take(&mut self.stanza);
        let (Some(name), Some(version)) = (stanza.name, stanza.version) else { return };
        if !stanza.is_installed || name.is_empty() || self.packages.len() >= PACKAGES_MAX {
            return;
        }
        let foreign = stanza.architecture.filter(|one| !OWN_ARCHITECTURES.contains(&one.as_str()));
        let name = foreign.map_or(name.clone(), |architecture| format!("{name}:{architecture}"));
        self.packages.insert(name, version);
    }
}

/// The differences, by name, and the number of those that are not listed.
pub(crate) fn compare(before: &Packages, after: &Packages) -> (Vec<PackageChange>, usize) {
    let gone = before.iter().filter(|(name, _)| !after.contains_key(*name));
    let gone = gone.map(|(name, version)| (name, Some(version), None));
    let now = after.iter().map(|(name, version)| (name, before.get(name), Some(version)));
    let differing = gone.chain(now).filter(|(_, before, after)| before != after);
    let mut changes: Vec<PackageChange> = differing
        .map(|(name, before, after)| PackageChange {
            name: name.clone(),
            before: before.cloned(),
            after: after.cloned(),
        })
        .collect();
    changes.sort_by(|one, other| one.name.cmp(&other.name));
    let omitted = changes.len().saturating_sub(CHANGES_MAX);
    changes.truncate(CHANGES_MAX);
    (changes, omitted)
}

/// Reads one file whole and in pieces, which must not differ.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let read = |piece: usize| {
        let mut reader = StatusReader::default();
        bytes.chunks(piece).for_each(|piece| reader.push(piece));
        reader.finish()
    };
    let whole = read(bytes.len().max(1));
    assert_eq!(whole, read(1));
    assert!(whole.len() <= PACKAGES_MAX);
    assert_eq!(compare(&whole, &whole), (Vec::new(), 0));
    let (added, omitted) = compare(&Packages::new(), &whole);
    assert_eq!(added.len() + omitted, whole.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Packages {
        let mut reader = StatusReader::default();
        text.as_bytes().chunks(7).for_each(|piece| reader.push(piece));
        reader.finish()
    }

    const STATUS: &str = "\
Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2
Description: a shell
 Version: of a description

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: libc6
Status: hold ok installed
Architecture: i386
Version: 2.36-9
";

    #[test]
    fn installed_packages_are_read() {
        let found = read(STATUS);
        let expect = [("bash", "5.2.15-2"), ("libc6:i386", "2.36-9")];
        assert_eq!(found, expect.map(|(name, version)| (name.to_owned(), version.to_owned())).into());
        assert_eq!(read(""), Packages::new());
        let long = format!("Package: {}\nStatus: install ok installed\nVersion: 1\n", "x".repeat(5000));
        assert_eq!(read(&long), Packages::new(), "a line without an end is not kept");
    }

    #[test]
    fn packages_that_were_added_removed_and_changed() {
        let list = |text: &str| -> Packages {
            let pairs = text.split_whitespace().filter_map(|one| one.split_once('='));
            pairs.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
        };
        let (changes, omitted) = compare(&list("a=1 b=1 c=1"), &list("a=1 b=2 d=1"));
        let found: Vec<_> = changes
            .iter()
            .map(|one| (one.name.as_str(), one.before.as_deref(), one.after.as_deref()))
            .collect();
        let expect = [("b", Some("1"), Some("2")), ("c", Some("1"), None), ("d", None, Some("1"))];
        assert_eq!((found, omitted), (expect.to_vec(), 0));
        let many: Packages =
            (0..CHANGES_MAX + 5).map(|number| (number.to_string(), "1".to_owned())).collect();
        let (changes, omitted) = compare(&Packages::new(), &many);
        assert_eq!((changes.len(), omitted), (CHANGES_MAX, 5));
    }
}
