//! Files as the clients see them.

use jiff::Timestamp;
use pandastack_types::api::{FileEntry, FileKind};
use serde_json::{Value, json};

use super::metadata::Metadata;

/// The entry of a file; none for devices, pipes and sockets, which clients do not know.
pub(super) fn entry(file: &FileEntry) -> Option<Value> {
    let kind = match file.kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Symlink => "FILE_TYPE_SYMLINK",
        FileKind::Other => return None,
    };
    let number = |id: u32| id.to_string();
    let mut entry = json!({
        "name": file.name,
        "type": kind,
        "path": file.path,
        // 64-bit numbers are text in this encoding.
        "size": file.size.to_string(),
        "mode": file.permissions,
        "permissions": file.mode,
        "owner": file.owner.clone().unwrap_or_else(|| number(file.uid)),
        "group": file.group.clone().unwrap_or_else(|| number(file.gid)),
    });
    if let Ok(at) = Timestamp::from_second(file.mtime) {
        entry["modifiedTime"] = at.to_string().into();
    }
    if let Some(metadata) = Metadata::from(file).shown() {
        entry["metadata"] = metadata;
    }
    if let Some(target) = &file.link_target {
        entry["symlinkTarget"] = absolute_target(&file.path, target).into();
    }
    Some(entry)
}

/// Target of a link, as an absolute path.
fn absolute_target(link: &str, target: &str) -> String {
    let mut parts: Vec<&str> = match target.starts_with('/') {
        true => Vec::new(),
        false => link.rsplit_once('/').map_or("", |(directory, _)| directory).split('/').collect(),
    };
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let parts = parts.into_iter().filter(|part| !matches!(*part, "" | "."));
    parts.fold(String::new(), |path, part| path + "/" + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlink_targets_are_shown_as_absolute_paths() {
        for (target, expected) in [
            ("/etc/x", "/etc/x"),
            ("x", "/home/user/x"),
            ("../other/./x", "/home/other/x"),
            ("../../../x", "/x"),
        ] {
            let link = FileEntry {
                path: "/home/user/link".to_owned(),
                kind: FileKind::Symlink,
                link_target: Some(target.to_owned()),
                ..FileEntry::default()
            };
            assert_eq!(entry(&link).unwrap()["symlinkTarget"], expected, "{target}");
        }
    }

    #[test]
    fn metadata_is_what_clients_set() {
        let mut file = FileEntry { path: "/a".to_owned(), ..FileEntry::default() };
        assert!(entry(&file).unwrap().get("metadata").is_none());
        file.xattrs =
            [("user.e2b.author", "mish"), ("user.other", "x")].map(|(n, v)| (n.into(), v.into())).into();
        assert_eq!(entry(&file).unwrap()["metadata"], json!({ "author": "mish" }));
    }

    #[test]
    fn sizes_are_strings_and_device_files_are_omitted() {
        let file = FileEntry { size: 1 << 40, uid: 7, ..FileEntry::default() };
        let shown = entry(&file).unwrap();
        assert_eq!((&shown["size"], &shown["owner"]), (&json!("1099511627776"), &json!("7")));
        assert_eq!(entry(&FileEntry { kind: FileKind::Other, ..FileEntry::default() }), None);
    }
}
