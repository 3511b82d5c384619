//! The Linux user of a call, and how its paths are resolved.
//!
//! Clients name the user by `Authorization: Basic base64("name:")` or `?username=`; without one it is [`DEFAULT_USER`].
//! Relative paths and `~` begin at its home.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode, header};
use pandastack_types::SandboxId;

use crate::error::{RestError, RestResult};
use crate::native::Caller;
use crate::native_paths as paths;

/// Default owner of commands and files, unless the template sets another.
pub(crate) const DEFAULT_USER: &str = "user";
/// Largest `/etc/passwd` that is looked through for a home.
const PASSWD_BYTES_MAX: usize = 1024 * 1024;

/// A user of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) home: String,
}

/// The user that a call names by its `Authorization`.
pub(crate) fn named_by(headers: &HeaderMap) -> RestResult<Option<String>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|text| {
        let encoded = text.strip_prefix("Basic ").or_else(|| text.strip_prefix("basic "))?;
        let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        Some(decoded.split_once(':').map_or(decoded.clone(), |(name, _)| name.to_owned()))
    });
    match parsed {
        Some(name) if name.is_empty() => Ok(None),
        Some(name) => Ok(Some(name)),
        None => Err(unknown("the Authorization header has no user name; send Basic base64(\"name:\")")),
    }
}

/// Finds a user and its home. The two that every template has are known; others are looked up in the sandbox.
pub(crate) async fn find(native: &Caller, sandbox: &SandboxId, name: Option<String>) -> RestResult<User> {
    let name = name.unwrap_or_else(|| DEFAULT_USER.to_owned());
    let known = |home: &str| User { name: name.clone(), home: home.to_owned() };
    match name.as_str() {
        DEFAULT_USER => return Ok(known("/home/user")),
        "root" => return Ok(known("/root")),
        _ => {}
    }
    let home = home_of(&passwd_of(native, sandbox).await?, &name);
    home.map(|home| known(&home)).ok_or_else(|| {
        let shown: String = name.chars().take(64).collect();
        unknown(&format!("user `{shown}` is not in the sandbox's /etc/passwd"))
    })
}

/// The user that a template sets: a name or a number, with or without a group. A number needs no entry.
pub(crate) async fn find_default(native: &Caller, sandbox: &SandboxId, set: &str) -> RestResult<User> {
    let name = set.split_once(':').map_or(set, |(name, _)| name);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return find(native, sandbox, Some(name.to_owned()).filter(|name| !name.is_empty())).await;
    }
    if name == "0" {
        return find(native, sandbox, Some("root".to_owned())).await;
    }
    let home = home_of_number(&passwd_of(native, sandbox).await?, name).unwrap_or_else(|| "/".to_owned());
    Ok(User { name: name.to_owned(), home })
}

async fn passwd_of(native: &Caller, sandbox: &SandboxId) -> RestResult<String> {
    let body = native.open(&paths::file(sandbox, "/etc/passwd")).await?.into_body();
    let passwd = axum::body::to_bytes(body, PASSWD_BYTES_MAX).await;
    let passwd = passwd.map_err(|_| unknown("the sandbox's /etc/passwd cannot be read"))?;
    Ok(String::from_utf8_lossy(&passwd).into_owned())
}

fn home_of_number(passwd: &str, number: &str) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        (fields.next()? == number).then(|| fields.nth(2).map(str::to_owned))?
    })
}

fn home_of(passwd: &str, name: &str) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(4).map(str::to_owned))?
    })
}

fn unknown(what: &str) -> RestError {
    RestError::new(StatusCode::UNAUTHORIZED, what)
}

impl User {
    /// The absolute path that a client means.
    pub(crate) fn absolute(&self, path: &str) -> String {
        let below_home = match path {
            "" | "~" | "." => return self.home.clone(),
            _ if path.starts_with('/') => return path.to_owned(),
            _ => path.strip_prefix("~/").or_else(|| path.strip_prefix("./")).unwrap_or(path),
        };
        format!("{}/{below_home}", self.home.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_resolve_against_the_home_directory() {
        let user = User { name: "user".into(), home: "/home/user".into() };
        for (path, absolute) in [
            ("/etc/x", "/etc/x"),
            ("x", "/home/user/x"),
            ("./x", "/home/user/x"),
            ("~/x/y", "/home/user/x/y"),
            ("~", "/home/user"),
            ("", "/home/user"),
            ("~x", "/home/user/~x"),
        ] {
            assert_eq!(user.absolute(path), absolute, "{path}");
        }
    }

    #[test]
    fn basic_authorization_selects_the_user() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            named_by(&headers)
        };
        assert_eq!(named_by(&HeaderMap::new()), Ok(None));
        assert_eq!(with("Basic cm9vdDo="), Ok(Some("root".into())));
        assert!(with("Bearer x").is_err());
        assert!(with("Basic !!").is_err());
    }

    #[test]
    fn home_directories_are_read_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npg:x:7:7::/var/lib/pg:/bin/sh\n";
        assert_eq!(home_of(passwd, "pg").as_deref(), Some("/var/lib/pg"));
        assert_eq!(home_of(passwd, "nobody"), None);
        assert_eq!(home_of_number(passwd, "7").as_deref(), Some("/var/lib/pg"));
        assert_eq!(home_of_number(passwd, "8"), None);
    }
}
