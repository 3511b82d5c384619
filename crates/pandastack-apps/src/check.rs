//! Validates requests about apps.

use std::collections::BTreeMap;

use pandastack_detect::Framework;
use pandastack_store::apps::record::{AppSpec, EnvEntry};
use pandastack_store::clock::now;
use pandastack_types::api::AppSettings;
use pandastack_types::domains::Domains;
use pandastack_types::limits::{
    APP_TEXT_BYTES_MAX, ENV_PAIRS_MAX, INSTANCES_MAX, POLL_SECONDS_RANGE, TTL_SECONDS_MAX,
};
use pandastack_types::{Error, Result};

use crate::git::{self, Repository};
use crate::preview_name;

/// Longest name: with a dash and an id before it, it still is a host name label.
const NAME_CHARS_MAX: usize = 40;
/// Names that mean the platform itself.
const RESERVED: [&str; 9] =
    ["api", "sandbox", "app", "db", "edge", "localhost", "admin", "console", "preview"];
/// The variable that is always what an app's setting `port` says.
const PORT: &str = "PORT";
/// Bytes of a variable's name. Beyond it: 400 `bad_request`.
const ENV_NAME_BYTES_MAX: usize = 256;
/// Bytes of a variable's value. Beyond it: 400 `bad_request`.
const ENV_VALUE_BYTES_MAX: usize = 64 * 1024;
/// Limit of a user's variables, which leaves space for the platform's own. Beyond it: 400 `bad_request`.
const ENV_VARIABLES_MAX: usize = ENV_PAIRS_MAX - 32;
/// Shortest idle time: below it an app would sleep between two clicks.
const IDLE_SECONDS_MIN: u64 = 5;

fn refuse<T>(message: String) -> Result<T> {
    Err(Error::bad_request(message))
}

/// Checks a name, which becomes a host name label next to those of sandboxes, functions and the platform.
pub(crate) fn name(name: &str, domains: &Domains) -> Result<()> {
    let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if name.len() > NAME_CHARS_MAX || !starts || name.ends_with('-') || !name.chars().all(label) {
        return refuse(format!(
            "an app name must be 1 to {NAME_CHARS_MAX} lowercase letters, digits and `-`, begin with a \
             letter and not end with `-`"
        ));
    }
    let platform = domains.is_reserved_label(name);
    let taken = RESERVED.contains(&name) || name.starts_with("fn-") || preview_name::is_name(name);
    if taken || uuid::Uuid::try_parse(name).is_ok() || platform {
        return refuse(format!("`{name}` is a reserved host name; choose another name"));
    }
    Ok(())
}

