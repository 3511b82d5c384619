//! Git in a machine: repository URLs, credentials, and the commands that fetch a repository.
//!
//! | address | proof | host is known by |
//! |---|---|---|
//! | `https://...` | `git_token`, asked for by a program that answers for this host alone | its certificate |
//! | `ssh://git@host/path`, `git@host:path` | the app's deploy key | `git_known_hosts`, or the key that it showed first |
//!
//! Must hold: a secret is in no argument and, but for the files of one fetch below [`PREPARE`]'s directory, in no file;
//! a submodule on another host gets none; nothing but http, https and (for an app by ssh) ssh is allowed. A preview of a
//! fork has neither token nor key.

use std::collections::BTreeMap;
use std::sync::Arc;

use pandastack_store::apps::record::{AppRecord, AppSpec};
use pandastack_types::Result;
use url::Url;

use crate::change::change;
use crate::command::shell;
use crate::deploy_key;
use crate::machine::Machine;
use crate::state::Apps;

/// Prepares git. Files for one fetch are in a directory that is removed when the shell ends. The
/// token is in the environment, and a program hands it to git only for the right host.
pub(crate) const PREPARE: &str = r#"set -e
export GIT_TERMINAL_PROMPT=0 GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ALLOW_PROTOCOL="$PROTOCOLS"
rm -rf /run/git /srv/known_hosts && mkdir -m 700 /run/git
trap 'rm -rf /run/git' EXIT
if [ -n "$GIT_TOKEN" ]; then
  cat > /run/git/askpass <<'ASKPASS'
#!/bin/sh
case "$1" in
  "Username for '$GIT_ORIGIN': ") echo x-access-token ;;
  "Password for '${GIT_ORIGIN%%://*}://"*"@${GIT_ORIGIN#*://}': ") printf '%s\n' "$GIT_TOKEN" ;;
  *) exit 1 ;;
esac
ASKPASS
  chmod 700 /run/git/askpass
  export GIT_ASKPASS=/run/git/askpass
fi
if [ -n "$DEPLOY_KEY" ]; then
  ( umask 077 && printf '%s\n' "$DEPLOY_KEY" > /run/git/key && printf '%s\n' "$KNOWN_HOSTS" > /run/git/known_hosts )
  unset DEPLOY_KEY
  cat > /run/git/ssh_config <<SSH_CONFIG
IdentityFile /run/git/key
IdentitiesOnly yes
IdentityAgent none
PreferredAuthentications publickey
BatchMode yes
StrictHostKeyChecking $HOST_KEYS
UserKnownHostsFile /run/git/known_hosts
GlobalKnownHostsFile /dev/null
UpdateHostKeys no
HashKnownHosts no
ConnectTimeout 20
ServerAliveInterval 15
SSH_CONFIG
  export GIT_SSH_COMMAND='ssh -F /run/git/ssh_config' GIT_SSH_VARIANT=ssh
fi"#;

/// Lays the keys that hosts showed where [`pin_host`] finds them. From here on no other host is trusted.
pub(crate) const KEEP_HOSTS: &str = r#"if [ -f /run/git/known_hosts ]; then
  sed -i 's/accept-new/yes/' /run/git/ssh_config
  grep -v '^$' /run/git/known_hosts > /srv/known_hosts || true
fi"#;

/// Fetches exactly the requested commit, with its submodules. Hooks of the repository are off.
///
/// Pushes may be delivered in another order than they happened. A push is late if its branch is at
/// a commit that it may have moved to afterwards (`GIT_TOLD`), and either recorded pushes moved the
/// branch away from it (`GIT_LEFT`) or it is an ancestor. A late push deploys the branch's commit.
/// A branch at another commit does not count: its message may say to skip it, or this copy of the
/// repository lags behind.
pub(crate) const FETCH: &str = r#"rm -rf /srv/repository && mkdir /srv/repository && cd /srv/repository
git init -q
git config core.hooksPath /dev/null
git remote add origin "$GIT_URL"
if [ -n "$GIT_TOLD" ]; then
  head=$(git ls-remote origin "refs/heads/$GIT_BRANCH" | head -n 1 | cut -f 1)
  case " $GIT_TOLD " in
    *" ${head:-none} "*)
      if [ -n "$GIT_LEFT" ] || { git fetch -q --depth 100 --no-tags --no-recurse-submodules origin "$head" &&
        git merge-base --is-ancestor "$GIT_REF" "$head" 2>/dev/null; }; then
        echo "==> this push is out of date; deploying the branch head $head"
        GIT_REF=$head
      fi ;;
  esac
