//! Calls to one provider.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use reqwest::{Client, RequestBuilder};
use serde::{Deserialize, Serialize};
use url::{Url, form_urlencoded};

use crate::id_token::{Claims, Expected, IdTokenError, verify};
use crate::metadata::{Metadata, MetadataCache, json};
use crate::person::claim;
use crate::{Attempt, LoginError, Person, Result};

/// Longest time of one call to the provider.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Grant of devices (RFC 8628).
const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Longest text of an error that is passed on.
const DESCRIPTION_CHARS_MAX: usize = 200;

/// A provider, and this installation as its client.
#[derive(Clone)]
pub struct OidcConfig {
    /// The issuer, exactly as the provider writes it.
    pub issuer: String,
    /// This installation's name at the provider.
    pub client_id: String,
    /// Its secret; `None` for a public client.
    pub client_secret: Option<String>,
    /// URL to which the provider redirects browsers.
    pub redirect_uri: Url,
    /// Requested scopes; `openid` is always one.
    pub scopes: Vec<String>,
    /// Claim with the groups of a person.
    pub groups_claim: String,
}

impl std::fmt::Debug for OidcConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OidcConfig")
            .field("issuer", &self.issuer)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// A device that waits for a person (RFC 8628, section 3.2).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceCode {
    /// For the device: redeems the sign-in.
    pub device_code: String,
    /// For the person: typed at the address.
    pub user_code: String,
    /// URL at which the person confirms.
    pub verification_uri: String,
    /// The same URL with the code in it.
    pub verification_uri_complete: Option<String>,
    /// Seconds until the code expires.
    pub expires_in: u64,
    /// Seconds between polls; 5 by default.
    pub interval: Option<u64>,
}

/// Result of a poll.
#[derive(Debug)]
pub enum DevicePoll {
    /// The person has not confirmed yet.
    Pending,
    /// Still pending, and the device polls too often.
    SlowDown,
    /// The person has signed in.
    Done(Box<Person>),
}

/// A response of the token endpoint (RFC 6749, sections 5.1 and 5.2).
#[derive(Deserialize)]
struct TokenResponse {
    id_token: Option<String>,
    access_token: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// The response of the device endpoint.
#[derive(Deserialize)]
#[serde(untagged)]
enum DeviceResponse {
    Code(DeviceCode),
    Error { error: String, error_description: Option<String> },
}

/// A provider that people sign in with.
pub struct Provider {
    config: OidcConfig,
    http: Client,
    metadata: MetadataCache,
}

impl Provider {
    /// Creates a client of the provider; nothing is called yet.
    pub fn new(config: OidcConfig) -> Result<Self> {
        // A redirect could lead the client's secret elsewhere.
        let builder =
            pandastack_http::builder_for(&config.issuer).redirect(reqwest::redirect::Policy::none());
        let http = builder.timeout(CALL_TIMEOUT).build();
        let http = http.map_err(|error| LoginError::Unavailable(error.to_string()))?;
        Ok(Self { config, http, metadata: MetadataCache::default() })
    }

    async fn metadata(&self) -> Result<Arc<Metadata>> {
        self.metadata.get(&self.http, &self.config.issuer).await
    }

    /// URL at which a browser signs in.
    pub async fn authorization_url(&self, attempt: &Attempt) -> Result<Url> {
        let metadata = self.metadata().await?;
        let mut url = metadata.endpoints.authorization_endpoint.0.clone();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.config.client_id)
            .append_pair("redirect_uri", self.config.redirect_uri.as_str())
            .append_pair("scope", &self.scope())
            .append_pair("state", &attempt.state())
            .append_pair("nonce", &attempt.nonce())
            .append_pair("code_challenge", &attempt.challenge())
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Redeems the code that a browser returned with.
    pub async fn exchange(&self, attempt: &Attempt, code: &str) -> Result<Person> {
        let metadata = self.metadata().await?;
        let (redirect_uri, verifier) = (self.config.redirect_uri.as_str(), attempt.verifier());
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", &verifier),
        ];
        let request = self.http.post(metadata.endpoints.token_endpoint.0.clone());
        let response: TokenResponse = json(self.authenticated(&metadata, request, &form)).await?;
        if let Some(error) = response.error {
            return Err(refusal(&error, response.error_description.as_deref()));
        }
        self.person(&metadata, response, Some(&attempt.nonce())).await
    }

    /// Starts a sign-in on a device without a browser.
    pub async fn start_device(&self) -> Result<DeviceCode> {
        let metadata = self.metadata().await?;
        let endpoint = metadata.endpoints.device_authorization_endpoint.clone().ok_or_else(|| {
            let why = "it does not support the device flow; create an API key with `pandastack token create`";
            LoginError::Unavailable(why.to_owned())
        })?;
        let scope = self.scope();
        let request = self.authenticated(&metadata, self.http.post(endpoint.0), &[("scope", &scope)]);
        match json(request).await? {
            DeviceResponse::Code(code) => Ok(code),
            DeviceResponse::Error { error, error_description } => {
                Err(refusal(&error, error_description.as_deref()))
            }
        }
    }

