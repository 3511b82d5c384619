//! Trees of files: walking, searching, copying, archives.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use pandastack_guest_proto::client::{ClientError, GuestClient};
use pandastack_guest_proto::message::{ErrorCode, FileAttributes, FileGrep, FileWalk, RawPath};

use crate::harness::Guest;

fn raw(path: &Path) -> RawPath {
    path.as_os_str().as_bytes().to_vec().into()
}

fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (ErrorCode, String) {
    match result {
        Err(ClientError::Refused(body)) => (body.code, body.message),
        other => panic!("{other:?}"),
    }
}

/// A small tree with everything in it.
fn plant(root: &Path) {
    std::fs::create_dir_all(root.join("src/deep er")).unwrap();
    std::fs::write(root.join("src/main.rs"), "fn main() {}\n// panda\n").unwrap();
    std::fs::write(root.join("src/deep er/übung.rs"), "one\nPANDA two\nthree panda\n").unwrap();
    std::fs::write(root.join("notes.txt"), "panda\r\n").unwrap();
    std::fs::write(root.join("binary"), b"panda\0panda").unwrap();
    std::fs::write(root.join(format!("{}.long", "n".repeat(200))), vec![7; 1000]).unwrap();
    symlink("src", root.join("link")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    std::fs::set_permissions(root.join("notes.txt"), std::fs::Permissions::from_mode(0o640)).unwrap();
}

async fn walk(client: &GuestClient, root: &Path, depth: Option<u32>, glob: Option<&str>) -> Vec<String> {
    let walk = FileWalk { path: raw(root), depth, glob: glob.map(str::to_owned), entries_max: 10_000 };
    let found = client.walk(walk).await.unwrap();
    assert!(!found.truncated);
    let path = |entry: &pandastack_guest_proto::message::FileEntry| {
        entry.path.as_ref().unwrap().to_string_lossy().into_owned()
    };
    let mut paths: Vec<String> = found.items.iter().map(path).collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn walks_stop_at_links_depth_and_limits() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("tree");
    plant(&root);
    assert_eq!(walk(&client, &root, None, None).await.len(), 9);
    assert_eq!(walk(&client, &root, Some(1), None).await.len(), 6);
    assert_eq!(walk(&client, &root, None, Some("*.rs")).await, ["src/deep er/übung.rs", "src/main.rs"]);
    assert_eq!(walk(&client, &root, None, Some("src/*.rs")).await, ["src/main.rs"]);
    let cut = FileWalk { path: raw(&root), entries_max: 2, ..FileWalk::default() };
    let found = client.walk(cut).await.unwrap();
    assert_eq!((found.items.len(), found.truncated), (2, true));
    let missing = FileWalk { path: raw(&root.join("no")), entries_max: 2, ..FileWalk::default() };
    assert_eq!(refused(client.walk(missing).await).0, ErrorCode::NotFound);
    let file = FileWalk { path: raw(&root.join("binary")), entries_max: 2, ..FileWalk::default() };
    assert_eq!(refused(client.walk(file).await).0, ErrorCode::NotADirectory);
}

#[tokio::test]
async fn large_tree_listings_are_paged() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("many");
    for i in 0..40 {
        std::fs::create_dir_all(root.join(format!("d{i}"))).unwrap();
        for j in 0..100 {
            std::fs::write(root.join(format!("d{i}/f{j}")), "needle\n").unwrap();
        }
    }
    assert_eq!(walk(&client, &root, None, None).await.len(), 4040);
    let grep =
        FileGrep { path: raw(&root), pattern: "needle".to_owned(), matches_max: 4000, ..FileGrep::default() };
    let found = client.grep(grep.clone()).await.unwrap();
    assert_eq!((found.items.len(), found.truncated), (4000, false));
    let found = client.grep(FileGrep { matches_max: 3999, ..grep }).await.unwrap();
    assert_eq!((found.items.len(), found.truncated), (3999, true));
}

#[tokio::test]
async fn searches_find_lines_in_text_files() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("tree");
    plant(&root);
    let grep = |pattern: &str| FileGrep {
        path: raw(&root),
        pattern: pattern.to_owned(),
        matches_max: 100,
        ..FileGrep::default()
    };
    let lines = |found: Vec<pandastack_guest_proto::message::GrepMatch>| {
        let mut lines: Vec<(String, u64, String)> = found
            .into_iter()
            .map(|found| (found.path.to_string_lossy().into_owned(), found.line, found.text))
            .collect();
        lines.sort();
        lines
    };
    let found = lines(client.grep(grep("^(?:panda|three).*$")).await.unwrap().items);
    assert_eq!(
        found,
        [
            ("notes.txt".to_owned(), 1, "panda".to_owned()),
            ("src/deep er/übung.rs".to_owned(), 3, "three panda".to_owned())
        ]
    );
    let any_case = FileGrep { ignore_case: true, glob: Some("*.rs".to_owned()), ..grep("panda") };
    assert_eq!(client.grep(any_case).await.unwrap().items.len(), 3);
    let one_file = FileGrep { path: raw(&root.join("src/main.rs")), fixed: true, ..grep("main() {}") };
    assert_eq!(lines(client.grep(one_file).await.unwrap().items)[0].1, 1);
    assert_eq!(refused(client.grep(grep("(")).await).0, ErrorCode::Invalid);
}