/// Applies the settings of a request; an empty string resets a setting.
pub(crate) fn apply(spec: &mut AppSpec, settings: AppSettings) -> Result<()> {
    let texts = [
        ("git_branch", &settings.git_branch),
        ("git_token", &settings.git_token),
        ("framework", &settings.framework),
        ("install_command", &settings.install_command),
        ("build_command", &settings.build_command),
        ("start_command", &settings.start_command),
        ("git_deploy_key", &settings.git_deploy_key),
        ("git_known_hosts", &settings.git_known_hosts),
        ("webhook_secret", &settings.webhook_secret),
    ];
    for (field, text) in texts {
        if let Some(text) = text
            && (text.len() > APP_TEXT_BYTES_MAX || text.contains('\0'))
        {
            return refuse(format!("`{field}` must be at most {APP_TEXT_BYTES_MAX} bytes without NUL"));
        }
    }
    settings.git_url.as_deref().map_or(Ok(()), repository)?;
    settings.git_branch.as_deref().map_or(Ok(()), git_ref)?;
    settings.git_api_url.as_deref().map_or(Ok(()), |url| address("git_api_url", url))?;
    settings.framework.as_deref().map_or(Ok(()), framework)?;
    settings.root_directory.as_deref().map_or(Ok(()), root_directory)?;
    let deploy_key = settings.git_deploy_key.as_deref().map(deploy_key).transpose()?;
    let set = |place: &mut Option<String>, given: Option<String>| {
        if let Some(given) = given {
            *place = Some(given).filter(|text| !text.trim().is_empty());
        }
    };
    let (host, place) = (git::ssh_host(spec), git::place(spec));
    set(&mut spec.git_url, settings.git_url);
    if git::place(spec) != place {
        spec.github_repo_id = None;
    }
    // Recorded keys belong to one host; an explicit value, even an empty one, discards them.
    if git::ssh_host(spec) != host || settings.git_known_hosts.is_some() {
        spec.git_known_hosts_seen = None;
    }
    set(&mut spec.git_known_hosts, settings.git_known_hosts);
    set(&mut spec.git_deploy_key, deploy_key);
    set(&mut spec.git_branch, settings.git_branch);
    set(&mut spec.git_token, settings.git_token);
    set(&mut spec.git_api_url, settings.git_api_url);
    spec.git_host = settings.git_host.or(spec.git_host);
    set(&mut spec.framework, settings.framework);
    set(&mut spec.install_command, settings.install_command);
    set(&mut spec.build_command, settings.build_command);
    set(&mut spec.start_command, settings.start_command);
    if settings.root_directory.is_some() {
        set(&mut spec.root_directory, settings.root_directory);
        spec.said.root_directory = spec.root_directory.is_some();
    }
    set(&mut spec.webhook_secret, settings.webhook_secret);
    if let Some(previews) = settings.previews {
        spec.set_previews(previews, now());
    }
    apply_poll(spec, settings.poll_seconds)?;
    apply_numbers(spec, settings.port, settings.idle_timeout_seconds)?;
    apply_instances(spec, settings.min_instances, settings.max_instances)?;
    if let Some(path) = settings.health_path {
        health_path(&path)?;
        spec.health_path = path;
        spec.said.health_path = true;
    }
    Ok(())
}

/// Checks the path of an app's health check.
pub(crate) fn health_path(path: &str) -> Result<()> {
    let is_path = path.starts_with('/') && path.parse::<http::uri::PathAndQuery>().is_ok();
    if !is_path || path.len() > APP_TEXT_BYTES_MAX {
        return refuse("`health_path` must be a path such as /healthz".to_owned());
    }
    Ok(())
}

/// A port that an app listens on.
pub(crate) fn port(port: u16) -> Result<()> {
    if port == 0 { refuse("`port` must be 1 to 65535".to_owned()) } else { Ok(()) }
}

fn apply_poll(spec: &mut AppSpec, seconds: Option<u64>) -> Result<()> {
    let Some(seconds) = seconds else { return Ok(()) };
    let (least, most) = (POLL_SECONDS_RANGE.start(), POLL_SECONDS_RANGE.end());
    if seconds != 0 && !POLL_SECONDS_RANGE.contains(&seconds) {
        return refuse(format!("`poll_seconds` must be {least} to {most}, or 0 to disable it"));
    }
    spec.poll_seconds = Some(seconds).filter(|seconds| *seconds > 0);
    spec.poll_asked += 1;
    Ok(())
}

fn apply_instances(spec: &mut AppSpec, least: Option<u32>, most: Option<u32>) -> Result<()> {
    let (least, most) = (least.unwrap_or(spec.min_instances), most.unwrap_or(spec.max_instances));
    if !(1..=INSTANCES_MAX).contains(&most) {
        return refuse(format!("`max_instances` must be 1 to {INSTANCES_MAX}"));
    }
    if least > most {
        return refuse(format!(
            "`min_instances` is {least}, but `max_instances` is {most}; set it to 0 to `max_instances`"
        ));
    }
    (spec.min_instances, spec.max_instances) = (least, most);
    Ok(())
}

fn apply_numbers(spec: &mut AppSpec, port: Option<u16>, idle: Option<u64>) -> Result<()> {
    if let Some(port) = port {
        self::port(port)?;
        spec.port = port;
        spec.said.port = true;
    }
    match idle {
        Some(seconds) if !(IDLE_SECONDS_MIN..=TTL_SECONDS_MAX).contains(&seconds) => {
            return refuse(format!("`idle_timeout_seconds` must be {IDLE_SECONDS_MIN} to {TTL_SECONDS_MAX}"));
        }
        Some(seconds) => spec.idle_timeout_seconds = seconds,
        None => {}
    }
    Ok(())
}