fi
git fetch -q --depth 1 --no-tags --no-recurse-submodules origin "$GIT_REF" || {
  echo "==> could not fetch $GIT_REF of this repository: $FETCH_HINT"
  exit 1
}
git -c advice.detachedHead=false checkout -q FETCH_HEAD
git log -1 --format='commit %H%n%s'
git rev-parse HEAD > /srv/commit"#;

/// Fetches the submodules, and moves everything to the build directory.
pub(crate) const LAY_OUT: &str = r#"if [ -f .gitmodules ]; then
  git submodule --quiet update --init --recursive --depth 1 || {
    echo "==> could not fetch a submodule: it must be public, or on the app's Git host and readable with the app's credentials"
    exit 1
  }
fi
find . -name .git -prune -exec rm -rf {} +
cp -a . "$DIR"/
cd / && rm -rf /srv/repository"#;

/// Bytes of host keys that are noted at most.
const KNOWN_HOSTS_BYTES: &str = "8192";

/// The location of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repository {
    /// `https://...` or `http://...`.
    Web(Url),
    /// `ssh://[user@]host[:port]/path` or `[user@]host:path`.
    Ssh {
        /// The text as given.
        text: String,
        /// Host, with the port if one is given.
        host: String,
        /// Path on that host.
        path: String,
    },
}

impl Repository {
    /// The repository that a text names. A text that git or ssh could take for an option, a program
    /// or a file is rejected.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return None;
        }
        match text.split_once("://") {
            None => Self::parse_short(text),
            Some(("ssh", _)) => {
                let url = Url::parse(text).ok()?;
                let (name, path) = (url.host_str()?, url.path().trim_start_matches('/'));
                if !is_user(url.username()) || url.password().is_some() || !is_host(name) || path.is_empty() {
                    return None;
                }
                let host = url.port().map_or(name.to_owned(), |port| format!("{name}:{port}"));
                Some(Self::Ssh { text: text.to_owned(), host, path: path.to_owned() })
            }
            Some(_) => {
                let url = Url::parse(text).ok()?;
                (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(Self::Web(url))
            }
        }
    }

    /// As ssh and scp write it: `git@host:path`.
    fn parse_short(text: &str) -> Option<Self> {
        let (place, path) = text.split_once(':')?;
        let (user, host) = place.split_once('@').unwrap_or(("", place));
        let path = path.trim_start_matches('/');
        // Two colons name a program that git would run.
        let good = is_user(user) && is_host(host) && !path.is_empty() && !path.starts_with([':', '-']);
        good.then(|| Self::Ssh { text: text.to_owned(), host: host.to_owned(), path: path.to_owned() })
    }

    /// As it may be shown: without a password or user that proves something.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Ssh { text, .. } => text.clone(),
            Self::Web(url) => {
                let mut url = url.clone();
                let _ = url.set_password(None);
                let _ = url.set_username("");
                url.to_string()
            }
        }
    }

    /// The repository on the web, where its host's API is found from.
    pub(crate) fn web(&self) -> Option<Url> {
        match self {
            Self::Web(url) => Some(url.clone()),
            // The port is the SSH port.
            Self::Ssh { host, path, .. } => {
                Url::parse(&format!("https://{}/{path}", host.split(':').next()?)).ok()
            }
        }
    }

    fn ssh_host(&self) -> Option<&str> {
        match self {
            Self::Ssh { host, .. } => Some(host),
            Self::Web(_) => None,
        }
    }
}

