use std::os::unix::fs::MetadataExt;

use super::*;
use crate::ErrorKind;

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// An archive of a sparse image and a small file.
fn archive(dir: &Path) -> PathBuf {
    let (image, manifest) = (dir.join("image"), dir.join("manifest"));
    let file = File::create(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(b"superblock", 1024).unwrap();
    file.write_all_at(b"end", (50 << 20) + 7).unwrap();
    fs::write(&manifest, "{}").unwrap();
    let files = [("image.ext4".into(), image), ("lib/modules/manifest.json".into(), manifest)];
    write(&dir.join("archives"), KEY, &files).unwrap()
}

fn error_of(archive: &Path, key: &str) -> String {
    let into = tempfile::tempdir().unwrap();
    let error = unpack(archive, key, into.path()).unwrap_err();
    pandastack_types::chain(&error).to_string()
}

#[test]
fn an_unpacked_artifact_keeps_its_holes() {
    let (dir, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive = archive(dir.path());
    assert!(archive.metadata().unwrap().len() < 64 << 10, "zeros were stored");
    unpack(&archive, KEY, into.path()).unwrap();
    let image = into.path().join("image.ext4");
    let found = image.metadata().unwrap();
    assert_eq!(found.len(), 64 << 20);
    assert!(found.blocks() * 512 <= 4 * BLOCK_BYTES as u64, "{} blocks", found.blocks());
    assert_eq!(hash_file(&image).unwrap(), hash_file(&dir.path().join("image")).unwrap());
    assert_eq!(fs::read(into.path().join("lib/modules/manifest.json")).unwrap(), b"{}");
}

#[test]
fn equal_artifacts_give_equal_archives() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(fs::read(archive(one.path())).unwrap(), fs::read(archive(other.path())).unwrap());
}

#[test]
fn a_damaged_archive_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let archive = archive(dir.path());
    let bytes = fs::read(&archive).unwrap();
    assert!(error_of(&archive, "f".repeat(32).as_str()).contains("it has the key"));
    for cut in [0, 10, bytes.len() / 2, bytes.len() - 5] {
        fs::write(&archive, &bytes[..cut]).unwrap();
        assert!(error_of(&archive, KEY).contains(&archive.display().to_string()), "cut at {cut}");
    }
    for at in (20..bytes.len()).step_by(29) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        fs::write(&archive, &changed).unwrap();
        let into = tempfile::tempdir().unwrap();
        match unpack(&archive, KEY, into.path()) {
            Err(error) => assert!(error.to_string().contains("replace or delete it"), "byte {at}: {error}"),
            // A bit without a meaning, such as one of the window's size.
            Ok(()) => {
                let image = into.path().join("image.ext4");
                assert_eq!(
                    hash_file(&image).unwrap(),
                    hash_file(&dir.path().join("image")).unwrap(),
                    "byte {at}"
                );
            }
        }
    }
}

/// An archive with another index than its files have.
fn forged(dir: &Path, files: Vec<IndexedFile>) -> PathBuf {
    let source = dir.join("content");
    fs::write(&source, "content").unwrap();
    let target = dir.join("forged.tar.zst");
    let index = Index { format: FORMAT, key: KEY.to_owned(), files };
    pack(&File::create(&target).unwrap(), &index, &[("content".into(), source)]).unwrap();
    target
}

#[test]
fn archive_contents_must_match_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let (_, hash) = {
        fs::write(dir.path().join("content"), "content").unwrap();
        hash_file(&dir.path().join("content")).unwrap()
    };
    let file = |path: &str, bytes| IndexedFile { path: path.into(), bytes, hash: hash.clone() };
    let cases = [
        (vec![file("content", 3)], "another length"),
        (vec![file("content", 9)], "another length"),
        (vec![file("content", CONTENT_BYTES_MAX + 1)], "announces more than"),
        (vec![file("other", 7)], "something else"),
        (vec![file("../content", 7)], "leads out of"),
        (vec![file("/content", 7)], "leads out of"),
        (vec![], "more files than announced"),
        (vec![file("content", 7), file("second", 7)], "it ends before second"),
    ];
    for (files, expected) in cases {
        let error = error_of(&forged(dir.path(), files), KEY);
        assert!(error.contains(expected), "{error:?} instead of {expected:?}");
    }
    let into = tempfile::tempdir().unwrap();
    unpack(&forged(dir.path(), vec![file("content", 7)]), KEY, into.path()).unwrap();
}

#[test]
fn a_damaged_archive_is_a_host_error() {
    let dir = tempfile::tempdir().unwrap();
    let archive = archive(dir.path());
    fs::write(&archive, "rubbish").unwrap();
    let error = unpack(&archive, KEY, dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Host);
}
