//! Errors of joining and of certificates.

use std::path::PathBuf;

/// Reason why a certificate, a token or a join was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The request for a certificate cannot be used.
    #[error("the certificate request is invalid: {0}; use the `pandastack` of the same version on the host")]
    Request(String),
    /// A certificate could not be made or read.
    #[error("the certificate of {subject} cannot be used: {reason}")]
    Certificate {
        /// Whose certificate.
        subject: String,
        /// Reason.
        reason: String,
    },
    /// The text is not a join token.
    #[error("the join token is malformed; copy the whole output of `pandastack host token`")]
    Token,
    /// The system gives no random bytes.
    #[error("no random bytes are available: {0}")]
    NoRandom(String),
    /// The file with the host's certificate cannot be used.
    #[error("cannot use the host's certificate {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// Control did not answer.
    #[error(
        "cannot reach control at {address}; check the address and that it was started with --agents-listen"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// Reason.
        #[source]
        source: reqwest::Error,
    },
    /// Control refused.
    #[error("control at {address} refused the request: {reason}")]
    Refused {
        /// The address.
        address: String,
        /// Its reason.
        reason: String,
    },
}

impl FleetError {
    pub(crate) fn certificate(subject: &str, reason: impl std::fmt::Display) -> Self {
        Self::Certificate { subject: subject.to_owned(), reason: reason.to_string() }
    }
}
