//! The bare engine: a plain restore of a snapshot and the identity gate, nothing around them.
//!
//! The yardstick of every create and wake. It uses the snapshot that the measured platform wrote, so both start from the same
//! bytes; it has no record, no control group, no HTTP, and no network but where an answer must come out.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pandastack_engine::{Confinement, Engine, Machine, MachineFiles, Restore, Shape, Volume};
use pandastack_engine_qemu::{QemuConfig, QemuEngine};
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::{Identity, ProcessSpec};
use pandastack_image::Store;
use pandastack_image::store::Staging;
use pandastack_net::{NetConfig, NetworkPolicy, SlotIndex, SlotPool};
use pandastack_types::SandboxId;
use pandastack_types::agent_api::VolumeSpec;
use serde::Deserialize;

use crate::http::Connection;

/// Longest time for a guest to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// User of the measured machines; any but root.
const UID: u32 = 0x6fff_0000;
/// Bytes kept of a first command's output.
const OUTPUT_BYTES_MAX: usize = 4096;
/// Addresses of bare machines, beside a platform's own.
const SUBNET: &str = "10.129.0.0/24";
/// Bytes of fresh entropy, as the agent sends.
const ENTROPY_BYTES: usize = 64;

/// A snapshot and an engine to restore it with.
pub struct Bare {
    engine: QemuEngine,
    store: Store,
    snapshot: PathBuf,
    /// Directory of the platform's durable disks.
    volumes: PathBuf,
    runtime: tempfile::TempDir,
    next: u32,
}

#[derive(Deserialize)]
struct Manifest {
    shape: Shape,
    #[serde(default)]
    volumes: Vec<VolumeSpec>,
}

/// A machine that is being restored, and the files to remove after it.
struct Restored {
    machine: std::sync::Arc<dyn Machine>,
    began: Instant,
    runtime_dir: PathBuf,
    _staging: Staging,
}

impl Restored {
    /// Ends the machine; returns the milliseconds since the restore began, unless `answered` is an
    /// error.
    async fn end(self, answered: Result<()>) -> Result<f64> {
        let took_ms = self.began.elapsed().as_secs_f64() * 1000.0;
        self.machine.kill().await?;
        std::fs::remove_dir_all(&self.runtime_dir).context("remove a socket directory")?;
        answered.context("the guest's answer")?;
        Ok(took_ms)
    }
}

impl Bare {
    /// Finds the one bake of the template in a platform's data directory.
    pub async fn open(data_dir: &Path, template: &str) -> Result<Self> {
        let bakes = data_dir.join("store/templates").join(template);
        let mut dirs = std::fs::read_dir(&bakes).with_context(|| format!("read {}", bakes.display()))?;
        let dir = dirs.next().context("the template is not baked")??.path();
        Self::of(data_dir, dir).await
    }

    /// Copies the files that a sandbox sleeps on, once it sleeps.
    pub async fn of_sleeper(data_dir: &Path, sandbox: &SandboxId) -> Result<Self> {
        Self::of(data_dir, data_dir.join("store/sandboxes").join(sandbox.as_str()).join("sleep")).await
    }

    async fn of(data_dir: &Path, snapshot: PathBuf) -> Result<Self> {
        let store = Store::open(data_dir).context("open the platform's store")?;
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
        let volumes = data_dir.join("store/volumes");
        Ok(Self { engine, store, snapshot, volumes, runtime, next: 0 })
    }

    /// One restore; returns the milliseconds until the guest has its identity.
    pub async fn restore(&mut self) -> Result<f64> {
        let restored = self.begin(None).await?;
        let answered = greet(&restored).await.map(drop);
        restored.end(answered).await
    }

    /// Restores, and waits for the result of a first command.
    pub async fn restore_and_run(&mut self) -> Result<f64> {
        let restored = self.begin(None).await?;
        let answered = run(&restored).await;
        restored.end(answered).await
    }

