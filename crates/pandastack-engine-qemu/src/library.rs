//! The engine's own directory: the preloaded library, an empty root directory, the verdict of the fork test.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pandastack_engine::{EngineError, Result};
use pandastack_qemu_shim::protocol::{PATH_BYTES_MAX, PathText};

/// The library, as built for this very engine.
static LIBRARY: &[u8] = include_bytes!(env!("PANDASTACK_SHIM_LIBRARY"));

/// Paths in the engine's directory.
#[derive(Debug)]
pub(crate) struct Library {
    /// The preloaded library, named after its content: an engine of another version uses another file.
    pub(crate) preload: PathBuf,
    /// Hash of its content.
    pub(crate) hash: String,
    /// Directory without anything in it: the root of confined processes.
    pub(crate) empty_root: PathText,
    dir: PathBuf,
}

impl Library {
    /// Writes missing files.
    pub(crate) fn install(dir: &Path) -> Result<Self> {
        let hash = blake3::hash(LIBRARY).to_hex().as_str()[..16].to_owned();
        let preload = dir.join(format!("shim-{hash}.so"));
        let empty = dir.join("empty");
        fs::create_dir_all(dir).map_err(EngineError::io("create the engine's directory", dir))?;
        if !is_current(&preload) {
            write_once(&preload, LIBRARY, 0o755)
                .map_err(EngineError::io("write the preloaded library", &preload))?;
        }
        match fs::create_dir(&empty) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(EngineError::io("create the empty root directory", &empty)(error));
            }
            _ => fs::set_permissions(&empty, Permissions::from_mode(0o555))
                .map_err(EngineError::io("protect the empty root directory", &empty))?,
        }
        let empty_root = PathText::new(empty.as_os_str().as_encoded_bytes()).map_err(|_| {
            let detail = format!("{} is longer than {PATH_BYTES_MAX} bytes", empty.display());
            EngineError::Vmm { step: "using the engine's directory", detail }
        })?;
        Ok(Self { preload, hash, empty_root, dir: dir.to_owned() })
    }

    /// Directory for the machines of the fork test.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.join(format!("selftest-{}", std::process::id()))
    }

    /// The verdict kept under a key.
    pub(crate) fn verdict(&self, key: &str) -> Option<String> {
        fs::read_to_string(self.verdict_path(key)).ok()
    }

    /// Stores a verdict. A failure to store it is ignored: the test runs again.
    pub(crate) fn keep_verdict(&self, key: &str, verdict: &str) {
        let path = self.verdict_path(key);
        if let Err(error) = write_once(&path, verdict.as_bytes(), 0o644) {
            tracing::warn!(path = %path.display(), %error, "cannot save the result of the fork test");
        }
    }

    fn verdict_path(&self, key: &str) -> PathBuf {
        self.dir.join(format!("fork-{}.txt", &blake3::hash(key.as_bytes()).to_hex().as_str()[..16]))
    }
}

fn is_current(preload: &Path) -> bool {
    fs::read(preload).is_ok_and(|content| content == LIBRARY)
}

/// Writes beside and renames: a reader sees all or nothing.
fn write_once(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = fs::File::create(&beside)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
