//! The address that clients of databases connect to.

use pandastack_types::DatabaseId;

use crate::credentials::{DATABASE, TENANT};

/// The public address of the database server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicAddress {
    /// Below it every database has a name: `<id>.<domain>`. Without one they are distinguished by
    /// an option.
    pub domain: Option<String>,
    /// Host name or address to use without a domain.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl PublicAddress {
    pub(crate) fn url(&self, id: &DatabaseId, password: &str, port: u16, pooler: bool) -> String {
        let label = format!("{id}{}", if pooler { "-pooler" } else { "" });
        match &self.domain {
            Some(domain) => {
                format!("postgresql://{TENANT}:{password}@{label}.{domain}:{port}/{DATABASE}?sslmode=require")
            }
            // Include the name even if the database has its own port: over HTTP only the string
            // identifies the database.
            None => format!(
                "postgresql://{TENANT}:{password}@{}:{port}/{DATABASE}?sslmode=require&options=endpoint%3D{label}",
                self.host
            ),
        }
    }

    pub(crate) fn host_of(&self, id: &DatabaseId) -> String {
        self.domain.as_ref().map_or_else(|| self.host.clone(), |domain| format!("{id}.{domain}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_urls_work_with_and_without_a_domain() {
        let id: DatabaseId = "a1".parse().unwrap();
        let named =
            PublicAddress { domain: Some("pg.example.com".into()), host: "127.0.0.1".into(), port: 5432 };
        assert_eq!(
            named.url(&id, "pw", 5432, true),
            "postgresql://app:pw@a1-pooler.pg.example.com:5432/app?sslmode=require"
        );
        let plain = PublicAddress { domain: None, ..named };
        assert_eq!(
            plain.url(&id, "pw", 15432, false),
            "postgresql://app:pw@127.0.0.1:15432/app?sslmode=require&options=endpoint%3Da1"
        );
    }
}
