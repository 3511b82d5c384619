//! A PostgreSQL client that logs in with a password, for clients that do not use the protocol
//! themselves.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use pandastack_types::chain;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backend::{Backend, ConnectError, Databases};
use crate::endpoint::Endpoint;
use crate::limits::{GREETING_BYTES_MAX, LOGIN_MESSAGE_BYTES_MAX, LOGIN_WAIT};
use crate::query::SqlError;
use crate::startup::Startup;
use crate::startup_retry::{RetryDeadline, is_not_yet};
use crate::wire::{Fatal, take};

/// Tests do not wait that long.
const WAIT: Duration = if cfg!(test) { Duration::from_secs(2) } else { LOGIN_WAIT };

/// Credentials and database of a login.
#[derive(Clone)]
pub struct Credentials {
    /// Role.
    pub user: String,
    /// The role's password.
    pub password: String,
    /// Database in the server.
    pub database: String,
    /// Settings of the session.
    pub parameters: BTreeMap<String, String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({}@{})", self.user, self.database)
    }
}

/// Reason why a session could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// No way to the server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server refused, or a statement failed.
    #[error(transparent)]
    Sql(Box<SqlError>),
    /// The connection broke, or the server sent an unexpected message.
    #[error("the connection to the database was lost")]
    Broken(#[from] std::io::Error),
    /// The login took too long.
    #[error("the login to the database timed out after {} s", LOGIN_WAIT.as_secs())]
    Late,
}

impl From<SqlError> for LoginError {
    fn from(error: SqlError) -> Self {
        LoginError::Sql(Box::new(error))
    }
}

impl LoginError {
    /// Returns whether another attempt may succeed: the server takes no sessions for the moment,
    /// closed the connection before it answered, or never answered.
    fn is_not_yet(&self) -> bool {
        match self {
            LoginError::Sql(error) => is_not_yet(&error.code),
            LoginError::Broken(error) => matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
            ),
            LoginError::Late => true,
            LoginError::Connect(_) => false,
        }
    }
}

/// An open session. It ends when dropped.
pub struct Session {
    pub(crate) backend: Backend,
    pub(crate) buffer: BytesMut,
    /// Numbers with which a query of it can be cancelled.
    key: Option<(i32, i32)>,
    /// The server's description of itself: `ParameterStatus` messages.
    pub(crate) greeting: Vec<Bytes>,
}

impl Session {
    /// Connects and logs in. A sleeping database is woken, and a server that takes no sessions yet is waited for.
    pub async fn open(
        databases: &dyn Databases,
        endpoint: &Endpoint,
        credentials: &Credentials,
    ) -> Result<Self, LoginError> {
        let patience = RetryDeadline::new();
        loop {
            match Self::over(databases.connect(endpoint).await?, credentials).await {
                Err(error) if error.is_not_yet() && patience.is_left().await => match error {
                    LoginError::Late => {
                        tracing::warn!(database = %endpoint.database, "a login timed out; retrying")
                    }
                    error => tracing::debug!(error = %chain(&error), "retrying a login"),
                },
                opened => return opened,
            }
        }
    }

    /// Logs in over a way that is open already.
    pub async fn over(backend: Backend, credentials: &Credentials) -> Result<Self, LoginError> {
        let mut session = Self::resumed(backend);
        let cut = session.backend.cut.clone();
        tokio::select! {
            logged_in = tokio::time::timeout(WAIT, session.log_in(credentials)) => {
                logged_in.map_err(|_| LoginError::Late)??;
            }
            () = cut.cancelled() => return Err(SqlError::from(Fatal::asleep()).into()),
        }
        Ok(session)
    }

    /// Continues a session that was already logged in: its server waits for a statement.
    pub fn resumed(mut backend: Backend) -> Self {
        backend.in_use.set_busy(true);
        Self { backend, buffer: BytesMut::new(), key: None, greeting: Vec::new() }
    }

    pub(crate) async fn log_in(&mut self, credentials: &Credentials) -> Result<(), LoginError> {
        let mut parameters = credentials.parameters.clone();
        parameters.insert("user".to_owned(), credentials.user.clone());
        parameters.insert("database".to_owned(), credentials.database.clone());
        parameters.insert("client_encoding".to_owned(), "UTF8".to_owned());
        self.send(&Startup { parameters, newer: None }.encode()).await?;
        self.authenticate(&credentials.password).await?;
        self.read_greeting().await
    }

