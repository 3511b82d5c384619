//! The client configuration that `up` leaves behind, so that every client works with no set-up.
//!
//! A configuration that points somewhere else is never touched: it is somebody's key to another server. "Ours" is one
//! whose address is the one that we serve now, or the one that an earlier `up` of the same data directory wrote.
//! Under `sudo` the file belongs in the home of the person who typed it, and to them.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::{Uid, User};
use pandastack_client::Config;
use rustix::process::geteuid;
use serde_json::{Map, Value};

/// Remembers, in the data directory, which address was written last.
const MEMORY: &str = "client-api-url";

/// Whose configuration it is.
#[derive(Debug, Clone)]
pub struct Person {
    home: PathBuf,
    /// User and group that new files are given to; `None` when they are ours anyway.
    owner: Option<(u32, u32)>,
}

/// What was done.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// The file now points to this server.
    Yes(PathBuf),
    /// The file points elsewhere and was left alone.
    Foreign {
        /// The file.
        path: PathBuf,
        /// Where it points.
        api_url: String,
    },
}

impl Person {
    /// The person at the keyboard: the one who called `sudo`, else the user of this process.
    pub fn at_the_keyboard() -> Result<Self> {
        let invoking = std::env::var("SUDO_UID").ok().and_then(|text| text.parse().ok());
        if let Some(uid) = invoking.filter(|_| geteuid().is_root()) {
            let user = User::from_uid(Uid::from_raw(uid)).context("look up the user who called sudo")?;
            let user = user.with_context(|| format!("there is no user {uid}"))?;
            return Ok(Self { home: user.dir, owner: Some((user.uid.as_raw(), user.gid.as_raw())) });
        }
        // Services and bare shells may have no HOME; the user database still knows.
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Ok(Self { home: home.context("this user has no home directory")?, owner: None })
    }
}

/// Points the person's client at this server, unless it points to somebody else's.
pub fn write(person: &Person, data_dir: &Path, api_url: &str, token: &str) -> Result<Written> {
    let path = Config::path_in(&person.home);
    let memory = data_dir.join(MEMORY);
    let earlier = std::fs::read_to_string(&memory).unwrap_or_default();
    let mut object = read_object(&path)?;
    let present = ["api_url", "apiUrl"].iter().find_map(|key| object.get(*key)?.as_str());
    if let Some(present) = present.filter(|present| *present != api_url && *present != earlier.trim()) {
        return Ok(Written::Foreign { path, api_url: present.to_owned() });
    }
    object.insert("api_url".to_owned(), Value::from(api_url));
    object.insert("token".to_owned(), Value::from(token));
    let outcome = replace(person, &path, &Value::Object(object));
    outcome.with_context(|| format!("write the client configuration {}", path.display()))?;
    std::fs::write(&memory, api_url).with_context(|| format!("write {}", memory.display()))?;
    Ok(Written::Yes(path))
}

/// The JSON object in the file; empty when there is none. Keys that we do not know are kept.
fn read_object(path: &Path) -> Result<Map<String, Value>> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(Map::new()),
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} is not a JSON object; move it away", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Map::new()),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

fn replace(person: &Person, path: &Path, value: &Value) -> Result<()> {
    let dir = path.parent().context("the path has no directory")?;
    make_directories(person, dir)?;
    let fresh = dir.join(format!(".config.json.{}", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(serde_json::to_string_pretty(value)?.as_bytes())?;
    file.write_all(b"\n")?;
    if let Some((uid, gid)) = person.owner {
        chown(&fresh, Some(uid), Some(gid))?;
    }
    Ok(std::fs::rename(&fresh, path)?)
}

/// Makes missing directories, each given to the person: root's would lock them out of their own configuration.
fn make_directories(person: &Person, dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_directories(person, parent)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(dir)?;
    if let Some((uid, gid)) = person.owner {
        chown(dir, Some(uid), Some(gid))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn person(home: &Path) -> Person {
        Person { home: home.to_owned(), owner: None }
    }

    #[test]
    fn a_foreign_configuration_is_left_alone_and_ours_follows_us() {
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let person = person(home.path());
        let path = Config::path_in(home.path());
        assert_eq!(write(&person, data.path(), "http://a", "t1").unwrap(), Written::Yes(path.clone()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(write(&person, data.path(), "http://b", "t2").unwrap(), Written::Yes(path.clone()));
        let text = r#"{"api_url":"http://elsewhere","token":"theirs","extra":1}"#;
        std::fs::write(&path, text).unwrap();
        let foreign = Written::Foreign { path: path.clone(), api_url: "http://elsewhere".into() };
        assert_eq!(write(&person, data.path(), "http://b", "t2").unwrap(), foreign);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn unknown_keys_survive() {
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = Config::path_in(home.path());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, r#"{"api_url":"http://a","theme":"dark"}"#).unwrap();
        write(&person(home.path()), data.path(), "http://a", "t").unwrap();
        let value: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((value["theme"].as_str(), value["token"].as_str()), (Some("dark"), Some("t")));
    }

    #[test]
    fn files_made_under_sudo_belong_to_the_person() {
        if !geteuid().is_root() {
            eprintln!("skipped: giving files away needs root");
            return;
        }
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let person = Person { home: home.path().to_owned(), owner: Some((1234, 1235)) };
        write(&person, data.path(), "http://a", "t").unwrap();
        let path = Config::path_in(home.path());
        for made in [path.as_path(), path.parent().unwrap(), &home.path().join(".config")] {
            let metadata = std::fs::metadata(made).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (1234, 1235), "{}", made.display());
        }
    }
}
