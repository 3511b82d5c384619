//! Host names of the platform, and the domains of apps.
//!
//! | name, for a domain `D` | belongs to |
//! |---|---|
//! | `D`, `api.D`, `sandbox.D`, and every configured API name | the platform, before any app |
//! | `<label>.D` | the app of that name or id |
//! | anything deeper below `D` | no one |
//!
//! `localhost` is always such a domain. Other domains are configuration: the `Host` header of a
//! caller is no evidence of who owns a name.

use std::net::IpAddr;

/// Longest host name.
const NAME_BYTES_MAX: usize = 253;
/// The domain that exists without configuration.
const LOCAL: &str = "localhost";
/// First labels of the platform's own names below each domain.
const PLATFORM_LABELS: [&str; 2] = ["api", "sandbox"];

/// The names of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domains {
    /// In the configured order, `localhost` last.
    domains: Vec<String>,
    api_names: Vec<String>,
}

/// A configured name that is not a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a domain; use a name such as panda.example.com, without a scheme or a port")]
pub struct InvalidDomain(pub String);

impl Default for Domains {
    fn default() -> Self {
        Self { domains: vec![LOCAL.to_owned()], api_names: Vec::new() }
    }
}

impl Domains {
    /// Domains for apps, and further names of the API. A leading `*.` of the wildcard record is ignored.
    pub fn new(domains: &[String], api_names: &[String]) -> Result<Self, InvalidDomain> {
        let mut found: Vec<String> = domains.iter().map(|name| host_name(name)).collect::<Result<_, _>>()?;
        found.retain(|name| name != LOCAL);
        found.push(LOCAL.to_owned());
        let api_names = api_names.iter().map(|name| host_name(name)).collect::<Result<_, _>>()?;
        Ok(Self { domains: found, api_names })
    }

    /// Returns whether a name is the platform's own.
    pub fn is_platform(&self, name: &str) -> bool {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        let of_domain = |domain: &String| {
            is(domain)
                || self.label_below(name, domain).is_some_and(|label| {
                    PLATFORM_LABELS.iter().any(|reserved| label.eq_ignore_ascii_case(reserved))
                })
        };
        self.api_names.iter().any(|one| is(one)) || self.domains.iter().any(of_domain)
    }

    /// The label of an app: what stands directly below one of the domains, unless the name is the platform's.
    pub fn app_label<'a>(&self, name: &'a str) -> Option<&'a str> {
        if self.is_platform(name) {
            return None;
        }
        self.domains.iter().find_map(|domain| self.label_below(name, domain))
    }

    /// Returns whether an app with this name would have one of the platform's own host names.
    pub fn is_reserved_label(&self, label: &str) -> bool {
        self.domains.iter().any(|domain| self.is_platform(&format!("{label}.{domain}")))
    }

    /// Returns whether a name is the platform's own or below one of its domains, and so cannot be a
    /// custom domain of an app.
    pub fn covers(&self, name: &str) -> bool {
        self.is_platform(name) || self.domains.iter().any(|domain| below(name, domain).is_some())
    }

    /// The domain for addresses in responses to a caller at `host`: the one it used if that is one
    /// of ours, else the first.
    pub fn for_caller(&self, host: &str) -> &str {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if bare.parse::<IpAddr>().is_ok() {
            return LOCAL;
        }
        let host = host.strip_prefix("api.").unwrap_or(host);
        let used = self.domains.iter().find(|domain| domain.eq_ignore_ascii_case(host));
        used.or(self.domains.first()).map_or(LOCAL, String::as_str)
    }

    fn label_below<'a>(&self, name: &'a str, domain: &str) -> Option<&'a str> {
        below(name, domain).filter(|label| !label.contains('.'))
    }
}

/// Returns the part of a name that precedes `domain`.
fn below<'a>(name: &'a str, domain: &str) -> Option<&'a str> {
    let at = name.len().checked_sub(domain.len())?;
    let (rest, end) = (name.get(..at)?, name.get(at..)?);
    rest.strip_suffix('.').filter(|rest| !rest.is_empty() && end.eq_ignore_ascii_case(domain))
}

/// A configured name in lowercase.
fn host_name(text: &str) -> Result<String, InvalidDomain> {
    let name = text.trim().trim_start_matches("*.").trim_end_matches('.').to_ascii_lowercase();
    match name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label) && name.parse::<IpAddr>().is_err() {
        true => Ok(name),
        false => Err(InvalidDomain(text.to_owned())),
    }
}

fn is_label(label: &str) -> bool {
    let fits = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (1..=63).contains(&label.len()) && fits && !label.starts_with('-') && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(domains: &[&str], api_names: &[&str]) -> Domains {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Domains::new(&owned(domains), &owned(api_names)).unwrap()
    }

    #[test]
    fn platform_domains_are_never_app_domains() {
        let one = domains(&["*.Panda.Example.com"], &["console.example.com"]);
        for ours in [
            "panda.example.com",
            "API.panda.example.com",
            "sandbox.localhost",
            "localhost",
            "console.example.com",
        ] {
            assert!(one.is_platform(ours) && one.covers(ours), "{ours}");
            assert_eq!(one.app_label(ours), None, "{ours}");
        }
        assert_eq!(one.app_label("Shop.PANDA.example.com"), Some("Shop"));
        assert_eq!(one.app_label("shop.localhost"), Some("shop"));
        for nobodys in
            ["shop.example.com", "a.b.panda.example.com", "xpanda.example.com", "com", "", ".localhost"]
        {
            assert_eq!(one.app_label(nobodys), None, "{nobodys}");
        }
    }

    #[test]
    fn an_api_host_name_is_reserved_from_apps() {
        let two = domains(&["example.com"], &["panda.example.com"]);
        assert_eq!(two.app_label("panda.example.com"), None);
        assert!(
            two.is_reserved_label("panda") && two.is_reserved_label("api") && !two.is_reserved_label("shop")
        );
        let nested = domains(&["example.com", "panda.example.com"], &[]);
        assert_eq!(nested.app_label("panda.example.com"), None);
        assert_eq!(nested.app_label("shop.panda.example.com"), Some("shop"));
    }

    #[test]
    fn callers_get_a_reachable_domain() {
        let one = domains(&["example.com", "b.example"], &["panda.example.com"]);
        for (host, expect) in [
            ("127.0.0.1", "localhost"),
            ("[::1]", "localhost"),
            ("localhost", "localhost"),
            ("api.example.com", "example.com"),
            ("b.example", "b.example"),
            ("panda.example.com", "example.com"),
            ("anything.else", "example.com"),
        ] {
            assert_eq!(one.for_caller(host), expect, "{host}");
        }
        assert_eq!(Domains::default().for_caller("evil.example"), "localhost");
    }

    #[test]
    fn invalid_domain_names_are_rejected() {
        for bad in ["", "https://a.b", "a.b:80", "a..b", "-a.b", "10.0.0.1", &"a.".repeat(150)] {
            assert!(Domains::new(&[bad.to_owned()], &[]).is_err(), "{bad}");
        }
    }
}