/// Checks the address of a repository; an empty text clears it.
fn repository(text: &str) -> Result<()> {
    if !text.is_empty() && (Repository::parse(text).is_none() || text.len() > APP_TEXT_BYTES_MAX) {
        return refuse(
            "`git_url` must be a URL such as https://git.example.com/me/app.git or \
             git@git.example.com:me/app.git"
                .to_owned(),
        );
    }
    Ok(())
}

/// A private key as it is kept; an empty text takes it back.
fn deploy_key(text: &str) -> Result<String> {
    if text.trim().is_empty() {
        return Ok(String::new());
    }
    crate::deploy_key::parse(text).map_err(|why| Error::bad_request(format!("`git_deploy_key` {why}")))
}

/// Checks the API address of a Git host; an empty text clears it.
fn address(field: &str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let good =
        url::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if !good || text.len() > APP_TEXT_BYTES_MAX {
        return refuse(format!("`{field}` must be a URL such as https://git.example.com/api/v1"));
    }
    Ok(())
}

/// A branch, tag or commit. A text that git would read as an option or a pattern is refused.
pub(crate) fn git_ref(text: &str) -> Result<()> {
    let odd = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    if text.starts_with('-') || text.contains("..") || text.contains(odd) || text.len() > APP_TEXT_BYTES_MAX {
        return refuse(format!(
            "`{}` is not a valid branch, tag or commit",
            text.chars().take(80).collect::<String>()
        ));
    }
    Ok(())
}

fn framework(text: &str) -> Result<()> {
    if !text.is_empty() && Framework::parse(text).is_none() {
        return refuse(format!("`framework` must be one of {}", Framework::NAMES.join(", ")));
    }
    Ok(())
}

/// A directory within a source; an empty text takes it back.
pub(crate) fn root_directory(text: &str) -> Result<()> {
    let outside = text.split('/').any(|part| part == "..");
    if outside || text.contains('\0') || text.len() > APP_TEXT_BYTES_MAX {
        return refuse("`root_directory` must be a directory in the source".to_owned());
    }
    Ok(())
}

/// Puts a variable into an app, within its limits.
pub(crate) fn put_env(spec: &mut AppSpec, key: &str, entry: EnvEntry) -> Result<()> {
    if let Some(attached) = spec.databases.get(key) {
        let id = &attached.database;
        return refuse(format!("`{key}` is set by the attached database `{id}`; detach it first"));
    }
    put_variable(&mut spec.env, key, entry)
}

/// Puts a variable among others, within the limits of an app or a repository.
pub(crate) fn put_variable(env: &mut BTreeMap<String, EnvEntry>, key: &str, entry: EnvEntry) -> Result<()> {
    env_name(key)?;
    if entry.value.len() > ENV_VALUE_BYTES_MAX || entry.value.contains('\0') {
        return refuse(format!(
            "the value of `{key}` must be at most {ENV_VALUE_BYTES_MAX} bytes without NUL"
        ));
    }
    env.insert(key.to_owned(), entry);
    env_room(env)
}

/// Refuses variables that, together with the platform's own, do not fit into a machine.
pub(crate) fn env_room(env: &BTreeMap<String, EnvEntry>) -> Result<()> {
    if env.len() > ENV_VARIABLES_MAX {
        return refuse(format!(
            "there are {} variables, but the limit is {ENV_VARIABLES_MAX}; variables of the app, its \
             `pandastack.toml` and, for a \
             preview, its repository count together",
            env.len()
        ));
    }
    Ok(())
}

/// Refuses a text that cannot be the name of a user's variable.
pub(crate) fn env_name(key: &str) -> Result<()> {
    if !is_env_name(key) {
        let shown: String = key.chars().take(40).collect();
        return refuse(format!(
            "`{shown}` is not a valid variable name; use letters, digits and `_`, and start with a letter or `_`"
        ));
    }
    if key == PORT {
        return refuse(format!(
            "`{PORT}` comes from the app's `port` setting; set that instead (`pandastack app deploy --port`, \
             or PATCH `port`)"
        ));
    }
    Ok(())
}

