//! Determines which database a client wants.
//!
//! ```text
//!   SNI or Host:  <id>.<domain>             PostgreSQL itself, below the domain of this installation
//!                 <id>-pooler.<domain>      its pooler
//!                 <id>.pg.<anything>        the same below any domain that begins with `pg` or `db`
//!   without DNS:  options=endpoint=<id>     in the startup parameters (`project=` as older clients have it)
//!                 a port of its own         of a listener that serves one database
//! ```
//!
//! Several may be given if they agree. The option is taken out before the server sees it.

/// Second label of a database's host name. `db` is the form of first-generation clients.
const LABELS: [&str; 2] = ["pg", "db"];
/// End of the id in a pooler's host name.
const POOLER_SUFFIX: &str = "-pooler";
/// Host names of the broker, which serves every database.
const RESERVED: [&str; 2] = ["api", "apiauth"];
/// Options that name a database.
const OPTIONS: [&str; 2] = ["endpoint=", "project="];

/// A listener in a database's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Listener {
    /// PostgreSQL.
    Direct,
    /// PgBouncer, in transaction mode.
    Pooler,
}

impl Listener {
    /// Port in the machine.
    pub fn port(self) -> u16 {
        match self {
            Listener::Direct => 5432,
            Listener::Pooler => 6432,
        }
    }
}

/// A database and the way into it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The database's id, as the client wrote it.
    pub database: String,
    /// The way.
    pub listener: Listener,
}

/// Reason why an endpoint names no database.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoEndpoint {
    #[error("the client did not name a database")]
    Unnamed,
    #[error("the host name names database `{name}`, but the endpoint option names `{option}`")]
    Differ { name: String, option: String },
    // The message does not name the port's database: the client is not logged in.
    #[error("this port does not belong to database `{0}`")]
    OtherPort(String),
}

impl Endpoint {
    /// From an id, with `-pooler` for the pooler.
    pub fn from_label(label: &str) -> Option<Self> {
        let label = label.to_ascii_lowercase();
        let (database, listener) = match label.strip_suffix(POOLER_SUFFIX) {
            Some(id) => (id.to_owned(), Listener::Pooler),
            None => (label, Listener::Direct),
        };
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_id = !database.is_empty() && database.len() <= 63 && database.bytes().all(good);
        (is_id && !RESERVED.contains(&database.as_str())).then_some(Self { database, listener })
    }

    /// From a host name, with or without a port, of an installation with this domain for databases.
    pub fn from_host(host: &str, domain: Option<&str>) -> Option<Self> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let (first, rest) = name.split_once('.')?;
        let second = rest.split('.').next().unwrap_or_default();
        let is_ours = domain.is_some_and(|domain| rest.eq_ignore_ascii_case(domain))
            || LABELS.contains(&second.to_ascii_lowercase().as_str());
        is_ours.then(|| Self::from_label(first)).flatten()
    }
}

/// Splits the database's name from a startup's `options`.
pub(crate) fn split_options(options: &str) -> (String, Option<String>) {
    let mut named = None;
    let is_name = |word: &&str| {
        let name = OPTIONS.iter().find_map(|start| word.strip_prefix(start));
        named = named.take().or(name.map(str::to_owned));
        name.is_none()
    };
    let rest: Vec<&str> = options.split_ascii_whitespace().filter(is_name).collect();
    (rest.join(" "), named)
}

/// Combines the database in the host name, in the option, and of the port.
pub(crate) fn choose(
    host: Option<&str>,
    option: Option<&str>,
    port: Option<&Endpoint>,
    domain: Option<&str>,
) -> Result<Endpoint, NoEndpoint> {
    let by_name = host.and_then(|host| Endpoint::from_host(host, domain));
    let by_option = option.and_then(Endpoint::from_label);
    let named = match (by_name, by_option) {
        (Some(name), Some(option)) if name != option => {
            return Err(NoEndpoint::Differ { name: name.database, option: option.database });
        }
        (name, option) => name.or(option),
    };
    match (named, port) {
        (Some(named), Some(port)) if named.database != port.database => {
            Err(NoEndpoint::OtherPort(named.database))
        }
        (Some(named), _) => Ok(named),
        (None, Some(port)) => Ok(port.clone()),
        (None, None) => Err(NoEndpoint::Unnamed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, expect: Option<(&str, Listener)>) {
        let expect = expect.map(|(id, listener)| Endpoint { database: id.to_owned(), listener });
        assert_eq!(Endpoint::from_host(host, Some("data.example.org")), expect, "{host}");
    }

    #[test]
    fn host_names_resolve_to_databases() {
        check("a1.pg.example.com", Some(("a1", Listener::Direct)));
        check("A1.PG.example.com:5432", Some(("a1", Listener::Direct)));
        check("a1-pooler.pg.localhost", Some(("a1", Listener::Pooler)));
        check("a1.db.example.com", Some(("a1", Listener::Direct)));
        check("api.pg.example.com", None);
        check("a1.example.com", None);
        check("localhost", None);
        check("-pooler.pg.x", None);
        check("a_1.pg.x", None);
        check("127.0.0.1", None);
    }

    #[test]
    fn a_custom_database_domain_is_recognized() {
        check("a1.data.example.org", Some(("a1", Listener::Direct)));
        check("a1-pooler.Data.Example.ORG:5432", Some(("a1", Listener::Pooler)));
        check("api.data.example.org", None);
        check("data.example.org", None);
        check("a1.b.data.example.org", None);
        assert_eq!(Endpoint::from_host("a1.data.example.org", None), None);
    }

    #[test]
    fn the_endpoint_option_is_extracted() {
        for (options, rest, named) in [
            ("endpoint=a1", "", Some("a1")),
            ("-c geqo=off endpoint=a1  -c jit=off", "-c geqo=off -c jit=off", Some("a1")),
            ("project=a1-pooler", "", Some("a1-pooler")),
            ("-c search_path=x", "-c search_path=x", None),
            ("", "", None),
        ] {
            assert_eq!(split_options(options), (rest.to_owned(), named.map(str::to_owned)), "{options}");
        }
    }

    #[test]
    fn the_host_name_and_the_endpoint_option_must_agree() {
        assert!(choose(Some("a1.pg.x"), Some("a1"), None, None).is_ok());
        assert!(choose(Some("localhost"), Some("a1"), None, None).is_ok());
        assert_eq!(choose(None, None, None, None), Err(NoEndpoint::Unnamed));
        let differ = NoEndpoint::Differ { name: "a1".into(), option: "a2".into() };
        assert_eq!(choose(Some("a1.pg.x"), Some("a2"), None, None), Err(differ));
    }

    #[test]
    fn a_port_serves_only_its_own_database() {
        let port = Endpoint::from_label("a1").unwrap();
        assert_eq!(choose(Some("localhost"), None, Some(&port), None), Ok(port.clone()));
        let pooler = Endpoint::from_label("a1-pooler").unwrap();
        assert_eq!(choose(None, Some("a1-pooler"), Some(&port), None), Ok(pooler));
        let other = Err(NoEndpoint::OtherPort("a2".into()));
        assert_eq!(choose(Some("a2.pg.x"), None, Some(&port), None), other);
    }
}
