//! Passwords of databases: derived from the installation's join secret, the database and a count of
//! resets. Nothing secret is stored, and a password can always be shown again to an authorized
//! caller.

use std::collections::BTreeMap;

use pandastack_postgres::Credentials;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::DatabaseId;
use pandastack_types::link::LinkKey;
use subtle::ConstantTimeEq;

/// The tenant's role, and the database it owns.
pub(super) const TENANT: &str = "app";
pub(super) const DATABASE: &str = "app";
/// The superuser. Tenants never learn its password.
pub(super) const ADMINISTRATOR: &str = "pandastack";
/// The superuser's database.
const MAINTENANCE: &str = "postgres";
/// The superuser's password in the template, replaced before a new database is reachable.
const FIRST_PASSWORD: &str = "pandastack";
/// Hex digits of a password: 128 bits.
const PASSWORD_CHARS: usize = 32;

fn shortened(mut digits: String) -> String {
    digits.truncate(PASSWORD_CHARS);
    digits
}

/// Derived from the generation of the secret that was current when the password was last set: a
/// rotation of the secret changes no password, and a reset moves the password to the new
/// generation.
fn of_tenant(link: &LinkKey, purpose: &str, record: &DatabaseRecord) -> String {
    let parts = [record.id.as_str(), &record.spec.revision.to_string()];
    let generation = record.spec.secret_generation.max(1);
    let digits = link.derive_with(generation, purpose, &parts);
    // The server does not start without the generations that it once had.
    shortened(digits.unwrap_or_else(|| link.derive(purpose, &parts)))
}

/// The tenant's password.
pub(super) fn password(link: &LinkKey, record: &DatabaseRecord) -> String {
    of_tenant(link, "database-password", record)
}

/// Token for the broker of one database.
pub(super) fn broker_token(link: &LinkKey, record: &DatabaseRecord) -> String {
    of_tenant(link, "database-broker", record)
}

/// Returns whether this is the broker's token.
pub(super) fn is_broker_token(link: &LinkKey, record: &DatabaseRecord, given: &str) -> bool {
    broker_token(link, record).as_bytes().ct_eq(given.as_bytes()).into()
}

/// The superuser's password. It is set once, when a database is created, and is useless outside the host.
fn administrator_password(link: &LinkKey, id: &DatabaseId) -> String {
    shortened(link.derive_lasting("database-administrator", &[id.as_str()]))
}

fn credentials(user: &str, password: String, database: &str) -> Credentials {
    let parameters = BTreeMap::from([("application_name".to_owned(), "pandastack".to_owned())]);
    Credentials { user: user.to_owned(), password, database: database.to_owned(), parameters }
}

/// The tenant's credentials for a database of its server.
pub(super) fn tenant(link: &LinkKey, record: &DatabaseRecord, database: &str) -> Credentials {
    credentials(TENANT, password(link, record), database)
}

/// The superuser's credentials for a database, or with `None` for the template.
pub(super) fn administrator(link: &LinkKey, id: Option<&DatabaseId>) -> Credentials {
    let password = id.map_or_else(|| FIRST_PASSWORD.to_owned(), |id| administrator_password(link, id));
    let mut credentials = credentials(ADMINISTRATOR, password, MAINTENANCE);
    // Passwords are set also where the disk is full, which makes everybody else's transactions read only.
    credentials.parameters.insert("default_transaction_read_only".to_owned(), "off".to_owned());
    credentials
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::clock::now;
    use pandastack_store::databases::{DatabaseSpecRecord, DatabaseState};
    use pandastack_types::WorkspaceId;

    #[test]
    fn every_database_and_reset_has_its_own_password() {
        let link = LinkKey::new(&[7; 32]).unwrap();
        let record = |revision| DatabaseRecord {
            id: "a".parse().unwrap(),
            workspace: WorkspaceId::default_workspace(),
            state: DatabaseState::Ready,
            sandbox: None,
            created_at: now(),
            drill: None,
            spec: DatabaseSpecRecord { revision, ..Default::default() },
        };
        let (first, second) = (record(0), record(1));
        let other = DatabaseRecord { id: "b".parse().unwrap(), ..record(0) };
        let all = [&first, &second, &other].map(|record| password(&link, record));
        assert!(all.iter().all(|password| password.len() == PASSWORD_CHARS));
        assert_ne!(all[0], all[1]);
        assert_ne!(all[0], all[2]);
        assert_ne!(all[0], broker_token(&link, &first));
        assert!(is_broker_token(&link, &first, &broker_token(&link, &first)));
        assert!(!is_broker_token(&link, &second, &broker_token(&link, &first)));
    }

    #[test]
    fn a_rotation_changes_no_password_and_a_reset_uses_the_new_secret() {
        let link = LinkKey::new(&[7; 32]).unwrap();
        let record = |secret_generation| DatabaseRecord {
            id: "a".parse().unwrap(),
            workspace: WorkspaceId::default_workspace(),
            state: DatabaseState::Ready,
            sandbox: None,
            created_at: now(),
            drill: None,
            spec: DatabaseSpecRecord { revision: 1, secret_generation, ..Default::default() },
        };
        let before = (password(&link, &record(0)), administrator(&link, Some(&record(0).id)).password);
        let mut ring = link.ring();
        ring.stage(&[8; 32]).unwrap();
        ring.activate();
        ring.finish().unwrap();
        link.replace(ring);
        assert_eq!(before, (password(&link, &record(1)), administrator(&link, Some(&record(0).id)).password));
        assert_ne!(before.0, password(&link, &record(2)));
    }
}
