//! Connecting to the sockets of a process that may be hostile.
//!
//! A compromised process can replace a socket in its root by a symbolic link, which would lead the
//! agent to any socket of the host. So links are not followed. A descriptor's path is also short
//! enough for a socket address, however long the path of the root is.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use tokio::net::UnixStream;

/// Connects to the socket at `path`.
pub(crate) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Socket {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a socket"));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn connecting_to_symlinks_or_regular_files_fails() {
        let dir = tempfile::tempdir().unwrap();
        let [socket, link, file] = ["socket", "link", "file"].map(|name| dir.path().join(name));
        let listener = UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        std::fs::write(&file, "").unwrap();
        connect(&socket).await.unwrap();
        listener.accept().await.unwrap();
        for path in [&link, &file, &dir.path().join("absent")] {
            assert!(connect(path).await.is_err(), "{}", path.display());
        }
    }

    #[tokio::test]
    async fn sockets_with_long_paths_are_reachable() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let short = dir.path().join("socket");
        let _listener = UnixListener::bind(&short).unwrap();
        std::fs::rename(&short, deep.join("socket")).unwrap();
        connect(&deep.join("socket")).await.unwrap();
    }
}