    /// Polls whether the user has confirmed.
    pub async fn poll_device(&self, device_code: &str) -> Result<DevicePoll> {
        let metadata = self.metadata().await?;
        let form = [("grant_type", DEVICE_GRANT), ("device_code", device_code)];
        let request = self.http.post(metadata.endpoints.token_endpoint.0.clone());
        let response: TokenResponse = json(self.authenticated(&metadata, request, &form)).await?;
        match response.error.as_deref() {
            Some("authorization_pending") => Ok(DevicePoll::Pending),
            Some("slow_down") => Ok(DevicePoll::SlowDown),
            Some(error) => Err(refusal(error, response.error_description.as_deref())),
            None => Ok(DevicePoll::Done(Box::new(self.person(&metadata, response, None).await?))),
        }
    }

    fn scope(&self) -> String {
        let others = self.config.scopes.iter().map(String::as_str).filter(|scope| *scope != "openid");
        std::iter::once("openid").chain(others).collect::<Vec<_>>().join(" ")
    }

    /// A request with a form and this client's credentials: in the header unless the provider takes them in
    /// the body only.
    fn authenticated(
        &self,
        metadata: &Metadata,
        request: RequestBuilder,
        form: &[(&str, &str)],
    ) -> RequestBuilder {
        let methods = &metadata.endpoints.token_endpoint_auth_methods_supported;
        let takes = |method: &str| methods.iter().any(|one| one == method);
        let in_body = takes("client_secret_post") && !takes("client_secret_basic");
        let id = self.config.client_id.as_str();
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(form);
        let request = match &self.config.client_secret {
            Some(secret) if in_body => {
                body.append_pair("client_id", id).append_pair("client_secret", secret);
                request
            }
            Some(secret) => {
                // RFC 6749, section 2.3.1: both are encoded as in a form first.
                let encoded =
                    |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
                let pair = format!("{}:{}", encoded(id), encoded(secret));
                // Device endpoints require the client's id in the body as well.
                body.append_pair("client_id", id);
                request.header("authorization", format!("Basic {}", BASE64.encode(pair.as_bytes())))
            }
            None => {
                body.append_pair("client_id", id);
                request
            }
        };
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(body.finish())
    }

    /// The person that a token response identifies.
    async fn person(
        &self,
        metadata: &Metadata,
        response: TokenResponse,
        nonce: Option<&str>,
    ) -> Result<Person> {
        let none = || LoginError::Unavailable("its response has no ID token".to_owned());
        let token = response.id_token.ok_or_else(none)?;
        let OidcConfig { issuer, client_id, .. } = &self.config;
        let expected = Expected { issuer, client_id, nonce };
        let checked = match verify(&token, &metadata.keys, &expected) {
            Err(IdTokenError::UnknownKey) => {
                let newer = self.metadata.reread(&self.http, issuer).await?;
                verify(&token, &newer.keys, &expected)
            }
            checked => checked,
        };
        let mut claims = checked.map_err(|error| match error {
            IdTokenError::UnknownKey => {
                LoginError::Refused("no key of the provider signed the ID token".into())
            }
            IdTokenError::Invalid(why) => LoginError::Refused(why),
        })?;
        let is_whole = claims.contains_key("email") && claim(&claims, &self.config.groups_claim).is_some();
        if let (Some(url), Some(access), false) =
            (&metadata.endpoints.userinfo_endpoint, &response.access_token, is_whole)
        {
            self.add_userinfo(&mut claims, &url.0, access).await?;
        }
        let unusable = || LoginError::Refused("the provider's user ID is too long".to_owned());
        Person::from_claims(issuer, &claims, &self.config.groups_claim).ok_or_else(unusable)
    }

    /// Adds claims from the provider's userinfo endpoint. A response about a different subject is
    /// refused: this client cannot verify the access token.
    async fn add_userinfo(&self, claims: &mut Claims, url: &Url, access: &str) -> Result<()> {
        let more: Claims = json(self.http.get(url.clone()).bearer_auth(access)).await?;
        if more.get("sub") != claims.get("sub") {
            return Err(LoginError::Refused("the user information is for a different user".to_owned()));
        }
        // An address and whether it is verified belong together.
        if more.contains_key("email") && !claims.contains_key("email") {
            claims.remove("email_verified");
        }
        for (name, value) in more {
            claims.entry(name).or_insert(value);
        }
        Ok(())
    }
}

/// Converts an error code of the provider.
fn refusal(error: &str, description: Option<&str>) -> LoginError {
    let shown: String = description.unwrap_or(error).chars().take(DESCRIPTION_CHARS_MAX).collect();
    match error {
        "invalid_grant" => {
            LoginError::Refused("the code is invalid, has expired or was used before".to_owned())
        }
        "expired_token" => LoginError::Refused("the code has expired".to_owned()),
        "access_denied" => LoginError::Refused("it was denied at the provider".to_owned()),
        "invalid_client" | "unauthorized_client" => {
            LoginError::Unavailable(format!("it rejected this client ({shown}); check its ID and secret"))
        }
        _ => LoginError::Refused(format!("the provider responded `{shown}`")),
    }
}
