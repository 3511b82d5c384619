//! Users of the machine, from `/etc/passwd` and `/etc/group`. Read directly: a static program cannot load
//! name service modules, and images have only these files.

use std::path::Path;

use pandastack_guest_proto::message::{ErrorBody, ErrorCode};

use super::clone::Credentials;

/// A user who can run processes and own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) shell: String,
    pub(crate) credentials: Credentials,
}

impl User {
    /// Finds a user by name or number. Root is always there.
    pub(crate) fn find(root: &Path, name: &str) -> Result<Self, ErrorBody> {
        let passwd = std::fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
        // Most processes are root's, and groups mean nothing to root.
        let group = match name {
            "root" | "0" => String::new(),
            _ => std::fs::read_to_string(root.join("etc/group")).unwrap_or_default(),
        };
        parse(&passwd, &group, name)
            .or_else(|| (name == "root" || name == "0").then(Self::fallback_root))
            .ok_or_else(|| {
                ErrorBody::new(
                    ErrorCode::NotFound,
                    format!("user {name:?} is not in the machine's /etc/passwd"),
                )
            })
    }

    fn fallback_root() -> Self {
        Self {
            name: "root".to_owned(),
            home: "/root".to_owned(),
            shell: "/bin/sh".to_owned(),
            credentials: Credentials { uid: 0, gid: 0, groups: vec![0] },
        }
    }
}

fn parse(passwd: &str, group: &str, wanted: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields[..] else { return None };
        if name != wanted && uid != wanted {
            return None;
        }
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        let mut groups: Vec<u32> = std::iter::once(gid).chain(groups_of(group, name)).collect();
        groups.dedup();
        let home = if home.is_empty() { "/" } else { home };
        let shell = if shell.is_empty() { "/bin/sh" } else { shell };
        Some(User {
            name: name.to_owned(),
            home: home.to_owned(),
            shell: shell.to_owned(),
            credentials: Credentials { uid, gid, groups },
        })
    })
}

fn groups_of<'a>(group: &'a str, user: &'a str) -> impl Iterator<Item = u32> + 'a {
    group.lines().filter_map(move |line| {
        let mut fields = line.split(':').skip(2);
        let (gid, members) = (fields.next()?, fields.next()?);
        members.split(',').any(|member| member == user).then(|| gid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:\nbroken line\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:user,other\nuser:x:1000:\ndocker:x:99:user\n";

    #[test]
    fn users_are_found_by_name_and_number() {
        let user = parse(PASSWD, GROUP, "user").unwrap();
        assert_eq!(user.credentials, Credentials { uid: 1000, gid: 1000, groups: vec![1000, 27, 99] });
        assert_eq!((user.home.as_str(), user.shell.as_str()), ("/home/user", "/bin/sh"));
        assert_eq!(parse(PASSWD, GROUP, "1000"), Some(user));
        assert_eq!(parse(PASSWD, GROUP, "nobody"), None);
    }

    #[test]
    fn root_is_there_without_any_file() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(User::find(empty.path(), "root").unwrap().home, "/root");
        assert_eq!(User::find(empty.path(), "user").unwrap_err().code, ErrorCode::NotFound);
    }
}
