//! Baking: from a recipe to a snapshot that creates start from.
//!
//! Build or find the image, kernel and initial ramdisk; boot once; run what users run first; freeze
//! user processes; write the machine down. Found again by key, so that only the first agent of a
//! version pays.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pandastack_engine::{Boot, Confinement, Machine};
use pandastack_guest_proto::client::GuestClient;
use pandastack_image::recipe::VolumeEntry;
use pandastack_image::{Image, ImageBuilder, Kernel, Progress, Recipe};
use pandastack_net::NetworkPolicy;
use pandastack_types::agent_api::VolumeSpec;
use pandastack_types::guests::GuestSettings;
use pandastack_types::{BuildId, VolumeId, chain};

use crate::blocking::blocking;
use crate::builds::Builds;
use crate::capture::Capture;
use crate::components;
use crate::error::{AgentError, Result};
use crate::host_resources::{HostResources, UID_FIRST};
use crate::identity::identity;
use crate::kernel_files::{self, ensure_boot_files, kernel_args};
use crate::launch;
use crate::machine_resources::{MachineResources, Origin};
use crate::record::{BootMode, SandboxRecord};
use crate::running_machine::kill;
use crate::snapshot::{Manifest, Snapshot};
use crate::variant::{BakedTemplate, Variant};
use crate::warm;

/// Longest time for a cold boot until the guest program answers. Allows for emulation, a loaded
/// host and a first run.
const BOOT_MAX: Duration = Duration::from_secs(180);

/// Files a machine boots from.
struct BakeFiles {
    kernel: PathBuf,
    initrd: PathBuf,
    image: PathBuf,
    /// The kernel's.
    release: String,
    key: String,
}

/// Prepares the template on this host.
pub(crate) async fn bake(
    host: &Arc<HostResources>,
    variant: Variant,
    builds: &Arc<Builds>,
    build: &BuildId,
) -> Result<BakedTemplate> {
    let files = boot_files(host, variant, builds, build).await?;
    let dir = variant.dir(&host.layout).join(&files.key);
    let snapshot = match Snapshot::open(&dir, host.engine.capabilities()) {
        Ok(snapshot) if snapshot.verify(&host.shutdown).await.is_ok() => snapshot,
        _ => {
            host.remove_dir(dir.clone()).await;
            let snapshot = boot_and_save(host, variant, &files, dir, builds, build).await?;
            snapshot.checksum_in_background(host, Duration::ZERO);
            remove_other_bakes(host, variant, &files.key).await;
            snapshot
        }
    };
    let recipe = variant.recipe;
    Ok(BakedTemplate {
        template: recipe.name.clone(),
        name: variant.name(),
        key: files.key,
        snapshot,
        warm_commands: recipe.warm.clone(),
    })
}

async fn boot_files(
    host: &Arc<HostResources>,
    variant: Variant,
    builds: &Arc<Builds>,
    build: &BuildId,
) -> Result<BakeFiles> {
    let (host, builds, build) = (host.clone(), builds.clone(), build.clone());
    blocking(move || {
        let progress = |step: Progress<'_>| {
            let line = step.to_string();
            builds.progress(&build, step.phase.label(), line);
        };
        let kernel = Kernel::ensure(&host.config.cache_dir, &progress)?;
        let image = ImageBuilder::new(&host.config.cache_dir).ensure(variant.recipe, &progress)?;
        let boot = ensure_boot_files(&host, &kernel)?;
        let key = template_key(&host, variant, &boot, &image);
        let in_store = host.layout.image(&image.key);
        if !in_store.exists() {
            builds.progress(&build, "import", "copying the image into the store".to_owned());
            let staging = host.store.stage()?;
            let copy = staging.path().join("image");
            host.store.import_file(&image.path, &copy)?;
            std::fs::rename(&copy, &in_store).map_err(AgentError::io("rename", &in_store))?;
        }
        Ok(BakeFiles {
            kernel: boot.kernel,
            initrd: boot.initrd,
            image: in_store,
            release: kernel.release,
            key,
        })
    })
    .await
}

