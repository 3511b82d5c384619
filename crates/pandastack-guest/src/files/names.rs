//! Names of users and groups, by number. Read directly, as in [`crate::process::User`].

use std::collections::HashMap;
use std::path::Path;

use pandastack_guest_proto::message::{ErrorBody, ErrorCode, FileEntry};

/// Users and groups of the machine at one time.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub(crate) fn read(root: &Path) -> Self {
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
        Self { users: parse(&read("etc/passwd")), groups: parse(&read("etc/group")) }
    }

    /// Writes the names of an entry's numbers into it.
    pub(crate) fn fill(&self, mut entry: FileEntry) -> FileEntry {
        entry.owner = self.users.get(&entry.uid).cloned();
        entry.group = self.groups.get(&entry.gid).cloned();
        entry
    }

    /// The number of a user; any number is one, known or not.
    pub(crate) fn uid(&self, user: &str) -> Result<u32, ErrorBody> {
        number(&self.users, user).ok_or_else(|| unknown("user", user, "/etc/passwd"))
    }

    /// The number of a group; any number is one, known or not.
    pub(crate) fn gid(&self, group: &str) -> Result<u32, ErrorBody> {
        number(&self.groups, group).ok_or_else(|| unknown("group", group, "/etc/group"))
    }
}

fn number(names: &HashMap<u32, String>, wanted: &str) -> Option<u32> {
    wanted.parse().ok().or_else(|| names.iter().find(|(_, name)| *name == wanted).map(|(&id, _)| id))
}

fn unknown(what: &str, name: &str, file: &str) -> ErrorBody {
    let name: String = name.chars().take(64).collect();
    ErrorBody::new(ErrorCode::Invalid, format!("{what} {name:?} is not in the machine's {file}"))
}

/// `name:password:number:...`; of two names for one number the first counts.
fn parse(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(id)) = (fields.next(), fields.nth(1))
            && let Ok(id) = id.parse()
        {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_group_names_and_ids_resolve_both_ways() {
        let names = Names {
            users: parse("root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:/bin/sh\nbroken\n"),
            groups: parse("sudo:x:27:user\n"),
        };
        assert_eq!(names.uid("root").unwrap(), 0);
        assert_eq!(names.uid("4711").unwrap(), 4711);
        assert_eq!(names.gid("sudo").unwrap(), 27);
        assert_eq!(names.uid("nobody").unwrap_err().code, ErrorCode::Invalid);
        assert_eq!(names.users.get(&0).map(String::as_str), Some("root"));
    }
}
