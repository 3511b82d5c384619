//! Every path of control's private API: what agents, edges and other control servers call there.
//!
//! A line of the table is a route with its parameters in braces, and a function that fills them in.

use super::endpoint::Segment;
use crate::{HostId, SandboxId};

/// `NAME, function(parameters) = "path";`
///
/// That the braces in the path and the parameters are the same is checked by `format!`.
macro_rules! paths {
    ($($(#[$doc:meta])* $name:ident, $fill:ident($($param:ident: $type:ty),*) = $path:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $name: &str = $path;

            #[doc = concat!("The path of one call of [`", stringify!($name), "`].")]
            pub fn $fill($($param: $type),*) -> String {
                format!($path, $($param = Segment(&$param)),*)
            }
        )*

        /// The table.
        pub const ALL: &[&str] = &[$($name,)*];
    };
}

/// Prefix of agents' calls. Only the leading control server answers them.
pub const HOSTS: &str = "/internal/v1/hosts/";

paths! {
    /// `POST`: an agent sends a [`HostReport`](super::HostReport) and reads a
    /// [`ReportAnswer`](super::ReportAnswer).
    HOST_REPORT, host_report(host: &HostId) = "/internal/v1/hosts/{host}/report";
    /// `GET`, upgraded to [`DATABASE_UPGRADE`](super::DATABASE_UPGRADE): a machine connects to its databases.
    DATABASES, databases(sandbox: &SandboxId) = "/internal/v1/databases/{sandbox}";
    /// `GET`: an edge asks what stands behind a host name ([`EdgeName`](super::EdgeName)).
    EDGE_NAME, edge_name(name: &str) = "/internal/v1/names/{name}";
    /// `GET`: an edge follows changes of routes, one per line.
    ROUTE_CHANGES, route_changes() = "/internal/v1/routes";
    /// `GET`: an edge asks for the route of a sandbox ([`EdgeRoute`](super::EdgeRoute)).
    EDGE_ROUTE, edge_route(sandbox: &SandboxId) = "/internal/v1/routes/{sandbox}";
    /// `GET`: the state of the join secret
    /// ([`SecretStatus`](crate::secret_ring::SecretStatus)). `POST`: the server reads the secret's file again
    /// and seals all rows with its current generation.
    SECRETS, secrets() = "/internal/v1/secrets";
    /// `POST`: a host sends a [`JoinRequest`](super::JoinRequest) with a join token, and reads an
    /// [`IssuedCertificate`](super::IssuedCertificate).
    JOIN, join() = "/internal/v1/join";
    /// `POST`: a host renews its certificate with a [`CertificateRequest`](super::CertificateRequest), and
    /// reads an [`IssuedCertificate`](super::IssuedCertificate).
    CERTIFICATE, certificate() = "/internal/v1/certificate";
    /// `GET`: another control server asks what is in flight here.
    IN_FLIGHT, in_flight() = "/internal/v1/in-flight";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_paths_are_stable() {
        let sandbox: SandboxId = "s1".parse().unwrap();
        let report = host_report(&"host-a".parse().unwrap());
        assert_eq!(report, "/internal/v1/hosts/host-a/report");
        assert!(report.starts_with(HOSTS));
        assert_eq!(databases(&sandbox), "/internal/v1/databases/s1");
        assert_eq!(edge_route(&sandbox), "/internal/v1/routes/s1");
        assert_eq!(edge_name("shop.example.com"), "/internal/v1/names/shop.example.com");
        assert_eq!(edge_name("a/../b"), "/internal/v1/names/a%2F..%2Fb");
        assert_eq!((route_changes().as_str(), in_flight().as_str()), (ROUTE_CHANGES, IN_FLIGHT));
        assert!(ALL.iter().all(|path| path.starts_with("/internal/v1/")));
    }
}
