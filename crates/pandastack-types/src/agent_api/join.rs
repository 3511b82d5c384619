//! Requests of hosts for certificates.

use serde::{Deserialize, Serialize};

use crate::HostId;
use crate::host_identity::HostRole;

/// A host that joins: `POST /internal/v1/join`, with the join token as `Authorization: Bearer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Its role.
    pub role: HostRole,
    /// Its id.
    pub host: HostId,
    /// A request for a certificate (PKCS #10), PEM. Only its key is used.
    pub request: String,
}

/// A host that renews its certificate: `POST /internal/v1/certificate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRequest {
    /// A request for a certificate (PKCS #10), PEM. Only its key is used.
    pub request: String,
}

/// A certificate for a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCertificate {
    /// The host's certificate, PEM.
    pub certificate: String,
    /// The certificate of the authority, PEM.
    pub authority: String,
}