fn template_key(
    host: &HostResources,
    variant: Variant,
    boot: &kernel_files::BootFiles,
    image: &Image,
) -> String {
    let mut hasher = blake3::Hasher::new();
    let Variant { recipe, shape } = variant;
    for part in [
        boot.key.as_str(),
        &image.key,
        &host.engine.capabilities().compatibility_key,
        // An update of the engine within a series bakes afresh, so that nothing of the old one stays.
        &host.engine.capabilities().version,
        &format!("{} {}", shape.vcpus, shape.memory_mib),
        &recipe.warm.join("\n"),
        &recipe.volume.as_ref().map_or(String::new(), |volume| format!("{} {}", volume.path, volume.size_mb)),
        &kernel_args(),
    ] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

async fn boot_and_save(
    host: &Arc<HostResources>,
    variant: Variant,
    files: &BakeFiles,
    to: PathBuf,
    builds: &Builds,
    build: &BuildId,
) -> Result<Snapshot> {
    let shape = variant.shape;
    let scratch = {
        let store = host.store.clone();
        blocking(move || {
            let staging = store.stage()?;
            drop(store.create_sparse(&staging.path().join("memory"), shape.memory_bytes())?);
            crate::snapshot::keep_private(&staging.path().join("memory"))?;
            Ok::<_, AgentError>(staging)
        })
        .await?
    };
    let empty_memory = scratch.path().join("memory");
    let origin = Origin { memory: &empty_memory, disk: Some(&files.image), shape };
    let name = format!("bake-{}", variant.name());
    let dir = scratch.path().join("machine");
    // Confined like a sandbox: a recipe installs untrusted packages.
    let uid = host.new_uid();
    let confinement = Confinement::Full { uid, gid: uid };
    let (mut resources, mut place) =
        MachineResources::prepare(host, &name, dir, &origin, confinement, &NetworkPolicy::all()).await?;
    let volumes = template_volumes(variant.recipe);
    match blank_volumes(host, variant.recipe, &resources, &volumes).await {
        Ok(volumes) => place.volumes = volumes,
        Err(error) => {
            resources.release(host).await;
            return Err(error);
        }
    }
    builds.progress(build, "boot", format!("booting {} once", variant.name()));
    let boot = Boot {
        shape,
        place,
        kernel: files.kernel.clone(),
        initrd: files.initrd.clone(),
        kernel_args: kernel_args(),
        memory: resources.memory(),
    };
    let saved = match host.engine.boot(boot).await {
        Ok(machine) => {
            let saved =
                settle_and_save(host, variant, files, &resources, machine.as_ref(), volumes, (builds, build))
                    .await;
            kill(machine.as_ref()).await;
            saved.map_err(|error| with_console(error, &resources.console()))
        }
        Err(error) => Err(error.into()),
    };
    resources.release(host).await;
    saved?.publish(host, to).await
}

/// The template's own volumes. Their ids are of no volume: each machine gets one with an id of its own.
fn template_volumes(recipe: &Recipe) -> Vec<VolumeSpec> {
    let own = |volume: &VolumeEntry| VolumeSpec {
        id: VolumeId::random(),
        path: volume.path.clone(),
        read_only: false,
        generation: 0,
    };
    recipe.volume.iter().map(own).collect()
}

/// Empty volumes for the machine of a bake.
async fn blank_volumes(
    host: &Arc<HostResources>,
    recipe: &'static Recipe,
    resources: &MachineResources,
    specs: &[VolumeSpec],
) -> Result<Vec<pandastack_engine::Volume>> {
    let (store, layout) = (host.store.clone(), host.layout.clone());
    let sizes: Vec<u64> = recipe.volume.iter().map(|volume| volume.size_mb << 20).collect();
    let blanks = blocking(move || {
        sizes
            .into_iter()
            .map(|bytes| crate::volume::blank(&store, &layout, bytes))
            .collect::<Result<Vec<_>>>()
    });
    let blanks = blanks.await?;
    let originals = specs.iter().map(|spec| spec.id.clone()).zip(blanks).collect();
    resources.take_volumes(host, originals).await
}

async fn settle_and_save(
    host: &Arc<HostResources>,
    variant: Variant,
    files: &BakeFiles,
    resources: &MachineResources,
    machine: &dyn Machine,
    volumes: Vec<VolumeSpec>,
    (builds, build): (&Builds, &BuildId),
) -> Result<Capture> {
    resources
        .cgroup()
        .add(machine.record().pid)
        .map_err(AgentError::io("move into the control group", &resources.dir))?;
    let Variant { recipe, shape } = variant;
    let stream = machine.connect_guest().await?;
    machine.resume().await?;
    let guest = GuestClient::connect(stream, BOOT_MAX).await?;
    builds.progress(build, "warm", format!("warming {}", recipe.name));
    let spec = pandastack_types::agent_api::SandboxSpec {
        id: pandastack_types::SandboxId::random(),
        incarnation: 0,
        workspace: None,
        env: Default::default(),
        user: None,
        cwd: None,
        idle_timeout_seconds: None,
        network: NetworkPolicy::all(),
        volumes: volumes.clone(),
    };
    let record = SandboxRecord::new(spec, &recipe.name, shape, UID_FIRST, BootMode::Restore);
    // Baked without the operator's settings, because bakes outlive them: machines get the settings
    // when they are created.
    guest.set_identity(identity(&record, &GuestSettings::default(), false)).await?;
    launch::mount_volumes(host, &record.spec, 0, &guest).await?;
    warm::warm(&guest, &recipe.warm).await?;
    builds.progress(build, "save", format!("saving {}", recipe.name));
    guest.quiesce(true).await?;
    machine.pause().await?;
    let images = resources.volumes(&volumes);
    let components = components::booted(host, Some(files.release.clone()));
    let manifest = Manifest { volumes, components, ..Manifest::new(host, &recipe.name, shape) };
    let capture = async {
        let begun = Capture::begin(host, &resources.memory(), manifest).await?;
        begun.clone_volumes(host, images).await?;
        begun.take(host, machine, &resources.disk()).await
    };
    let capture = capture.await;
    // Only now: closing the connection earlier would change the state being saved.
    drop(guest);
    capture
}

/// Adds the kernel's last console lines to a failed boot. A host fault is returned unchanged:
/// tenants do not get its text.
fn with_console(error: AgentError, console: &Path) -> AgentError {
    let text = std::fs::read_to_string(console).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    let tail: Vec<&str> = lines.into_iter().rev().collect();
    if error.is_of_host() {
        tracing::error!(error = %chain(&error), console = tail.join(" | "), "cannot boot a template");
        return error;
    }
    AgentError::Launch(format!("{}; last console lines: {}", chain(&error), tail.join(" | ")))
}

/// Older bakes of the template. Machines made from them keep what they need by hard link.
async fn remove_other_bakes(host: &HostResources, variant: Variant, key: &str) {
    for entry in std::fs::read_dir(variant.dir(&host.layout)).into_iter().flatten().flatten() {
        if entry.file_name() != *key {
            host.remove_dir(entry.path()).await;
        }
    }
}