    /// Reads up to the server's first `ReadyForQuery`.
    pub(crate) async fn read_greeting(&mut self) -> Result<(), LoginError> {
        let mut greeting_bytes = 0;
        loop {
            let (kind, body) = self.receive(LOGIN_MESSAGE_BYTES_MAX).await?;
            match (kind, body.as_ref()) {
                (b'S', _) => {
                    greeting_bytes += body.len() + size_of::<Bytes>();
                    if greeting_bytes > GREETING_BYTES_MAX {
                        return Err(unexpected_message("too many parameters").into());
                    }
                    // A part of a large read would keep all of it.
                    self.greeting.push(Bytes::copy_from_slice(&body));
                }
                (b'K', [a, b, c, d, e, f, g, h, ..]) => {
                    let number = |bytes| i32::from_be_bytes(bytes);
                    self.key = Some((number([*a, *b, *c, *d]), number([*e, *f, *g, *h])));
                }
                (b'Z', _) => return Ok(()),
                (b'E', _) => return Err(SqlError::parse(&body).into()),
                _ => {}
            }
        }
    }

    /// Authenticates by SCRAM only, which proves the password to the server and vice versa: the
    /// server is a tenant's machine, and must not be able to request the password itself.
    async fn authenticate(&mut self, password: &str) -> Result<(), LoginError> {
        let (mut scram, mut is_proven) = (None, false);
        loop {
            let (kind, body) = self.receive(LOGIN_MESSAGE_BYTES_MAX).await?;
            if kind == b'E' {
                return Err(SqlError::parse(&body).into());
            }
            let mut out = BytesMut::new();
            match parse(kind, &body)? {
                Message::AuthenticationOk if is_proven => return Ok(()),
                // A server that does not prove that it knows the password may be an impostor.
                Message::AuthenticationOk => {
                    return Err(unexpected_message("an acceptance without proof").into());
                }
                Message::AuthenticationSasl(offer) if offers_scram(&offer)? => {
                    let begun = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
                    frontend::sasl_initial_response(SCRAM_SHA_256, begun.message(), &mut out)?;
                    scram = Some(begun);
                }
                Message::AuthenticationSaslContinue(challenge) => {
                    let scram =
                        scram.as_mut().ok_or_else(|| unexpected_message("an unexpected SASL challenge"))?;
                    scram.update(challenge.data())?;
                    frontend::sasl_response(scram.message(), &mut out)?;
                }
                Message::AuthenticationSaslFinal(proof) => {
                    scram
                        .as_mut()
                        .ok_or_else(|| unexpected_message("an unexpected SASL proof"))?
                        .finish(proof.data())?;
                    is_proven = true;
                    continue;
                }
                _ => return Err(unexpected_message("an unsupported authentication method").into()),
            }
            self.send(&out).await?;
        }
    }

    /// Sends messages unchanged, for commands other than plain statements, such as replication. Not
    /// cancel safe.
    pub async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.backend.stream.write_all(bytes).await?;
        self.backend.stream.flush().await
    }

    /// The next message: its kind and body. A longer message is an error. Cancel safe.
    pub async fn receive(&mut self, bytes_max: usize) -> std::io::Result<(u8, Bytes)> {
        loop {
            if let Some(message) = take(&mut self.buffer, bytes_max).map_err(std::io::Error::other)? {
                return Ok(message);
            }
            if self.backend.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// A parameter that the server reported at the login, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.greeting.iter().filter_map(|body| {
            let mut parts = body.split(|byte| *byte == 0);
            Some((parts.next()?, parts.next()?))
        });
        let (_, value) = pairs.find(|(key, _)| *key == name.as_bytes())?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// The numbers for cancel requests.
    pub(crate) fn key(&self) -> Option<(i32, i32)> {
        self.key
    }

    /// Closes the session.
    pub async fn close(mut self) {
        // A server that ended needs no Terminate message, and a paused one cannot receive it.
        if self.backend.cut.is_cancelled() {
            return;
        }
        let _ = self.send(&[b'X', 0, 0, 0, 4]).await;
    }
}

fn parse(kind: u8, body: &Bytes) -> std::io::Result<Message> {
    let mut whole = BytesMut::from(&crate::wire::message(kind, body)[..]);
    Message::parse(&mut whole)?.ok_or_else(|| unexpected_message("an incomplete message"))
}

fn offers_scram(offer: &AuthenticationSaslBody) -> std::io::Result<bool> {
    offer.mechanisms().any(|name| Ok(name == SCRAM_SHA_256))
}

fn unexpected_message(what: &str) -> std::io::Error {
    std::io::Error::other(format!("the server sent {what}"))
}

/// The verifier that a server stores in place of a password, with a fresh salt.
pub fn scram_verifier(password: &str) -> String {
    postgres_protocol::password::scram_sha_256(password.as_bytes())
}