/// Returns whether a text is a valid name of a variable.
pub(crate) fn is_env_name(key: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && key.chars().all(good) && key.len() <= ENV_NAME_BYTES_MAX
}

/// A custom domain in lowercase. Names of the platform and below its domains are refused.
pub(crate) fn domain(text: &str, domains: &Domains) -> Result<String> {
    let name = text.trim().trim_end_matches('.').to_ascii_lowercase();
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let reserved = name.starts_with("api.") || name.starts_with("sandbox.");
    let address = name.parse::<std::net::IpAddr>().is_ok();
    if name.len() > 253 || !name.contains('.') || !name.split('.').all(label) || reserved || address {
        return refuse("`domain` must be a domain name such as www.example.com".to_owned());
    }
    if domains.covers(&name) {
        return refuse(format!(
            "`{name}` is in the platform's own domain, which is reserved for app names; use another domain, \
             or rename the app"
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_names_are_unreserved_host_labels() {
        for good in ["a", "shop", "shop-2", &"a".repeat(NAME_CHARS_MAX)] {
            assert!(name(good, &Domains::default()).is_ok(), "{good}");
        }
        let long = "a".repeat(NAME_CHARS_MAX + 1);
        let domains = Domains::new(&["example.com".into()], &["panda.example.com".into()]).unwrap();
        for bad in
            ["", "A", "1a", "8000-a", "a-", "-a", "a.b", "a_b", "api", "fn-a", "pr-1-a", &long, "panda"]
        {
            assert!(name(bad, &domains).is_err(), "{bad}");
        }
        assert!(name("a0b1c2d3-7d7f-4c58-9d0e-0d2b7a0f9a55", &domains).is_err(), "an id");
    }

    #[test]
    fn app_settings_are_validated() {
        let with = |change: fn(&mut AppSettings)| {
            let mut settings = AppSettings::default();
            change(&mut settings);
            apply(&mut AppSpec::default(), settings).is_ok()
        };
        assert!(with(|s| s.git_url = Some("https://a.example/b.git".into())));
        assert!(!with(|s| s.git_url = Some("file:///etc".into())));
        assert!(!with(|s| s.git_url = Some("ext::sh -c x".into())));
        assert!(with(|s| s.git_url = Some("git@git.example.com:me/app.git".into())));
        assert!(!with(|s| s.git_api_url = Some("git@git.example.com:me/app.git".into())));
        assert!(!with(|s| s.git_deploy_key = Some("ssh-ed25519 AAAA".into())));
        assert!(!with(|s| s.git_branch = Some("--upload-pack=x".into())));
        assert!(!with(|s| s.root_directory = Some("a/../../b".into())));
        for (seconds, good) in
            [(0, true), (1, false), (29, false), (30, true), (86_400, true), (86_401, false)]
        {
            let settings = AppSettings { poll_seconds: Some(seconds), ..AppSettings::default() };
            assert_eq!(apply(&mut AppSpec::default(), settings).is_ok(), good, "{seconds}");
        }
        assert!(!with(|s| s.port = Some(0)));
        assert!(!with(|s| s.idle_timeout_seconds = Some(IDLE_SECONDS_MIN - 1)));
        assert!(with(|s| s.idle_timeout_seconds = Some(IDLE_SECONDS_MIN)));
        for (least, most, good) in [
            (Some(1), None, true),
            (Some(2), None, false),
            (Some(2), Some(2), true),
            (Some(0), Some(INSTANCES_MAX), true),
            (None, Some(INSTANCES_MAX + 1), false),
            (None, Some(0), false),
        ] {
            let settings =
                AppSettings { min_instances: least, max_instances: most, ..AppSettings::default() };
            assert_eq!(apply(&mut AppSpec::default(), settings).is_ok(), good, "{least:?} {most:?}");
        }
        assert!(!with(|s| s.framework = Some("rails".into())));
        assert!(!with(|s| s.health_path = Some("x".into())));
        assert!(with(|s| s.start_command = Some("x".repeat(APP_TEXT_BYTES_MAX))));
        assert!(!with(|s| s.start_command = Some("x".repeat(APP_TEXT_BYTES_MAX + 1))));
    }

    #[test]
    fn explicit_settings_are_recorded() {
        let mut spec = AppSpec::default();
        let port = AppSettings {
            port: Some(pandastack_store::apps::record::PORT_DEFAULT),
            ..AppSettings::default()
        };
        apply(&mut spec, port).unwrap();
        let health = AppSettings { health_path: Some("/".into()), ..AppSettings::default() };
        apply(&mut spec, health).unwrap();
        assert!(spec.said.port && spec.said.health_path && !spec.said.root_directory);
        for (root, expect) in [("web", true), ("", false)] {
            let settings = AppSettings { root_directory: Some(root.into()), ..AppSettings::default() };
            apply(&mut spec, settings).unwrap();
            assert_eq!(spec.said.root_directory, expect, "{root}");
        }
    }

    #[test]
    fn the_repository_id_is_dropped_when_the_repository_changes() {
        let mut spec = AppSpec { git_url: Some("https://github.com/me/shop".into()), ..AppSpec::default() };
        let mut say = |url: &str| {
            spec.github_repo_id = Some(7.try_into().unwrap());
            apply(&mut spec, AppSettings { git_url: Some(url.into()), ..AppSettings::default() }).unwrap();
            spec.github_repo_id.is_some()
        };
        assert!(say("git@github.com:Me/Shop.git"), "the same one");
        assert!(!say("https://github.com/me/other"));
        assert!(!say(""));
    }

    #[test]
    fn seen_host_keys_are_dropped_when_the_git_host_changes() {
        let mut spec = AppSpec::default();
        let mut say = |settings: AppSettings| {
            spec.git_known_hosts_seen = Some("a ssh-ed25519 AAAA".into());
            apply(&mut spec, settings).unwrap();
            spec.git_known_hosts_seen.is_some()
        };
        let at = |url: &str| AppSettings { git_url: Some(url.into()), ..AppSettings::default() };
        assert!(!say(at("git@a:one.git")));
        assert!(say(at("git@a:two.git")), "the same host");
        assert!(!say(at("ssh://git@a:2222/two.git")), "another port");
        assert!(!say(AppSettings { git_known_hosts: Some(String::new()), ..AppSettings::default() }));
        assert!(say(AppSettings { port: Some(80), ..AppSettings::default() }));
    }

    #[test]
    fn environment_variable_names_are_validated() {
        let long = "A".repeat(ENV_NAME_BYTES_MAX + 1);
        for good in ["A", "_a1", "PORTS", "port", &long[1..]] {
            assert!(env_name(good).is_ok(), "{good}");
        }
        for bad in ["", "1A", "A-B", "A B", "É", &long] {
            assert!(env_name(bad).unwrap_err().message.contains("letters, digits"), "{bad}");
        }
        assert!(env_name("PORT").unwrap_err().message.contains("`port` setting"));
    }

    #[test]
    fn platform_domains_are_refused_as_app_domains() {
        let own = &Domains::new(&["panda.example.org".into()], &["ui.example.org".into()]).unwrap();
        assert_eq!(domain("WWW.Example.com.", own).unwrap(), "www.example.com");
        assert!(domain("notpanda.example.org", own).is_ok());
        for bad in ["localhost", "1.2.3.4", "a..b", "-a.b", "api.example.com", "a b.c", ""] {
            assert!(domain(bad, own).is_err(), "{bad}");
        }
        for of_others in [
            "ui.example.org",
            "panda.example.org",
            "shop.panda.example.org",
            "SHOP.Panda.Example.org.",
            "a.b.panda.example.org",
            "shop.localhost",
        ] {
            assert!(domain(of_others, own).unwrap_err().message.contains("platform's own"), "{of_others}");
        }
    }
}
