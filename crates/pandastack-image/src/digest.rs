//! Checking files against the digests that locks and package indexes name.

use std::path::Path;

use crate::error::ImageError;

pub(crate) fn check_sha256(file: &Path, expected: &str) -> Result<(), ImageError> {
    let found = sha256_of(file)?;
    if found == expected {
        return Ok(());
    }
    let why = format!("sha256 is {found}, expected {expected}");
    Err(ImageError::LockMismatch { what: file.display().to_string(), why })
}

pub(crate) fn sha256_of(file: &Path) -> Result<String, ImageError> {
    use sha2::Digest as _;
    let mut reader = std::fs::File::open(file).map_err(ImageError::io("open", file))?;
    let mut hasher = HashWriter(sha2::Sha256::new());
    std::io::copy(&mut reader, &mut hasher).map_err(ImageError::io("read", file))?;
    Ok(data_encoding::HEXLOWER.encode(&hasher.0.finalize()))
}

struct HashWriter(sha2::Sha256);

impl std::io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        sha2::Digest::update(&mut self.0, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_accepted_only_with_its_own_digest() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "abc").unwrap();
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        check_sha256(&file, right).unwrap();
        std::fs::write(&file, "abd").unwrap();
        let error = check_sha256(&file, right).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Lock);
    }
}
