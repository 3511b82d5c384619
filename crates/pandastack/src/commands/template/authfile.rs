//! Files with credentials for registries, as `docker login` and `podman login` write them. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use data_encoding::BASE64;
use pandastack_types::api::RegistryCredentials;
use pandastack_types::image::registry_name;
use serde::Deserialize;

#[derive(Deserialize)]
struct AuthFile {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    /// `username:password` in Base64.
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// The credentials of a file. Entries without a password belong to credential helpers, and are left out.
pub(super) fn parse(text: &str) -> Result<Vec<RegistryCredentials>> {
    let file: AuthFile = serde_json::from_str(text).context("the file is not JSON with `auths`")?;
    let mut found = Vec::new();
    for (name, entry) in file.auths {
        let (username, password) = match entry.auth.is_empty() {
            true => (entry.username, entry.password),
            false => decode(&entry.auth).with_context(|| format!("the entry of {name} is malformed"))?,
        };
        if !username.is_empty() && !password.is_empty() {
            found.push(RegistryCredentials {
                registry: registry_name(&name),
                username,
                password,
                aws_region: None,
            });
        }
    }
    Ok(found)
}

fn decode(auth: &str) -> Option<(String, String)> {
    let text = String::from_utf8(BASE64.decode(auth.trim().as_bytes()).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.trim_end_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_docker_and_podman() {
        let found = parse(
            r#"{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6cGE6c3M="}, "ghcr.io": {},
                "quay.io": {"username": "a", "password": "b"}}, "credsStore": "desktop"}"#,
        );
        let found = found.unwrap().into_iter().map(|one| (one.registry, one.username, one.password));
        let expect = [("docker.io", "me", "pa:ss"), ("quay.io", "a", "b")];
        let expect = expect.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(found.collect::<Vec<_>>(), expect);
        assert!(parse("{}").unwrap().is_empty());
        for wrong in ["", "5", r#"{"auths": {"a": {"auth": "%"}}}"#, r#"{"auths": {"a": {"auth": "bWU="}}}"#]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
