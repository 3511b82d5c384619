//! A host joins, and keeps its certificate current.

use std::time::Duration;

use jiff::Timestamp;
use pandastack_types::agent_api::{CertificateRequest, IssuedCertificate, JoinRequest, internal};
use pandastack_types::host_identity::HostRole;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::{ErrorBody, HostId, chain};
use reqwest::{Client, RequestBuilder};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::credentials::{CredentialFile, Credentials, KeyRequest};
use crate::error::FleetError;
use crate::tls::{HostTls, to_unjoined_control};
use crate::token::{Fingerprint, JoinToken};

/// Longest time for control to answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Longest pause between attempts to renew a certificate.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Addresses of control servers, as hosts with a certificate use them.
#[derive(Debug, Clone)]
pub struct Control(Vec<String>);

impl Control {
    /// Addresses separated by commas. `http://` becomes `https://`: a host with a certificate sends nothing
    /// in plain text.
    pub fn parse(addresses: &str) -> Self {
        Self(addresses.split(',').map(Self::secure).collect())
    }

    /// One address with TLS.
    pub fn secure(address: &str) -> String {
        let address = address.trim().trim_end_matches('/');
        let rest = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"));
        match address.starts_with("unix:") {
            true => address.to_owned(),
            false => format!("https://{}", rest.unwrap_or(address)),
        }
    }
}

/// Joins with a token: makes a key, sends the request for a certificate, and returns both. The first control
/// server that answers decides.
pub async fn join(
    control: &Control,
    token: &JoinToken,
    role: HostRole,
    host: &HostId,
) -> Result<Credentials, FleetError> {
    let config = to_unjoined_control(token.authority())?;
    let builder = Client::builder().http1_only().no_proxy().timeout(ANSWER_MAX);
    let client = built(builder.tls_backend_preconfigured(config))?;
    let key = KeyRequest::generate()?;
    let request = JoinRequest { role, host: host.clone(), request: key.request().to_owned() };
    let send =
        |address: &str| client.post(format!("{address}{}", internal::JOIN)).bearer_auth(token.presented());
    let issued = first_answer(control, &request, send).await?;
    let credentials = key.with(&issued.certificate, &issued.authority)?;
    check(&credentials, token.authority(), role, host)?;
    Ok(credentials.joined_with(Some(token.id())))
}

/// Joins as an agent with the join secret, which older installations gave to every host.
pub async fn join_with_secret(
    control: &Control,
    authority: Fingerprint,
    secret: &LinkKey,
    host: &HostId,
) -> Result<Credentials, FleetError> {
    let builder = Client::builder().http1_only().no_proxy().timeout(ANSWER_MAX);
    let client = built(builder.tls_backend_preconfigured(to_unjoined_control(authority)?))?;
    let (key, role) = (KeyRequest::generate()?, HostRole::Agent);
    let request = JoinRequest { role, host: host.clone(), request: key.request().to_owned() };
    let now = Timestamp::now().as_second();
    let signature = secret.sign(Direction::AgentToControl, host, "POST", internal::JOIN, now);
    let send =
        |address: &str| client.post(format!("{address}{}", internal::JOIN)).header(LINK_HEADER, &signature);
    let issued = first_answer(control, &request, send).await?;
    let credentials = key.with(&issued.certificate, &issued.authority)?;
    check(&credentials, authority, role, host)?;
    Ok(credentials)
}

fn built(builder: reqwest::ClientBuilder) -> Result<Client, FleetError> {
    builder.build().map_err(|error| FleetError::certificate("this host", error))
}

fn check(
    credentials: &Credentials,
    authority: Fingerprint,
    role: HostRole,
    host: &HostId,
) -> Result<(), FleetError> {
    let identity = credentials.identity();
    if credentials.authority() != authority || identity.role != role || identity.host != *host {
        return Err(FleetError::certificate(
            host.as_str(),
            "control answered with the certificate of another",
        ));
    }
    Ok(())
}

async fn first_answer(
    control: &Control,
    body: &impl Serialize,
    send: impl Fn(&str) -> RequestBuilder,
) -> Result<IssuedCertificate, FleetError> {
    let mut unreachable = FleetError::certificate("this host", "no control server is configured");
    for address in &control.0 {
        let answered = send(address).json(body).send().await;
        let failed = |source| FleetError::Unreachable { address: address.clone(), source };
        match answered {
            Err(error) => unreachable = failed(error),
            Ok(answer) if answer.status().is_success() => return answer.json().await.map_err(failed),
            Ok(answer) => {
                let (status, text) = (answer.status(), answer.text().await.unwrap_or_default());
                let said = serde_json::from_str::<ErrorBody>(&text).map(|body| body.error);
                let reason = said.unwrap_or_else(|_| format!("status {status}"));
                return Err(FleetError::Refused { address: address.clone(), reason });
            }
        }
    }
    Err(unreachable)
}

/// Renews the certificate of this host before it ends, until `stop`. Each renewal makes a new key.
pub async fn keep_current(tls: &HostTls, control: &Control, file: &CredentialFile, stop: &CancellationToken) {
    loop {
        let credentials = tls.credentials();
        let now = Timestamp::now();
        let wait = credentials.renew_in(now);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let error = match renew(tls, control, file).await {
            Ok(renewed) => {
                tracing::info!(until = %renewed.expires_at(), "renewed the certificate of this host");
                tls.replace(renewed);
                continue;
            }
            Err(error) => error,
        };
        let until = credentials.expires_at();
        tracing::warn!(error = %chain(&error), %until, "cannot renew the certificate; trying again");
        let left = until.duration_since(Timestamp::now()).unsigned_abs();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep((left / 20).clamp(Duration::from_millis(200), RETRY_MAX)) => {}
        }
    }
}

async fn renew(tls: &HostTls, control: &Control, file: &CredentialFile) -> Result<Credentials, FleetError> {
    let before = tls.credentials();
    let builder = Client::builder().http1_only().no_proxy().timeout(ANSWER_MAX);
    let client = built(builder.tls_backend_preconfigured(tls.to_control()?))?;
    let key = KeyRequest::generate()?;
    let request = CertificateRequest { request: key.request().to_owned() };
    let send = |address: &str| client.post(format!("{address}{}", internal::CERTIFICATE));
    let issued = first_answer(control, &request, send).await?;
    let renewed = key.with(&issued.certificate, &issued.authority)?.joined_with(before.token());
    check(&renewed, before.authority(), before.identity().role, &before.identity().host)?;
    file.write(&renewed)?;
    Ok(renewed)
}
