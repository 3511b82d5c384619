//! Settings of the login provider.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use pandastack_control::{GroupRole, LoginConfig, OidcConfig, check_url};
use serde::Deserialize;
use url::Url;

use crate::failure::Failure;

/// Default claim that lists the groups of a user.
const GROUPS_CLAIM: &str = "groups";
/// Default scopes, besides `openid`.
const SCOPES: [&str; 2] = ["email", "profile"];
/// Default lifetime of a session.
const SESSION_HOURS: u32 = 12;
/// Maximum lifetime of a session.
const SESSION_HOURS_MAX: u32 = 168;
/// Default name of the provider on the sign-in button.
const NAME: &str = "single sign-on";

/// Options of the login provider (OpenID Connect).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OidcArgs {
    /// Issuer URL of the login provider, exactly as in its metadata, such as https://login.example.com
    #[arg(long, env = "PANDASTACK_OIDC_ISSUER", value_name = "URL")]
    pub oidc_issuer: Option<String>,
    /// Client ID of this installation at the login provider
    #[arg(long, env = "PANDASTACK_OIDC_CLIENT_ID", value_name = "ID")]
    pub oidc_client_id: Option<String>,
    /// File with the client secret [default: none, for a public client]
    #[arg(long, env = "PANDASTACK_OIDC_CLIENT_SECRET_FILE", value_name = "FILE")]
    pub oidc_client_secret_file: Option<PathBuf>,
    /// URL at which browsers reach the API; the login provider must allow the redirect URI
    /// URL/v1/login/callback [default: the API's address]
    #[arg(long, env = "PANDASTACK_OIDC_PUBLIC_URL", value_name = "URL")]
    pub oidc_public_url: Option<Url>,
    /// Name of the login provider, shown on the sign-in button [default: single sign-on]
    #[arg(long, env = "PANDASTACK_OIDC_NAME", value_name = "NAME")]
    pub oidc_name: Option<String>,
    /// Scope to request besides `openid`; can be repeated [default: email, profile]
    #[arg(long = "oidc-scope", env = "PANDASTACK_OIDC_SCOPES", value_delimiter = ',', value_name = "SCOPE")]
    pub oidc_scopes: Vec<String>,
    /// Claim that lists the groups of a user, such as `realm_access.roles` [default: groups]
    #[arg(long, env = "PANDASTACK_OIDC_GROUPS_CLAIM", value_name = "CLAIM")]
    pub oidc_groups_claim: Option<String>,
    /// Role for users in a group: `viewer`, `developer`, `owner`, or `operator` in workspace
    /// `default`; can be repeated
    #[arg(
        long = "oidc-group",
        env = "PANDASTACK_OIDC_GROUPS",
        value_delimiter = ';',
        value_name = "GROUP=WORKSPACE:ROLE"
    )]
    pub oidc_groups: Vec<GroupRole>,
    /// Email domain that can sign in; can be repeated [default: any]
    #[arg(
        long = "oidc-email-domain",
        env = "PANDASTACK_OIDC_EMAIL_DOMAINS",
        value_delimiter = ',',
        value_name = "DOMAIN"
    )]
    pub oidc_email_domains: Vec<String>,
    /// Hours until a session expires, 1 to 168 [default: 12]
    #[arg(
        long,
        env = "PANDASTACK_OIDC_SESSION_HOURS",
        value_name = "HOURS",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SESSION_HOURS_MAX))
    )]
    pub oidc_session_hours: Option<u32>,
}

/// Table `oidc` of the settings file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OidcSection {
    issuer: Option<String>,
    client_id: Option<String>,
    client_secret_file: Option<PathBuf>,
    public_url: Option<String>,
    name: Option<String>,
    scopes: Vec<String>,
    groups_claim: Option<String>,
    groups: Vec<String>,
    email_domains: Vec<String>,
    session_hours: Option<u32>,
}

/// The login provider, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcSettings {
    issuer: String,
    client_id: String,
    client_secret_file: Option<PathBuf>,
    public_url: Url,
    name: String,
    scopes: Vec<String>,
    groups_claim: String,
    groups: Vec<GroupRole>,
    email_domains: Vec<String>,
    session_hours: u32,
}

impl OidcSettings {
    /// Resolves the settings; flags and variables take precedence over the file. `None` without an issuer.
    pub fn resolve(args: &OidcArgs, file: OidcSection, api_url: &str) -> Result<Option<Self>> {
        let Some(issuer) = args.oidc_issuer.clone().or(file.issuer).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let check = |what: &str, url: &Url| {
            check_url(url).map_err(|why| {
                Failure::new(format!("invalid {what}: {why}")).hint("use https://, or http:// on loopback")
            })
        };
        let parse = |what: &str, text: &str| {
            text.parse::<Url>().map_err(|_| Failure::new(format!("invalid {what} `{text}`: not a URL")))
        };
        check("--oidc-issuer", &parse("--oidc-issuer", &issuer)?)?;
        let public_url = match (&args.oidc_public_url, file.public_url) {
            (Some(url), _) => url.clone(),
            (None, Some(text)) => parse("public_url", &text)?,
            (None, None) => parse("--listen", api_url)?,
        };
        check("--oidc-public-url", &public_url)?;
        let client_id = args.oidc_client_id.clone().or(file.client_id).filter(|text| !text.is_empty());
        let client_id = client_id.ok_or_else(|| {
            let failure = Failure::new("--oidc-issuer needs a client ID");
            failure.hint("register this installation at the login provider, and set --oidc-client-id")
        })?;
        let groups = match args.oidc_groups.is_empty() {
            false => args.oidc_groups.clone(),
            true => {
                let parsed = file.groups.iter().map(|text| text.parse().map_err(Failure::new));
                parsed.collect::<Result<_, _>>()?
            }
        };
        let session_hours = args.oidc_session_hours.or(file.session_hours).unwrap_or(SESSION_HOURS);
        if !(1..=SESSION_HOURS_MAX).contains(&session_hours) {
            return Err(Failure::new(format!("`session_hours` must be 1 to {SESSION_HOURS_MAX}")).into());
        }
        let first =
            |given: &[String], file: Vec<String>| if given.is_empty() { file } else { given.to_vec() };
        let scopes = first(&args.oidc_scopes, file.scopes);
        let domain = |domain: String| domain.trim_start_matches('@').to_lowercase();
        Ok(Some(Self {
            issuer,
            client_id,
            client_secret_file: args.oidc_client_secret_file.clone().or(file.client_secret_file),
            public_url,
            name: args.oidc_name.clone().or(file.name).unwrap_or_else(|| NAME.to_owned()),
            scopes: if scopes.is_empty() { SCOPES.map(str::to_owned).to_vec() } else { scopes },
            groups_claim: args
                .oidc_groups_claim
                .clone()
                .or(file.groups_claim)
                .unwrap_or_else(|| GROUPS_CLAIM.to_owned()),
            groups,
            email_domains: first(&args.oidc_email_domains, file.email_domains)
                .into_iter()
                .map(domain)
                .collect(),
            session_hours,
        }))
    }

