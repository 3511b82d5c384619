//! The client configuration that `up` and `login` write, so that clients need no setup.
//!
//! - A configuration for another server is never changed: it holds a key to that server. It counts
//!   as ours if its URL is the one served now, or the one that an earlier `up` of the same data
//!   directory wrote.
//! - `login` replaces server and key by a session and keeps both, so that `logout` brings them back.
//! - Under `sudo`, the file is written to the home directory of the invoking user and owned by that user.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::{Uid, User};
use pandastack_client::Config;
use rustix::process::geteuid;
use serde_json::{Map, Value};

/// Keys of the file.
const URL_KEYS: [&str; 2] = ["api_url", "apiUrl"];
const TOKEN_KEYS: [&str; 3] = ["token", "api_key", "apiKey"];
/// Server and key from before a sign-in.
const BEFORE_LOGIN: &str = "before_login";
/// File in the data directory that records the URL written last.
#[cfg(feature = "server")]
const LAST_URL_FILE: &str = "client-api-url";

/// The user whose client configuration is written.
#[derive(Debug, Clone)]
pub struct InvokingUser {
    home: PathBuf,
    /// User and group to own new files; `None` if this process already runs as that user.
    owner: Option<(u32, u32)>,
}

/// Outcome of [`write()`].
#[cfg(feature = "server")]
#[derive(Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The file now points to this server.
    Written(PathBuf),
    /// The file points to another server and was not changed.
    Foreign {
        /// The file.
        path: PathBuf,
        /// URL of the API.
        api_url: String,
    },
}

impl InvokingUser {
    /// The user who called `sudo`, or the user of this process.
    pub fn current() -> Result<Self> {
        let invoking = std::env::var("SUDO_UID").ok().and_then(|text| text.parse().ok());
        if let Some(uid) = invoking.filter(|_| geteuid().is_root()) {
            let user =
                User::from_uid(Uid::from_raw(uid)).context("cannot look up the user who called sudo")?;
            let user = user.with_context(|| format!("user {uid} not found"))?;
            return Ok(Self { home: user.dir, owner: Some((user.uid.as_raw(), user.gid.as_raw())) });
        }
        // Services may have no HOME variable; the user database still has the directory.
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Ok(Self { home: home.context("this user has no home directory")?, owner: None })
    }
}

/// Configures the client to use a session.
pub fn sign_in(user: &InvokingUser, api_url: &str, token: &str) -> Result<PathBuf> {
    let path = Config::path_in(&user.home);
    let mut object = read_object(&path)?;
    if !object.contains_key(BEFORE_LOGIN) {
        let before = URL_KEYS.iter().chain(&TOKEN_KEYS);
        let before: Map<_, _> =
            before.filter_map(|key| Some(((*key).to_owned(), object.get(*key)?.clone()))).collect();
        object.insert(BEFORE_LOGIN.to_owned(), Value::Object(before));
    }
    URL_KEYS.iter().chain(&TOKEN_KEYS).for_each(|key| drop(object.remove(*key)));
    object.insert("api_url".to_owned(), Value::from(api_url));
    object.insert("token".to_owned(), Value::from(token));
    replace(user, &path, &Value::Object(object))
        .with_context(|| format!("cannot write the client configuration {}", path.display()))?;
    Ok(path)
}

/// Restores the configuration from before [`sign_in`]. Returns `false` if there was no sign-in.
pub fn sign_out(user: &InvokingUser) -> Result<bool> {
    let path = Config::path_in(&user.home);
    let mut object = read_object(&path)?;
    let Some(Value::Object(before)) = object.remove(BEFORE_LOGIN) else { return Ok(false) };
    URL_KEYS.iter().chain(&TOKEN_KEYS).for_each(|key| drop(object.remove(*key)));
    object.extend(before);
    replace(user, &path, &Value::Object(object))
        .with_context(|| format!("cannot write the client configuration {}", path.display()))?;
    Ok(true)
}

/// Points the user's client at this server, unless it already points to another one.
#[cfg(feature = "server")]
pub fn write(user: &InvokingUser, data_dir: &Path, api_url: &str, token: &str) -> Result<WriteOutcome> {
    let path = Config::path_in(&user.home);
    let memory = data_dir.join(LAST_URL_FILE);
    let earlier = std::fs::read_to_string(&memory).unwrap_or_default();
    let mut object = read_object(&path)?;
    let present = URL_KEYS.iter().find_map(|key| object.get(*key)?.as_str());
    if let Some(present) = present.filter(|present| *present != api_url && *present != earlier.trim()) {
        return Ok(WriteOutcome::Foreign { path, api_url: present.to_owned() });
    }
    object.insert("api_url".to_owned(), Value::from(api_url));
    object.insert("token".to_owned(), Value::from(token));
    let outcome = replace(user, &path, &Value::Object(object));
    outcome.with_context(|| format!("cannot write the client configuration {}", path.display()))?;
    std::fs::write(&memory, api_url).with_context(|| format!("cannot write {}", memory.display()))?;
    Ok(WriteOutcome::Written(path))
}