fn is_host(host: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    !host.is_empty() && !host.starts_with('-') && host.chars().all(good)
}

fn is_user(user: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !user.starts_with('-') && user.chars().all(good)
}

/// A repository's address as it may be shown.
pub(crate) fn shown_url(text: &str) -> String {
    Repository::parse(text).map_or_else(|| "the repository".to_owned(), |repository| repository.shown())
}

/// The repository of an app.
pub(crate) fn repository(spec: &AppSpec) -> Option<Repository> {
    Repository::parse(spec.git_url.as_deref()?)
}

/// Web path of a repository, without optional parts.
pub(crate) fn path_of(repository: &Url) -> &str {
    let path = repository.path().trim_matches('/');
    path.strip_suffix(".git").unwrap_or(path)
}

/// An app's repository as far as its ways of being written agree: two that differ are two.
pub(crate) fn place(spec: &AppSpec) -> Option<String> {
    let web = repository(spec)?.web()?;
    Some(format!("{}/{}", web.host_str()?, path_of(&web)).to_ascii_lowercase())
}

/// `owner/name` of an app's repository, if that is all of its path.
pub(crate) fn full_name(spec: &AppSpec) -> Option<String> {
    let web = repository(spec)?.web()?;
    let path = path_of(&web);
    let (owner, name) = path.split_once('/')?;
    (!owner.is_empty() && !name.is_empty() && !name.contains('/')).then(|| path.to_owned())
}

/// Host that ssh would connect to for an app.
pub(crate) fn ssh_host(spec: &AppSpec) -> Option<String> {
    repository(spec)?.ssh_host().map(str::to_owned)
}

/// The key that an app shows, if it has a repository by ssh and is no preview of a fork.
pub(crate) fn private_key(apps: &Apps, app: &AppRecord) -> Option<String> {
    ssh_host(&app.spec)?;
    if app.spec.pull.as_ref().is_some_and(|pull| pull.fork) {
        return None;
    }
    let owner = app.preview_of.as_ref().unwrap_or(&app.id);
    app.spec.git_deploy_key.clone().or_else(|| deploy_key::derived(&apps.link, owner))
}

/// Public key to register with the repository's host, so that it recognises the app.
pub(crate) fn public_key(apps: &Apps, app: &AppRecord) -> Option<String> {
    private_key(apps, app).as_deref().and_then(deploy_key::public_of)
}

/// Variables of the programs above. The error says why there can be no fetch.
pub(crate) fn variables(apps: &Apps, app: &AppRecord) -> Result<BTreeMap<String, String>, String> {
    let Some(repository) = repository(&app.spec) else {
        return Err("the app has no repository; set git_url".to_owned());
    };
    let mut env = BTreeMap::new();
    let mut set = |key: &str, value: &str| env.insert(key.to_owned(), value.to_owned());
    match &repository {
        Repository::Web(url) => {
            set("GIT_URL", url.as_str());
            set("GIT_ORIGIN", &url.origin().ascii_serialization());
            set("GIT_TOKEN", app.spec.git_token.as_deref().unwrap_or_default());
            set("PROTOCOLS", "http:https");
            set("FETCH_HINT", "check that the branch exists; a private repository needs a git_token");
        }
        Repository::Ssh { text, host, .. } => {
            let Some(key) = private_key(apps, app) else {
                return Err(
                    "pull requests from forks are fetched without the app's key, so SSH does not work; set \
                            git_url to the https URL of the repository"
                        .to_owned(),
                );
            };
            let known = known_hosts(&app.spec);
            let public = deploy_key::public_of(&key).unwrap_or_else(|| "the configured key".to_owned());
            set("GIT_URL", text);
            set("DEPLOY_KEY", key.trim_end());
            set("KNOWN_HOSTS", known.unwrap_or_default());
            set("HOST_KEYS", if known.is_some() { "yes" } else { "accept-new" });
            set("PROTOCOLS", "http:https:ssh");
            set(
                "FETCH_HINT",
                &format!(
                    "check that the branch exists and that this deploy key can read it: {public}. If {host} \
                     has a new host \
                     key, set git_known_hosts"
                ),
            );
        }
    }
    Ok(env)
}

