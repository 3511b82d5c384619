//! The bare engine: a plain restore of the template's snapshot and the identity gate, nothing around them.
//!
//! The yardstick of every create. It uses the snapshot that the measured platform baked, so both start from the same
//! bytes; it has no network slot, no record, no control group, no HTTP.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pandastack_engine::{Confinement, Engine, Place, Restore, Shape};
use pandastack_engine_qemu::{QemuConfig, QemuEngine};
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::{Identity, ProcessSpec};
use pandastack_image::Store;
use serde::Deserialize;

/// How long a guest may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// User of the measured machines; any but root.
const UID: u32 = 0x6fff_0000;
/// Output of a first command that is kept.
const OUTPUT_BYTES_MAX: usize = 4096;
/// Bytes of fresh entropy, as the agent sends.
const ENTROPY_BYTES: usize = 64;

/// A template's snapshot and an engine to restore it with.
pub struct Bare {
    engine: QemuEngine,
    store: Store,
    template: PathBuf,
    shape: Shape,
    runtime: tempfile::TempDir,
    next: u32,
}

#[derive(Deserialize)]
struct Manifest {
    shape: Shape,
}

impl Bare {
    /// Finds the one bake of the template in a platform's data directory.
    pub async fn open(data_dir: &Path, template: &str) -> Result<Self> {
        let store = Store::open(data_dir).context("open the platform's store")?;
        let bakes = store.root().join("templates").join(template);
        let mut dirs = std::fs::read_dir(&bakes).with_context(|| format!("read {}", bakes.display()))?;
        let dir = dirs.next().context("the template is not baked")??.path();
        let manifest = std::fs::read(dir.join("manifest.json")).context("read the template's manifest")?;
        let manifest: Manifest = serde_json::from_slice(&manifest).context("read the template's manifest")?;
        let config = QemuConfig {
            binary: None,
            library_dir: data_dir.join("lib"),
            kvm_usable: false,
            kvm_reason: "the bare engine is measured emulated, as the platform is".to_owned(),
        };
        let engine = QemuEngine::probe(config).await.context("prepare the engine")?;
        let runtime =
            tempfile::Builder::new().prefix("bare-").tempdir_in("/run").context("make a socket directory")?;
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(runtime.path(), std::fs::Permissions::from_mode(0o711))?;
        Ok(Self { engine, store, template: dir, shape: manifest.shape, runtime, next: 0 })
    }

    /// One restore, in milliseconds from nothing to a guest with an identity of its own.
    pub async fn restore(&mut self) -> Result<f64> {
        self.restore_then(false).await
    }

    /// The same, and the result of a first command.
    pub async fn restore_and_run(&mut self) -> Result<f64> {
        self.restore_then(true).await
    }

    async fn restore_then(&mut self, run: bool) -> Result<f64> {
        self.next += 1;
        let staging = self.store.stage().context("make room for a machine")?;
        let runtime_dir = self.runtime.path().join(self.next.to_string());
        std::fs::create_dir(&runtime_dir).context("make a socket directory")?;
        let began = Instant::now();
        let disk = staging.path().join("disk");
        self.store.clone_file(&self.template.join("disk"), &disk).context("clone the disk")?;
        let console = staging.path().join("console.log");
        std::fs::write(&console, b"")?;
        let place = Place {
            runtime_dir: runtime_dir.clone(),
            disk,
            volumes: Vec::new(),
            console,
            tap: None,
            confinement: Confinement::Full { uid: UID, gid: UID },
        };
        let restore = Restore {
            shape: self.shape,
            place,
            state: self.template.join("state"),
            memory: self.template.join("memory"),
        };
        let machine = self.engine.restore(restore).await.context("restore")?;
        let stream = machine.connect_guest().await?;
        machine.resume().await?;
        let answered = answer(stream, run).await;
        let took_ms = began.elapsed().as_secs_f64() * 1000.0;
        machine.kill().await?;
        std::fs::remove_dir_all(&runtime_dir).context("remove a socket directory")?;
        answered.context("the guest's answer")?;
        Ok(took_ms)
    }
}

/// Waits for the guest, and for a command's result if asked.
async fn answer(stream: tokio::net::UnixStream, run: bool) -> Result<()> {
    let (guest, _) = GuestClient::connect_with_identity(stream, identity()?, ANSWER_MAX).await?;
    if run {
        guest.exec(ProcessSpec::shell("true".to_owned())).await?.collect(OUTPUT_BYTES_MAX).await?;
    }
    Ok(())
}

fn identity() -> Result<Identity> {
    let mut entropy = vec![0u8; ENTROPY_BYTES];
    getrandom::fill(&mut entropy).context("get entropy")?;
    Ok(Identity {
        entropy: entropy.into(),
        realtime_ns: jiff::Timestamp::now().as_nanosecond() as u64,
        sandbox_id: "bare".to_owned(),
        hostname: Some("bare".to_owned()),
        ..Identity::default()
    })
}