    /// The same settings as arguments for the control server.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut set = |flag: &str, value: OsString| arguments.extend([flag.into(), value]);
        set("--oidc-issuer", self.issuer.clone().into());
        set("--oidc-client-id", self.client_id.clone().into());
        if let Some(file) = &self.client_secret_file {
            set("--oidc-client-secret-file", file.clone().into());
        }
        set("--oidc-public-url", self.public_url.as_str().into());
        set("--oidc-name", self.name.clone().into());
        set("--oidc-groups-claim", self.groups_claim.clone().into());
        set("--oidc-session-hours", self.session_hours.to_string().into());
        for (flag, values) in [("--oidc-scope", &self.scopes), ("--oidc-email-domain", &self.email_domains)] {
            values.iter().for_each(|value| set(flag, value.into()));
        }
        self.groups.iter().for_each(|group| set("--oidc-group", group.to_string().into()));
        arguments
    }

    /// Reads the secret and builds the server's settings.
    pub fn open(&self) -> Result<LoginConfig> {
        let client_secret = match &self.client_secret_file {
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read the client secret {}", file.display()))?;
                let secret = text.trim().to_owned();
                if secret.is_empty() {
                    let failure = Failure::new(format!("the client secret {} is empty", file.display()));
                    return Err(failure.hint("write the secret from the login provider to it").into());
                }
                Some(secret)
            }
            None => None,
        };
        Ok(LoginConfig {
            oidc: OidcConfig {
                issuer: self.issuer.clone(),
                client_id: self.client_id.clone(),
                client_secret,
                redirect_uri: self.public_url.clone(),
                scopes: self.scopes.clone(),
                groups_claim: self.groups_claim.clone(),
            },
            name: self.name.clone(),
            public_url: self.public_url.clone(),
            groups: self.groups.clone(),
            email_domains: self.email_domains.clone(),
            session_hours: self.session_hours,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        oidc: OidcArgs,
    }

    fn resolve(toml: &str, arguments: &[OsString]) -> Result<Option<OidcSettings>> {
        let line = Line::try_parse_from([OsString::from("x")].iter().chain(arguments))?;
        OidcSettings::resolve(&line.oidc, toml::from_str(toml)?, "http://127.0.0.1:8080")
    }

    const FILE: &str = r#"
        issuer = "https://login.example.com"
        client_id = "panda"
        client_secret_file = "/etc/pandastack/oidc"
        public_url = "https://panda.example.com"
        groups = ["cn=eng,dc=example=default:developer", "ops=default:operator"]
        email_domains = ["@Example.com"]
    "#;

    #[test]
    fn login_settings_round_trip_through_control_arguments() {
        let settings = resolve(FILE, &[]).unwrap().unwrap();
        assert_eq!((settings.session_hours, settings.scopes.len()), (SESSION_HOURS, 2));
        assert_eq!(settings.email_domains, ["example.com"]);
        assert_eq!(settings.groups[0].group, "cn=eng,dc=example");
        assert_eq!(resolve("", &settings.arguments()).unwrap(), Some(settings));
        assert_eq!(resolve("", &[]).unwrap(), None, "no issuer, no provider");
    }

    #[test]
    fn invalid_login_settings_are_rejected_at_startup() {
        for bad in [
            "issuer = \"https://a\"",
            "issuer = \"http://login.example.com\"\nclient_id = \"x\"",
            "issuer = \"login\"\nclient_id = \"x\"",
            "issuer = \"https://a\"\nclient_id = \"x\"\npublic_url = \"http://panda.example.com\"",
            "issuer = \"https://a\"\nclient_id = \"x\"\ngroups = [\"eng\"]",
            "issuer = \"https://a\"\nclient_id = \"x\"\nsession_hours = 0",
            "isuer = \"https://a\"",
        ] {
            assert!(resolve(bad, &[]).is_err(), "{bad}");
        }
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        let with_secret = || {
            let mut settings = resolve(FILE, &[]).unwrap().unwrap();
            settings.client_secret_file = Some(secret.clone());
            settings.open()
        };
        assert!(with_secret().is_err(), "a missing file");
        std::fs::write(&secret, "\n").unwrap();
        assert!(with_secret().is_err(), "an empty file");
        std::fs::write(&secret, "hush\n").unwrap();
        assert_eq!(with_secret().unwrap().oidc.client_secret.as_deref(), Some("hush"));
    }
}
