//! A certified login provider in a process of its own, and a browser that signs in there.

use std::collections::HashMap;
use std::process::Stdio;

use pandastack_control::{ControlConfig, GroupRole, LoginConfig, OidcConfig};
use reqwest::{Client, Method, Response};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{Answer, PATIENCE, World};

/// The provider's packages, as `cargo xtask test` installs them.
const PACKAGES: &str = "PANDASTACK_TEST_LOGIN_PROVIDER";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/login_provider/provider.mjs");
/// Public URL of the console, as configured at the provider. Nothing listens there; the test
/// browser calls the server under test instead.
pub const PUBLIC_URL: &str = "http://127.0.0.1:9";
pub const ATTEMPT_COOKIE: &str = "__Host-pandastack-login";
pub const CONSOLE_COOKIE: &str = "__Host-pandastack-console";

pub struct LoginProvider {
    pub issuer: String,
    http: Client,
    /// Ends when its standard input closes, which this holds.
    _process: Child,
}

impl LoginProvider {
    /// Prints a note and returns `None` if its packages are not installed.
    pub async fn start() -> Option<Self> {
        let Some(packages) = std::env::var_os(PACKAGES) else {
            eprintln!("skipped: {PACKAGES} does not name the packages of a login provider");
            return None;
        };
        let mut node = Command::new("node");
        node.arg(SCRIPT).arg(packages).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = node.kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let issuer = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert!(issuer.starts_with("http://127.0.0.1:"), "{issuer}");
        Some(Self { issuer, http: client(), _process: process })
    }

    /// Sets the claims that the provider sends for a person from now on.
    pub async fn describe(&self, name: &str, claims: Value) {
        let request = self.http.put(format!("{}/accounts/{name}", self.issuer)).json(&claims);
        assert_eq!(request.send().await.unwrap().status(), 204);
    }

    /// Settings of a server that uses it.
    pub fn configure(&self, config: &mut ControlConfig, groups: &[&str]) {
        config.login = Some(LoginConfig {
            oidc: OidcConfig {
                issuer: self.issuer.clone(),
                client_id: "panda".to_owned(),
                client_secret: Some("hush: & %".to_owned()),
                redirect_uri: PUBLIC_URL.parse().unwrap(),
                scopes: vec!["email".to_owned(), "profile".to_owned()],
                groups_claim: "groups".to_owned(),
            },
            name: "Example".to_owned(),
            public_url: PUBLIC_URL.parse().unwrap(),
            groups: groups.iter().map(|text| text.parse::<GroupRole>().unwrap()).collect(),
            email_domains: Vec::new(),
            session_hours: 1,
        });
    }
}

fn client() -> Client {
    let builder = pandastack_http::builder_for("http:").redirect(reqwest::redirect::Policy::none());
    builder.timeout(PATIENCE).build().unwrap()
}

/// A browser with cookies for the provider and for the server.
pub struct Browser<'a> {
    world: &'a World,
    http: Client,
    provider: HashMap<String, String>,
    pub own: HashMap<String, String>,
}

impl<'a> Browser<'a> {
    pub fn new(world: &'a World) -> Self {
        Self { world, http: client(), provider: HashMap::new(), own: HashMap::new() }
    }

    /// Starts to sign in; where the server sends the browser.
    pub async fn begin(&mut self) -> String {
        let request = self.http.get(format!("{}/v1/login/start", self.world.base));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 303);
        keep(&mut self.own, &response);
        assert_eq!(self.own[ATTEMPT_COOKIE].len(), 64);
        location(&response).unwrap()
    }

    /// Signs in at the provider and agrees; the address to which it sends the browser back.
    pub async fn authorize(&mut self, url: &str, name: &str) -> String {
        let mut url = url.to_owned();
        for _ in 0..20 {
            if url.starts_with(PUBLIC_URL) {
                return url;
            }
            let mut response = self.ask_provider(self.http.get(&url)).await;
            if location(&response).is_none() {
                let page = response.text().await.unwrap();
                // A person who is still signed in at the provider only has to consent.
                let form: &[_] = match page.contains("name=\"prompt\" value=\"login\"") {
                    true => &[("prompt", "login"), ("login", name), ("password", "x")],
                    false if page.contains("value=\"consent\"") => &[("prompt", "consent")],
                    false => return page,
                };
                response = self.ask_provider(form_of(self.http.post(&url), form.iter().copied())).await;
            }
            match location(&response) {
                Some(next) => url = next,
                None => return response.text().await.unwrap(),
            }
        }
        panic!("no end of redirects: {url}");
    }

    async fn ask_provider(&mut self, request: reqwest::RequestBuilder) -> Response {
        let response = request.header("cookie", joined(&self.provider)).send().await.unwrap();
        keep(&mut self.provider, &response);
        response
    }

    /// Confirms the code of a device.
    pub async fn confirm(&mut self, url: &str, name: &str) -> String {
        let request = self.http.get(url);
        let page = self.ask_provider(request).await.text().await.unwrap();
        let field = |name: &str| {
            let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let form =
            [("xsrf", field("xsrf")), ("user_code", field("user_code")), ("confirm", "yes".to_owned())];
        let address = url.split('?').next().unwrap();
        let form = form.iter().map(|(name, value)| (*name, value.as_str()));
        let request = form_of(self.http.post(address), form);
        let response = self.ask_provider(request).await;
        let next = location(&response).unwrap();
        self.authorize(&next, name).await
    }

    /// Follows the address of the provider's answer to the server.
    pub async fn come_back(&mut self, callback: &str) -> Answer {
        let path = callback.strip_prefix(PUBLIC_URL).unwrap();
        let request = self.http.get(format!("{}{path}", self.world.base));
        let request = request.header("cookie", joined(&self.own)).header("user-agent", "Test/1");
        let response = request.send().await.unwrap();
        keep(&mut self.own, &response);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Answer { status, headers, json: response.json().await.unwrap_or_default() }
    }

    /// All of it.
    pub async fn sign_in(&mut self, name: &str) -> Answer {
        let url = self.begin().await;
        let callback = self.authorize(&url, name).await;
        self.come_back(&callback).await
    }

    /// A call of the console's own page.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Answer {
        let request = self.http.request(method, format!("{}{path}", self.world.base)).json(&body);
        let request = request.header("cookie", joined(&self.own)).header("origin", &self.world.base);
        self.world.send(request.header("sec-fetch-site", "same-origin")).await
    }
}

/// A request as a browser sends a form.
fn form_of<'a>(
    request: reqwest::RequestBuilder,
    fields: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> reqwest::RequestBuilder {
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    request.header("content-type", "application/x-www-form-urlencoded").body(body)
}

fn location(response: &Response) -> Option<String> {
    let given = response.headers().get("location")?.to_str().unwrap();
    Some(response.url().join(given).unwrap().to_string())
}

fn keep(jar: &mut HashMap<String, String>, response: &Response) {
    for line in response.headers().get_all("set-cookie") {
        let pair = line.to_str().unwrap().split(';').next().unwrap();
        let (name, value) = pair.split_once('=').unwrap();
        match value.is_empty() {
            true => jar.remove(name),
            false => jar.insert(name.to_owned(), value.to_owned()),
        };
    }
}

fn joined(jar: &HashMap<String, String>) -> String {
    jar.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
}