    /// Restores, and waits for the first byte of the response of a server inside.
    pub async fn restore_and_ask(&mut self, network: &BareNetwork, port: u16) -> Result<f64> {
        let get = async |address: &str| {
            Connection::open(&format!("{address}:{port}"), "localhost").await?.get().await.map(drop)
        };
        self.restore_and_reach(network, get).await
    }

    /// Restores, then runs `reach` on the machine's address.
    pub async fn restore_and_reach(
        &mut self,
        network: &BareNetwork,
        reach: impl AsyncFnOnce(&str) -> Result<()>,
    ) -> Result<f64> {
        let tap = network.pool.open_tap(network.slot).await?;
        let restored = self.begin(Some(tap)).await?;
        let answered = async {
            let _guest = greet(&restored).await?;
            reach(&network.pool.address(network.slot).to_string()).await
        };
        let answered = answered.await;
        restored.end(answered).await
    }

    async fn begin(&mut self, tap: Option<OwnedFd>) -> Result<Restored> {
        let manifest = std::fs::read(self.snapshot.join("manifest.json")).context("read the manifest")?;
        let Manifest { shape, volumes } = serde_json::from_slice(&manifest).context("read the manifest")?;
        self.next += 1;
        let staging = self.store.stage().context("make room for a machine")?;
        let runtime_dir = self.runtime.path().join(self.next.to_string());
        std::fs::create_dir(&runtime_dir).context("make a socket directory")?;
        let began = Instant::now();
        let disk = staging.path().join("disk");
        self.store.clone_file(&self.snapshot.join("disk"), &disk).context("clone the disk")?;
        let console = staging.path().join("console.log");
        std::fs::write(&console, b"")?;
        let volumes = volumes.iter().map(|volume| self.copy_volume(volume, &staging));
        let place = MachineFiles {
            runtime_dir: runtime_dir.clone(),
            disk,
            volumes: volumes.collect::<Result<_>>()?,
            console,
            tap,
            confinement: Confinement::Full { uid: UID, gid: UID },
            spare: None,
        };
        let (state, memory) = (self.snapshot.join("state"), self.snapshot.join("memory"));
        let machine =
            self.engine.restore(Restore { shape, place, state, memory }).await.context("restore")?;
        Ok(Restored { machine, began, runtime_dir, _staging: staging })
    }

    fn copy_volume(&self, volume: &VolumeSpec, staging: &Staging) -> Result<Volume> {
        let copy = staging.path().join(volume.id.as_str());
        let original = self.volumes.join(volume.id.as_str()).join("image");
        self.store.clone_file(&original, &copy).context("clone a volume")?;
        let image = std::fs::OpenOptions::new().read(true).write(true).open(&copy)?;
        let bytes = image.metadata()?.len();
        Ok(Volume { image, bytes })
    }
}

/// The network of bare machines, which use it one after another.
pub struct BareNetwork {
    pool: std::sync::Arc<SlotPool>,
    slot: SlotIndex,
    _dir: tempfile::TempDir,
}

impl BareNetwork {
    /// Makes it, beside a platform's own network.
    pub async fn open() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut config = NetConfig::new(dir.path());
        config.name_prefix = "bare".to_owned();
        config.subnet = SUBNET.parse()?;
        config.ready_target = 1;
        let pool = SlotPool::open(config)?;
        pool.adopt(&[]).await?;
        let slot = pool.take(&NetworkPolicy::all()).await?.index;
        Ok(Self { pool, slot, _dir: dir })
    }

    /// Removes it.
    pub async fn close(self) -> Result<()> {
        self.pool.shutdown().await.context("remove the bare machines' network")
    }
}

/// Lets the machine run and gives it an identity.
async fn greet(restored: &Restored) -> Result<GuestClient> {
    let stream = restored.machine.connect_guest().await?;
    restored.machine.resume().await?;
    let (guest, _) = GuestClient::connect_with_identity(stream, identity()?, ANSWER_MAX).await?;
    Ok(guest)
}

async fn run(restored: &Restored) -> Result<()> {
    let guest = greet(restored).await?;
    guest.exec(ProcessSpec::shell("true".to_owned())).await?.collect(OUTPUT_BYTES_MAX).await?;
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
