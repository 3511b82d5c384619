use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use pandastack_guest_proto::message::{ErrorCode, FileKind, FileRead, FileWrite, RawPath, WriteMode};

use crate::harness::Guest;

fn raw(path: &std::path::Path) -> RawPath {
    path.as_os_str().as_bytes().to_vec().into()
}

#[tokio::test]
async fn files_with_unusual_names_round_trip() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let root = guest.path("odd");
    let names: [&[u8]; 7] = [
        b"plain",
        b"with space",
        "\u{1F43C}".as_bytes(),
        b"-n",
        b"new\nline",
        b"bad\xff\xfeutf8",
        b"\"quote\\",
    ];
    for name in names {
        let path = root.join(std::ffi::OsStr::from_bytes(name));
        let write = FileWrite { path: raw(&path), make_parents: true, ..FileWrite::default() };
        assert_eq!(client.write_file_whole(write, name).await.unwrap().bytes, name.len() as u64);
        assert_eq!(client.read_file_whole(raw(&path), 1000).await.unwrap(), name);
        assert_eq!(client.stat(raw(&path), false).await.unwrap().name.as_bytes(), name);
    }
    let mut listed: Vec<_> =
        client.list(raw(&root)).await.unwrap().iter().map(|entry| entry.name.as_bytes().to_vec()).collect();
    listed.sort_unstable();
    let mut expect = names.map(<[u8]>::to_vec);
    expect.sort_unstable();
    assert_eq!(listed, expect);
}

#[tokio::test]
async fn large_files_and_large_directories_stream() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let path = guest.path("large");
    let mut writer = client.write_file(FileWrite { path: raw(&path), ..FileWrite::default() }).await.unwrap();
    let chunk: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 241) as u8).collect();
    for _ in 0..12 {
        writer.write(&chunk).await.unwrap();
    }
    assert!(!path.exists(), "an atomic write shows nothing before its end");
    assert_eq!(writer.finish().await.unwrap().bytes, 12 * 1_000_003);
    assert!(std::fs::read(&path).unwrap() == chunk.repeat(12));
    let back = client.read_file_whole(raw(&path), u64::MAX).await.unwrap();
    assert!(back == chunk.repeat(12));

    let directory = guest.path("many");
    std::fs::create_dir(&directory).unwrap();
    for i in 0..3000 {
        std::fs::write(directory.join(format!("file-{i:05}-{}", "n".repeat(100))), "").unwrap();
    }
    assert_eq!(client.list(raw(&directory)).await.unwrap().len(), 3000);
}

#[tokio::test]
async fn a_preamble_inside_a_file_is_plain_data() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let content = pandastack_guest_proto::sync::preamble(&[0x42; 16]).repeat(2000);
    let path = guest.path("hostile");
    client.write_file_whole(FileWrite { path: raw(&path), ..FileWrite::default() }, &content).await.unwrap();
    assert!(client.read_file_whole(raw(&path), u64::MAX).await.unwrap() == content);
}

#[tokio::test]
async fn file_ranges_are_read_exactly() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let path = guest.path("digits");
    std::fs::write(&path, "0123456789").unwrap();
    for (offset, length, expect) in [
        (0, None, "0123456789"),
        (3, Some(4), "3456"),
        (8, Some(99), "89"),
        (10, None, ""),
        (50, Some(1), ""),
        (0, Some(0), ""),
    ] {
        let mut reader = client.read_file(FileRead { path: raw(&path), offset, length }).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(more) = reader.next().await.unwrap() {
            bytes.extend_from_slice(&more);
        }
        assert_eq!(bytes, expect.as_bytes(), "{offset} {length:?}");
        assert_eq!(reader.file().size, 10);
    }
}

