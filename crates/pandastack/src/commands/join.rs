//! How a host joins the installation: `--join` of `pandastack agent` and `pandastack edge`.

use std::path::Path;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_fleet::{Control, CredentialFile, Credentials, HostTls, JoinToken};
use pandastack_types::HostId;
use pandastack_types::host_identity::HostRole;

use crate::failure::Failure;

/// Options of hosts that join.
#[derive(Debug, Clone, clap::Args)]
pub struct JoinArgs {
    /// Join the installation with this token of `pandastack host token`; ignored once it was used
    #[arg(long, env = "PANDASTACK_JOIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    join: Option<String>,
}

/// A host with its certificate.
pub struct Joined {
    /// Its credentials.
    pub tls: HostTls,
    /// The file in which they are kept.
    pub file: CredentialFile,
}

impl JoinArgs {
    /// Whether the host has a certificate in this directory, or joins now.
    pub fn applies(&self, dir: &Path) -> bool {
        self.join.is_some() || CredentialFile::of(dir).path().exists()
    }

    /// The host's certificate; joins first if the token was not used yet. `None` for a host that has none and
    /// no token.
    pub async fn joined(
        &self,
        dir: &Path,
        control: Option<&str>,
        role: HostRole,
        host: &HostId,
    ) -> Result<Option<Joined>> {
        let file = CredentialFile::of(dir);
        let (kept, token) = (file.read()?, self.token()?);
        let credentials = match (kept, token) {
            (None, None) => return Ok(None),
            (Some(kept), None) => kept,
            (Some(kept), Some(token)) if kept.token() == Some(token.id()) => kept,
            (_, Some(token)) => {
                let control = control.filter(|address| !address.contains("unix:")).ok_or_else(|| {
                    Failure::new("--join needs the address of the control server")
                        .hint("set --control to the https:// address of its --agents-listen")
                })?;
                let joined = pandastack_fleet::join(&Control::parse(control), &token, role, host).await?;
                file.write(&joined)?;
                tracing::info!(identity = %joined.identity(), until = %joined.expires_at(), "joined");
                joined
            }
        };
        check(&credentials, role, host, &file)?;
        Ok(Some(Joined { tls: HostTls::new(credentials)?, file }))
    }

    fn token(&self) -> Result<Option<JoinToken>> {
        Ok(self.join.as_deref().filter(|text| !text.is_empty()).map(str::parse).transpose()?)
    }
}

fn check(credentials: &Credentials, role: HostRole, host: &HostId, file: &CredentialFile) -> Result<()> {
    let identity = credentials.identity();
    let again = format!("join again with `--join` and a token of `pandastack host token --host {host}`");
    if identity.role != role || identity.host != *host {
        let file = file.path().display();
        let failure = Failure::new(format!(
            "{file} is the certificate of {} `{}`, not of {role} `{host}`",
            identity.role, identity.host
        ));
        return Err(failure.hint(again).into());
    }
    if credentials.has_expired(Timestamp::now()) {
        let failure =
            Failure::new(format!("the certificate of this host expired at {}", credentials.expires_at()));
        return Err(failure.hint(again).into());
    }
    Ok(())
}
