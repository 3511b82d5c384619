//! Files as the clients see them.

use jiff::Timestamp;
use pandastack_types::api::{FileEntry, FileKind};
use serde_json::{Value, json};

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
    if let Some(target) = &file.link_target {
        entry["symlinkTarget"] = target.clone().into();
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_text_and_devices_are_left_out() {
        let file = FileEntry { size: 1 << 40, uid: 7, ..FileEntry::default() };
        let shown = entry(&file).unwrap();
        assert_eq!((&shown["size"], &shown["owner"]), (&json!("1099511627776"), &json!("7")));
        assert_eq!(entry(&FileEntry { kind: FileKind::Other, ..FileEntry::default() }), None);
    }
}
