//! `pandastack verify`: checks the files of a release against their digests, and the digests against
//! their signature.

use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use minisign_verify::{PublicKey, Signature};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::output::Output;

/// File with the digests, in the form of `sha256sum`.
const SUMS: &str = "SHA256SUMS";
/// Its signature.
const SIGNATURE: &str = "SHA256SUMS.minisig";
/// More digests, or a longer signature, are refused.
const SUMS_BYTES_MAX: u64 = 1 << 20;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of the release
    dir: PathBuf,
    /// Public minisign key of the release: the key itself, or a file with it
    #[arg(long, value_name = "KEY")]
    public_key: String,
}

/// The result as printed with `--json`.
#[derive(Debug, Serialize)]
struct Verified {
    files: usize,
    /// The signature's trusted comment, which names the version.
    comment: String,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let sums = read_limited(&args.dir.join(SUMS))?;
    let comment = check_signature(&args.dir, &args.public_key, &sums)?;
    let files = entries(&sums)?;
    for (digest, name) in &files {
        check_file(&args.dir.join(name), digest)?;
    }
    let verified = Verified { files: files.len(), comment };
    output.value(&verified, |verified| format!("{} files verified: {}", verified.files, verified.comment))?;
    Ok(ExitCode::SUCCESS)
}

fn check_signature(dir: &Path, key: &str, sums: &str) -> Result<String> {
    let path = dir.join(SIGNATURE);
    let signature = Signature::decode(&read_limited(&path)?)
        .map_err(|error| Failure::new(format!("{} is not a minisign signature: {error}", path.display())))?;
    let key = public_key(key)?;
    key.verify(sums.as_bytes(), &signature, false).map_err(|error| {
        let failure = Failure::new(format!("{SUMS} does not match its signature: {error}"));
        failure.hint("do not use this release; download it again and compare the public key with its source")
    })?;
    Ok(signature.trusted_comment().to_owned())
}

fn public_key(given: &str) -> Result<PublicKey> {
    let invalid = |error| Failure::new(format!("`{given}` is not a minisign public key: {error}"));
    if Path::new(given).is_file() {
        return Ok(PublicKey::decode(&read_limited(Path::new(given))?).map_err(invalid)?);
    }
    Ok(PublicKey::from_base64(given).map_err(invalid)?)
}

/// Digests and names of the release's files.
fn entries(sums: &str) -> Result<Vec<(String, PathBuf)>> {
    let entry = |line: &str| {
        let (digest, name) = line.split_once("  ")?;
        let name = PathBuf::from(name);
        let is_inside = name.components().all(|part| matches!(part, Component::Normal(_)));
        (is_inside && !name.as_os_str().is_empty()).then(|| (digest.to_owned(), name))
    };
    let malformed = |line: &str| Failure::new(format!("invalid line in {SUMS}: `{line}`"));
    Ok(sums.lines().map(|line| entry(line).ok_or_else(|| malformed(line))).collect::<Result<Vec<_>, _>>()?)
}

fn check_file(path: &Path, digest: &str) -> Result<()> {
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let (mut hasher, mut block) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut block).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            break;
        }
        hasher.update(&block[..read]);
    }
    if data_encoding::HEXLOWER.encode(&hasher.finalize()) != digest {
        let failure = Failure::new(format!("{} was changed or is incomplete", path.display()));
        return Err(failure.hint("download the file again").into());
    }
    Ok(())
}

fn read_limited(path: &Path) -> Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    file.take(SUMS_BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with `minisign -G -W` and `minisign -S -t "pandastack 0.0.0"`, for this test alone.
    const KEY: &str = "RWSdtHW4QyiMO5uaTyTh+hvEjMU7AHGcpaaPUqGy5T7mA8PmJ30A58DX";
    const SIGNATURE_TEXT: &str = "\
        untrusted comment: signature from minisign secret key\n\
        RUSdtHW4QyiMO4vKQZDIcA70szRMFKweSqoAc58OJAAuVLvXvuhRSMCqoP2wYEYWjFl2Osh/EHyHWAo0bEGgYxEVUw2ASlt0uQs=\n\
        trusted comment: pandastack 0.0.0\n\
        Z51+cH935YQXsEDjJJfMddii/toIpDsr2wiWT27hhjE721ELrUThNHxUIFtGViytjq9/uG4lkYeV4PDVD3NzBg==\n";
    /// Digest of `abc`.
    const SUMS_TEXT: &str =
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  images/a.tar.zst\n";

    fn release() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("images")).unwrap();
        std::fs::write(dir.path().join("images/a.tar.zst"), "abc").unwrap();
        std::fs::write(dir.path().join(SUMS), SUMS_TEXT).unwrap();
        std::fs::write(dir.path().join(SIGNATURE), SIGNATURE_TEXT).unwrap();
        dir
    }

    fn verify(dir: &Path, key: &str) -> Result<ExitCode> {
        let args = Args { dir: dir.to_path_buf(), public_key: key.to_owned() };
        run(args, Output::new(crate::output::Format::Json, true))
    }

    #[test]
    fn release_verification_detects_every_change() {
        let dir = release();
        verify(dir.path(), KEY).unwrap();
        let changed = |name: &str, text: &str| {
            let dir = release();
            std::fs::write(dir.path().join(name), text).unwrap();
            verify(dir.path(), KEY).unwrap_err().to_string()
        };
        assert!(changed("images/a.tar.zst", "abd").contains("was changed"));
        assert!(changed(SUMS, &SUMS_TEXT.replace("ba78", "ba79")).contains("does not match its signature"));
        let line = SIGNATURE_TEXT.lines().nth(1).unwrap();
        let forged = SIGNATURE_TEXT.replace(line, &line.replace("A", "B"));
        assert!(!changed(SIGNATURE, &forged).is_empty());
        assert!(
            !changed(SIGNATURE, &SIGNATURE_TEXT.replace("pandastack 0.0.0", "pandastack 9.9.9")).is_empty()
        );
        std::fs::remove_file(dir.path().join("images/a.tar.zst")).unwrap();
        assert!(verify(dir.path(), KEY).unwrap_err().to_string().contains("cannot open"));
    }

    #[test]
    fn checksum_paths_cannot_escape_the_release() {
        for name in ["../a", "/etc/passwd", "a/../../b", ""] {
            assert!(entries(&format!("{}  {name}\n", "0".repeat(64))).is_err(), "{name}");
        }
        assert!(entries("rubbish\n").is_err());
    }
}