#[tokio::test]
async fn copies_and_moves_preserve_file_attributes() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let (root, copy) = (guest.path("tree"), guest.path("new/parent/copy"));
    plant(&root);
    client.copy(raw(&root), raw(&copy)).await.unwrap();
    assert_eq!(walk(&client, &copy, None, None).await, walk(&client, &root, None, None).await);
    assert_eq!(std::fs::metadata(copy.join("notes.txt")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(std::fs::read_link(copy.join("link")).unwrap(), Path::new("src"));
    let (code, message) = refused(client.copy(raw(&root), raw(&root.join("src/self"))).await);
    assert_eq!(code, ErrorCode::Invalid, "{message}");
    assert_eq!(refused(client.copy(raw(&root.join("no")), raw(&copy)).await).0, ErrorCode::NotFound);
    let moved = guest.path("other/place");
    assert_eq!(refused(client.rename(raw(&copy), raw(&moved), false).await).0, ErrorCode::NotFound);
    client.rename(raw(&copy), raw(&moved), true).await.unwrap();
    assert!(!copy.exists() && moved.join("notes.txt").exists());
}

#[tokio::test]
async fn a_move_between_file_systems_is_a_copy_and_a_removal() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = guest.path("tree");
    plant(&root);
    let same = std::fs::metadata(&root).unwrap().dev() == elsewhere.path().metadata().unwrap().dev();
    assert!(!same, "the test needs two file systems");
    let before = walk(&client, &root, None, None).await;
    client.rename(raw(&root), raw(&elsewhere.path().join("moved")), false).await.unwrap();
    assert!(!root.exists());
    assert_eq!(walk(&client, &elsewhere.path().join("moved"), None, None).await, before);
}

#[tokio::test]
async fn attributes_change_singly_or_recursively() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("tree");
    plant(&root);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    let change = FileAttributes { path: raw(&root), mode: Some(0o700), ..FileAttributes::default() };
    client.set_attributes(change.clone()).await.unwrap();
    assert_eq!((mode(&root), mode(&root.join("notes.txt"))), (0o700, 0o640));
    client.set_attributes(FileAttributes { recursive: true, ..change }).await.unwrap();
    assert_eq!(mode(&root.join("src/deep er/übung.rs")), 0o700);
    let unknown = FileAttributes {
        path: raw(&root),
        user: Some("nobody-here".to_owned()),
        ..FileAttributes::default()
    };
    assert_eq!(refused(client.set_attributes(unknown).await).0, ErrorCode::Invalid);
    if nix::unistd::geteuid().is_root() {
        let owned = FileAttributes {
            path: raw(&root.join("notes.txt")),
            user: Some("4711".to_owned()),
            group: Some("4712".to_owned()),
            ..FileAttributes::default()
        };
        client.set_attributes(owned).await.unwrap();
        let meta = std::fs::metadata(root.join("notes.txt")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (4711, 4712));
    }
}

async fn pack(client: &GuestClient, path: &Path) -> Vec<u8> {
    let mut reader = client.pack(raw(path)).await.unwrap();
    let mut archive = Vec::new();
    while let Some(bytes) = reader.next().await.unwrap() {
        archive.extend_from_slice(&bytes);
    }
    archive
}

async fn unpack(client: &GuestClient, path: &Path, archive: &[u8]) -> Result<u64, ClientError> {
    let mut writer = client.unpack(raw(path), None).await.unwrap();
    for piece in archive.chunks(10_007) {
        writer.write(piece).await?;
    }
    writer.finish().await.map(|written| written.bytes)
}