#[tokio::test]
async fn file_errors_have_the_matching_code() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let directory = guest.path("d");
    std::fs::create_dir_all(directory.join("full/below")).unwrap();
    std::fs::write(directory.join("file"), "x").unwrap();
    symlink("loop", directory.join("loop")).unwrap();
    let at = |name: &str| raw(&directory.join(name));
    let read = async |name: &str| client.read_file_whole(at(name), 100).await.unwrap_err().refusal();
    assert_eq!(read("missing").await, Some(ErrorCode::NotFound));
    assert_eq!(read("full").await, Some(ErrorCode::IsDirectory));
    assert_eq!(read("file/below").await, Some(ErrorCode::NotADirectory));
    assert_eq!(read("loop").await, Some(ErrorCode::Invalid));
    assert_eq!(client.read_file_whole("", 100).await.unwrap_err().refusal(), Some(ErrorCode::Invalid));
    assert_eq!(client.list(at("missing")).await.unwrap_err().refusal(), Some(ErrorCode::NotFound));
    assert_eq!(client.list(at("file")).await.unwrap_err().refusal(), Some(ErrorCode::NotADirectory));
    assert_eq!(client.stat(at("missing"), false).await.unwrap_err().refusal(), Some(ErrorCode::NotFound));
    assert_eq!(client.remove(at("full"), false).await.unwrap_err().refusal(), Some(ErrorCode::NotEmpty));
    assert_eq!(
        client.mkdir(at("full"), false, None, None).await.unwrap_err().refusal(),
        Some(ErrorCode::AlreadyExists)
    );
    let write = async |path: RawPath| {
        client.write_file_whole(FileWrite { path, ..FileWrite::default() }, b"x").await.unwrap_err().refusal()
    };
    assert_eq!(write(at("full")).await, Some(ErrorCode::IsDirectory));
    assert_eq!(write(at("no/parent")).await, Some(ErrorCode::NotFound));
    if std::path::Path::new("/dev/full").exists() {
        assert_eq!(write("/dev/full".into()).await, Some(ErrorCode::NoSpace));
    }
}

#[tokio::test]
async fn an_atomic_write_keeps_permissions_and_links() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let (file, link) = (guest.path("script"), guest.path("link"));
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o750)).unwrap();
    symlink("script", &link).unwrap();
    client.write_file_whole(FileWrite { path: raw(&link), ..FileWrite::default() }, b"new").await.unwrap();
    assert!(link.is_symlink(), "the link is still one");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o750);
    let moded = FileWrite {
        path: raw(&file),
        mode: Some(0o600),
        write_mode: WriteMode::Append,
        ..FileWrite::default()
    };
    client.write_file_whole(moded, b"er").await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "newer");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let fresh = guest.path("a/b/fresh");
    client
        .write_file_whole(FileWrite { path: raw(&fresh), make_parents: true, ..FileWrite::default() }, b"")
        .await
        .unwrap();
    assert_eq!(fresh.metadata().unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(client.stat(raw(&link), true).await.unwrap().kind, FileKind::Symlink);
    let followed = client.stat(raw(&link), false).await.unwrap();
    assert_eq!((followed.kind, followed.target), (FileKind::File, Some(RawPath::from("script"))));
    assert_eq!(client.stat(raw(&file), false).await.unwrap().target, None);
}

#[tokio::test]
async fn an_abandoned_write_leaves_nothing() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let directory = guest.path("clean");
    std::fs::create_dir(&directory).unwrap();
    let request = || FileWrite { path: raw(&directory.join("file")), ..FileWrite::default() };
    let entries = || std::fs::read_dir(&directory).unwrap().count();
    let mut dropped = client.write_file(request()).await.unwrap();
    dropped.write(&[1; 300_000]).await.unwrap();
    assert_eq!(entries(), 1, "it is being written beside its place");
    drop(dropped);
    crate::harness::eventually("the dropped write is undone", async || entries() == 0).await;
    let mut lost = client.write_file(request()).await.unwrap();
    lost.write(&[1; 300_000]).await.unwrap();
    drop(guest.connect().await);
    crate::harness::eventually("the lost connection's write is undone", async || entries() == 0).await;
}

#[tokio::test]
async fn directories_are_created_moved_and_removed() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let (a, b) = (guest.path("x/y/z"), guest.path("moved"));
    client.mkdir(raw(&a), true, Some(0o700), None).await.unwrap();
    client.mkdir(raw(&a), true, None, None).await.unwrap();
    assert_eq!(a.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::write(a.join("file"), "x").unwrap();
    client.rename(raw(&guest.path("x")), raw(&b), false).await.unwrap();
    assert!(b.join("y/z/file").exists());
    symlink(&b, guest.path("to-moved")).unwrap();
    client.remove(raw(&guest.path("to-moved")), true).await.unwrap();
    assert!(b.join("y/z/file").exists(), "removing a link leaves what it points to");
    client.remove(raw(&b), true).await.unwrap();
    assert!(!b.exists());
}