/// Removes the server of a data directory from the user's client configuration. Returns the file if it
/// pointed there.
pub fn forget(user: &InvokingUser, data_dir: &Path, api_url: &str) -> Result<Option<PathBuf>> {
    let path = Config::path_in(&user.home);
    let earlier = std::fs::read_to_string(data_dir.join(LAST_URL_FILE)).unwrap_or_default();
    let mut object = read_object(&path)?;
    let present = object.get("api_url").and_then(Value::as_str);
    if !present.is_some_and(|present| present == api_url || present == earlier.trim()) || earlier.is_empty() {
        return Ok(None);
    }
    object.remove("api_url");
    object.remove("token");
    let outcome = match object.is_empty() {
        true => std::fs::remove_file(&path).map_err(Into::into),
        false => replace(user, &path, &Value::Object(object)),
    };
    outcome.with_context(|| format!("cannot change the client configuration {}", path.display()))?;
    Ok(Some(path))
}

/// The JSON object in the file; empty if the file does not exist. Unknown keys are preserved.
fn read_object(path: &Path) -> Result<Map<String, Value>> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(Map::new()),
        Ok(text) => serde_json::from_str(&text).with_context(|| {
            format!("{} is not a JSON object; move it away and run `pandastack up` again", path.display())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Map::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn replace(user: &InvokingUser, path: &Path, value: &Value) -> Result<()> {
    let dir = path.parent().context("the path has no directory")?;
    make_directories(user, dir)?;
    let fresh = dir.join(format!(".config.json.{}", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(serde_json::to_string_pretty(value)?.as_bytes())?;
    file.write_all(b"\n")?;
    if let Some((uid, gid)) = user.owner {
        chown(&fresh, Some(uid), Some(gid))?;
    }
    Ok(std::fs::rename(&fresh, path)?)
}

/// Creates missing directories, owned by the user: a directory owned by root would lock them out.
fn make_directories(user: &InvokingUser, dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_directories(user, parent)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(dir)?;
    if let Some((uid, gid)) = user.owner {
        chown(dir, Some(uid), Some(gid))?;
    }
    Ok(())
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn user(home: &Path) -> InvokingUser {
        InvokingUser { home: home.to_owned(), owner: None }
    }

    #[test]
    fn a_foreign_configuration_is_kept_and_ours_is_updated() {
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let user = user(home.path());
        let path = Config::path_in(home.path());
        assert_eq!(write(&user, data.path(), "http://a", "t1").unwrap(), WriteOutcome::Written(path.clone()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(write(&user, data.path(), "http://b", "t2").unwrap(), WriteOutcome::Written(path.clone()));
        let text = r#"{"api_url":"http://elsewhere","token":"theirs","extra":1}"#;
        std::fs::write(&path, text).unwrap();
        let foreign = WriteOutcome::Foreign { path: path.clone(), api_url: "http://elsewhere".into() };
        assert_eq!(write(&user, data.path(), "http://b", "t2").unwrap(), foreign);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn purging_forgets_only_its_own_server() {
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let user = user(home.path());
        let path = Config::path_in(home.path());
        write(&user, data.path(), "http://a", "t").unwrap();
        assert_eq!(forget(&user, data.path(), "http://a").unwrap(), Some(path.clone()));
        assert!(!path.exists(), "it had nothing else");
        std::fs::write(&path, r#"{"api_url":"http://elsewhere","token":"theirs"}"#).unwrap();
        assert_eq!(forget(&user, data.path(), "http://a").unwrap(), None);
        assert!(std::fs::read_to_string(&path).unwrap().contains("theirs"));
        std::fs::write(&path, r#"{"api_url":"http://a","token":"t","theme":"dark"}"#).unwrap();
        forget(&user, data.path(), "http://a").unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("token"));
        assert!(std::fs::read_to_string(&path).unwrap().contains("dark"));
    }

    #[test]
    fn a_session_replaces_the_key_until_sign_out() {
        let home = tempfile::tempdir().unwrap();
        let user = user(home.path());
        let path = Config::path_in(home.path());
        assert!(!sign_out(&user).unwrap(), "not signed in");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let before = serde_json::json!({"apiUrl": "http://a", "api_key": "pds_key", "theme": "dark"});
        std::fs::write(&path, before.to_string()).unwrap();
        let read = || Config::resolve(|_| None, Some(home.path())).unwrap();
        for token in ["pds_one", "pds_two"] {
            sign_in(&user, "http://b", token).unwrap();
            let Config { api_url, token: found } = read();
            assert_eq!((api_url.as_str(), found.as_deref()), ("http://b", Some(token)));
        }
        assert!(sign_out(&user).unwrap());
        assert_eq!(serde_json::from_str::<Value>(&std::fs::read_to_string(&path).unwrap()).unwrap(), before);
        assert!(!sign_out(&user).unwrap());
    }

    #[test]
    fn unknown_config_keys_are_preserved() {
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = Config::path_in(home.path());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, r#"{"api_url":"http://a","theme":"dark"}"#).unwrap();
        write(&user(home.path()), data.path(), "http://a", "t").unwrap();
        let value: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((value["theme"].as_str(), value["token"].as_str()), (Some("dark"), Some("t")));
    }

    #[test]
    fn files_created_under_sudo_belong_to_the_user() {
        if !geteuid().is_root() {
            eprintln!("skipped: giving files away needs root");
            return;
        }
        let (home, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let user = InvokingUser { home: home.path().to_owned(), owner: Some((1234, 1235)) };
        write(&user, data.path(), "http://a", "t").unwrap();
        let path = Config::path_in(home.path());
        for made in [path.as_path(), path.parent().unwrap(), &home.path().join(".config")] {
            let metadata = std::fs::metadata(made).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (1234, 1235), "{}", made.display());
        }
    }
}