#[tokio::test]
async fn archives_round_trip_through_pack_and_unpack() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("tree");
    plant(&root);
    let large: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(root.join("large"), &large).unwrap();
    let archive = pack(&client, &root).await;
    // The reference program reads it too.
    let mut names = BTreeMap::new();
    for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
        let entry = entry.unwrap();
        names.insert(entry.path().unwrap().to_string_lossy().into_owned(), entry.size());
    }
    assert_eq!(names["large"], 3_000_001);
    assert_eq!(names[&format!("{}.long", "n".repeat(200))], 1000);
    let back = guest.path("made/for/it");
    assert_eq!(unpack(&client, &back, &archive).await.unwrap(), archive.len() as u64);
    assert_eq!(walk(&client, &back, None, None).await, walk(&client, &root, None, None).await);
    assert!(std::fs::read(back.join("large")).unwrap() == large);
    assert_eq!(std::fs::metadata(back.join("notes.txt")).unwrap().mode() & 0o777, 0o640);
    let single = pack(&client, &root.join("notes.txt")).await;
    unpack(&client, &back.join("single"), &single).await.unwrap();
    assert_eq!(std::fs::read(back.join("single/notes.txt")).unwrap(), b"panda\r\n");
    assert_eq!(refused(client.pack(raw(&root.join("no"))).await).0, ErrorCode::NotFound);
}

fn entry(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, name: &str, link: &str, body: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o4755);
    header.set_size(body.len() as u64);
    header.set_cksum();
    builder.append(&header, body).unwrap();
}

#[tokio::test]
async fn hostile_archives_cannot_write_outside_their_directory() {
    use tar::EntryType::{Char, Fifo, Link, Regular, Symlink};
    let guest = Guest::start();
    let client = guest.connect().await;
    let secret = guest.path("secret");
    std::fs::write(&secret, "untouched").unwrap();
    let outside = secret.to_str().unwrap().to_owned();
    let parent = secret.parent().unwrap().to_str().unwrap().to_owned();
    let file = |name: &str| (Regular, name.to_owned(), String::new());
    let link = |name: &str, to: &str| (Symlink, name.to_owned(), to.to_owned());
    let cases: Vec<Vec<(tar::EntryType, String, String)>> = vec![
        vec![file("../secret")],
        vec![file(&outside)],
        vec![file("a/../../secret")],
        vec![link("out", &parent), file("out/secret")],
        vec![link("out", ".."), file("out/secret")],
        vec![link("a", "b"), link("b", "a"), file("a/x")],
        vec![(Link, "hard".to_owned(), "../secret".to_owned())],
        vec![link("out", ".."), (Link, "hard".to_owned(), "out/secret".to_owned())],
        vec![(Char, "null".to_owned(), String::new())],
        vec![(Fifo, "pipe".to_owned(), String::new())],
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, to) in &case {
            let body: &[u8] = if *kind == Regular { b"overwritten" } else { b"" };
            entry(&mut builder, *kind, name, to, body);
        }
        let archive = builder.into_inner().unwrap();
        let (code, message) = refused(unpack(&client, &guest.path(&format!("t{number}")), &archive).await);
        assert_eq!(code, ErrorCode::Invalid, "{case:?}: {message}");
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "untouched", "{case:?}");
    }
}

#[tokio::test]
async fn unpacking_replaces_links_and_strips_set_id_bits() {
    use tar::EntryType::{Link, Regular, Symlink};
    let guest = Guest::start();
    let client = guest.connect().await;
    let (secret, target) = (guest.path("secret"), guest.path("target"));
    std::fs::write(&secret, "untouched").unwrap();
    std::fs::create_dir(&target).unwrap();
    symlink(&secret, target.join("file")).unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    entry(&mut builder, Regular, "file", "", b"new");
    entry(&mut builder, Regular, "dir/inner", "", b"inner");
    entry(&mut builder, Symlink, "alias", "dir", b"");
    entry(&mut builder, Regular, "alias/through", "", b"inside is fine");
    entry(&mut builder, Link, "hard", "dir/inner", b"");
    unpack(&client, &target, &builder.into_inner().unwrap()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "untouched");
    assert_eq!(std::fs::read_to_string(target.join("file")).unwrap(), "new");
    assert_eq!(std::fs::metadata(target.join("file")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(std::fs::read_to_string(target.join("dir/through")).unwrap(), "inside is fine");
    assert_eq!(std::fs::read_to_string(target.join("hard")).unwrap(), "inner");
}

#[tokio::test]
async fn invalid_archives_are_rejected_with_a_reason() {
    let guest = Guest::start();
    let client = guest.connect().await;
    for (bytes, why) in [(&b""[..], "empty"), (&[0x1f; 2000], "not a tar"), (&[0; 511], "cut off")] {
        let (code, message) = refused(unpack(&client, &guest.path("t"), bytes).await);
        assert_eq!(code, ErrorCode::Invalid);
        assert!(message.contains(why), "{message}");
    }
    std::fs::write(guest.path("file"), "").unwrap();
    let (code, message) = refused(unpack(&client, &guest.path("file"), &[0; 1024]).await);
    assert_eq!(code, ErrorCode::NotADirectory, "{message}");
}
