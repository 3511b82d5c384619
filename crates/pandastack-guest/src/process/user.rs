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
    /// Finds a user by name or number, with a group after a colon or without. Root is always there, and so
    /// is every number: an image need not list the users that it runs as.
    pub(crate) fn find(root: &Path, wanted: &str) -> Result<Self, ErrorBody> {
        let (name, group) =
            wanted.split_once(':').map_or((wanted, None), |(name, group)| (name, Some(group)));
        let mut user = Self::find_name(root, name)?;
        if let Some(group) = group {
            let file = std::fs::read_to_string(root.join("etc/group")).unwrap_or_default();
            let gid = group_id(&file, group).ok_or_else(|| {
                ErrorBody::new(
                    ErrorCode::NotFound,
                    format!("group {group:?} is not in the machine's /etc/group"),
                )
            })?;
            (user.credentials.gid, user.credentials.groups) = (gid, vec![gid]);
        }
        Ok(user)
    }

    fn find_name(root: &Path, name: &str) -> Result<Self, ErrorBody> {
        let passwd = std::fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
        // Most processes are root's, and groups mean nothing to root.
        let group = match name {
            "root" | "0" => String::new(),
            _ => std::fs::read_to_string(root.join("etc/group")).unwrap_or_default(),
        };
        parse(&passwd, &group, name)
            .or_else(|| (name == "root" || name == "0").then(Self::fallback_root))
            .or_else(|| name.parse().ok().map(Self::unlisted))
            .ok_or_else(|| {
                ErrorBody::new(
                    ErrorCode::NotFound,
                    format!("user {name:?} is not in the machine's /etc/passwd"),
                )
            })
    }

    /// A number that no line of `/etc/passwd` has.
    fn unlisted(uid: u32) -> Self {
        Self {
            name: uid.to_string(),
            home: "/".to_owned(),
            shell: "/bin/sh".to_owned(),
            credentials: Credentials { uid, gid: 0, groups: vec![0] },
        }
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

fn group_id(file: &str, wanted: &str) -> Option<u32> {
    let named = file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
        (name == wanted).then(|| gid.parse().ok())?
    });
    named.or_else(|| wanted.parse().ok())
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
    fn group_names_are_looked_up_and_numeric_ids_need_no_entry() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/passwd"), PASSWD).unwrap();
        std::fs::write(root.path().join("etc/group"), GROUP).unwrap();
        let ids = |wanted: &str| {
            let credentials = User::find(root.path(), wanted).unwrap().credentials;
            (credentials.uid, credentials.gid, credentials.groups)
        };
        assert_eq!(ids("user:sudo"), (1000, 27, vec![27]));
        assert_eq!(ids("user:7"), (1000, 7, vec![7]));
        assert_eq!(ids("65532"), (65532, 0, vec![0]));
        assert_eq!(ids("65532:65533"), (65532, 65533, vec![65533]));
        assert_eq!(User::find(root.path(), "user:nobody").unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(User::find(root.path(), "nobody").unwrap_err().code, ErrorCode::NotFound);
    }

    #[test]
    fn root_exists_without_a_passwd_file() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(User::find(empty.path(), "root").unwrap().home, "/root");
        assert_eq!(User::find(empty.path(), "user").unwrap_err().code, ErrorCode::NotFound);
    }
}
