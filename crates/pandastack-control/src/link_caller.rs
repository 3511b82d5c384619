//! The sender of a request to the private API. [`crate::fleet::caller`] finds it out.

use http::Extensions;
use pandastack_types::host_identity::{HostIdentity, HostRole};
use pandastack_types::{Error, ErrorCode, HostId, Result};

/// The sender of a request to the private API. Extension of the request; nothing from the network sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkCaller {
    /// A member, by its certificate.
    Member(HostIdentity),
    /// A process that has the join secret, under the name that it gave.
    Secret(HostId),
}

impl LinkCaller {
    /// The sender of an identified request.
    pub(crate) fn of(extensions: &Extensions) -> Result<&Self> {
        extensions
            .get()
            .ok_or_else(|| Error::new(ErrorCode::Unauthorized, "the sender of this request is unknown"))
    }

    /// The sender, which must be in this role.
    pub(crate) fn in_role(&self, role: HostRole) -> Result<&HostId> {
        match self {
            LinkCaller::Secret(host) => Ok(host),
            LinkCaller::Member(member) if member.role == role => Ok(&member.host),
            LinkCaller::Member(member) => Err(Error::new(
                ErrorCode::Forbidden,
                format!(
                    "host `{}` joined as {}, and only the role {role} may do this",
                    member.host, member.role
                ),
            )),
        }
    }

    /// The sender, which must be a process with the join secret.
    pub(crate) fn with_secret(&self) -> Result<&HostId> {
        match self {
            LinkCaller::Secret(host) => Ok(host),
            LinkCaller::Member(member) => Err(Error::new(
                ErrorCode::Forbidden,
                format!("host `{}` cannot do this; only control servers can", member.host),
            )),
        }
    }
}