/// Host keys that an app's repository host must present: the configured ones, else those recorded
/// on the first connection.
fn known_hosts(spec: &AppSpec) -> Option<&str> {
    spec.git_known_hosts.as_deref().or(spec.git_known_hosts_seen.as_deref())
}

/// After the first connection: notes the key that the host showed. `true` if it was the first.
pub(crate) async fn pin_host(apps: &Arc<Apps>, app: &AppRecord, machine: &Machine) -> Result<bool> {
    if ssh_host(&app.spec).is_none() || known_hosts(&app.spec).is_some() {
        return Ok(false);
    }
    let read = shell(r#"head -c "$MAX" /srv/known_hosts"#, &[("MAX", KNOWN_HOSTS_BYTES)]);
    let shown = machine.exec(&read).await?.stdout;
    if shown.trim().is_empty() {
        return Ok(false);
    }
    let owner = app.preview_of.as_ref().unwrap_or(&app.id);
    change(apps, owner, |record| {
        // The app's repository may have changed in the meantime.
        if ssh_host(&record.spec) == ssh_host(&app.spec) {
            record.spec.git_known_hosts_seen = Some(shown.clone());
        }
    })
    .await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn ssh(text: &str, host: &str, web: &str) {
        let found = Repository::parse(text).unwrap();
        assert_eq!(found.ssh_host(), Some(host));
        assert_eq!(found.web().unwrap().as_str(), web);
        assert_eq!(found.shown(), text);
    }

    #[test]
    fn repositories_are_reached_by_https_or_ssh() {
        ssh("git@git.example.com:me/shop.git", "git.example.com", "https://git.example.com/me/shop.git");
        ssh("host:shop.git", "host", "https://host/shop.git");
        ssh("ssh://git@git.example.com/me/shop", "git.example.com", "https://git.example.com/me/shop");
        ssh("ssh://git@git.example.com:2222/a/b", "git.example.com:2222", "https://git.example.com/a/b");
        let web = Repository::parse("https://me:secret@git.example.com/a/b.git").unwrap();
        assert_eq!((web.shown().as_str(), web.ssh_host()), ("https://git.example.com/a/b.git", None));
    }

    #[test]
    fn equivalent_repository_urls_are_normalized() {
        let of = |url: &str| AppSpec { git_url: Some(url.to_owned()), ..AppSpec::default() };
        for url in [
            "https://github.com/Me/Shop",
            "https://github.com/me/shop.git",
            "https://x:secret@GitHub.com/me/shop/",
            "git@github.com:me/shop.git",
            "ssh://git@github.com:22/me/shop",
        ] {
            assert_eq!(place(&of(url)).as_deref(), Some("github.com/me/shop"), "{url}");
            let name = full_name(&of(url)).unwrap();
            assert!(name.eq_ignore_ascii_case("me/shop"), "{url}: {name}");
        }
        for url in ["https://github.com/shop.git", "https://git.example/a/me/shop", "host:shop.git"] {
            assert_eq!(full_name(&of(url)), None, "{url}");
        }
        assert_eq!((place(&AppSpec::default()), full_name(&AppSpec::default())), (None, None));
    }

    #[test]
    fn unsafe_git_urls_are_rejected() {
        for bad in [
            "",
            "nonsense",
            "file:///etc",
            "/etc/passwd",
            "ext::sh -c x",
            "ext::sh",
            "git://host/a",
            "-oProxyCommand=x:a",
            "git@-oProxyCommand=x:a",
            "ssh://-oProxyCommand=x/a",
            "ssh://-x@host/a",
            "ssh://git:secret@host/a",
            "ssh://host",
            "git@host:",
            "git@host:-x",
            "git@ho st:a",
            "a/b:c",
        ] {
            assert_eq!(Repository::parse(bad), None, "{bad}");
        }
        assert_eq!(shown_url("nonsense secret"), "the repository");
    }
}
