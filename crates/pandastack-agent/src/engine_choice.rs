//! Chooses the engine for the machines of a host, and gives the reason.
//!
//! Besides the engine crates, only this file and [`crate::EngineChoice`] know engines by name.
//! Everything else looks at [`Capabilities`](pandastack_engine::Capabilities).
//!
//! Machines and snapshots belong to the engine that made them. So a host that has any stays with its
//! engine: `auto` does not switch when another becomes available, and an explicit choice of another
//! is refused.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use pandastack_engine::Engine;
use pandastack_engine::kvm_probe::KvmVerdict;
use pandastack_engine_firecracker::{FirecrackerConfig, FirecrackerEngine};
use pandastack_engine_qemu::{QemuConfig, QemuEngine};

use crate::config::EngineChoice;
use crate::layout::Layout;

/// File in the data directory that names the engine of the last start.
const RECORD: &str = "engine";

/// An engine without its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// Firecracker.
    Firecracker,
    /// QEMU, with KVM or without.
    Qemu,
}

impl EngineKind {
    /// Its value in the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            EngineKind::Firecracker => "firecracker",
            EngineKind::Qemu => "qemu",
        }
    }

    /// The engine of the host's existing machines and snapshots; `None` if the host has none, or if
    /// its store is not mounted.
    pub fn in_use(data_dir: &Path) -> Option<Self> {
        let layout = Layout::new(&data_dir.join("store"), data_dir);
        // Hosts from before engines were recorded have machines of QEMU.
        let recorded = || Self::recorded(data_dir).unwrap_or(EngineKind::Qemu);
        layout.has_machines_or_snapshots().then(recorded)
    }

    /// The engine of the last start; `None` on a new host.
    fn recorded(data_dir: &Path) -> Option<Self> {
        let name = fs::read_to_string(data_dir.join(RECORD)).ok()?;
        [EngineKind::Firecracker, EngineKind::Qemu].into_iter().find(|kind| kind.as_str() == name.trim())
    }

    /// Remembers it for the next start, and returns when the record would survive a power loss. A record that
    /// is lost would make the next start take machines of one engine for those of another.
    pub(crate) fn record(self, data_dir: &Path) -> io::Result<()> {
        if Self::recorded(data_dir) == Some(self) {
            return Ok(());
        }
        let temporary = data_dir.join("engine.new");
        let mut file = fs::File::create(&temporary)?;
        file.write_all(format!("{}\n", self.as_str()).as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, data_dir.join(RECORD))?;
        fs::File::open(data_dir)?.sync_all()
    }
}

/// An engine and the reason why it was chosen.
pub struct ChosenEngine {
    /// The engine, probed.
    pub engine: Arc<dyn Engine>,
    /// Kind of the engine.
    pub kind: EngineKind,
    /// Reason, as one sentence for the log and for `doctor`.
    pub reason: String,
}

/// Inputs of the engine choice.
pub struct EngineSearch<'a> {
    /// The choice in the settings.
    pub choice: EngineChoice,
    /// Verdict on whether KVM runs guests.
    pub kvm: KvmVerdict,
    /// Directory into which `pandastack engine install` puts programs.
    pub data_dir: &'a Path,
    /// For libraries that engines unpack.
    pub library_dir: PathBuf,
    /// The engine of the machines and snapshots that the host has.
    pub in_use: Option<EngineKind>,
}

/// One engine to try.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    kind: EngineKind,
    kvm: bool,
    reason: String,
}

impl EngineSearch<'_> {
    /// Chooses an engine and probes it.
    pub async fn choose(self) -> anyhow::Result<ChosenEngine> {
        let mut passed_over = String::new();
        let candidates = candidates(self.choice, &self.kvm, self.in_use)?;
        let count = candidates.len();
        for (index, Candidate { kind, kvm, reason }) in candidates.into_iter().enumerate() {
            match self.probe(kind, kvm).await {
                Ok(engine) => return Ok(ChosenEngine { engine, kind, reason: reason + &passed_over }),
                Err(error) if index + 1 < count => {
                    passed_over += &format!("; {} is not used: {error:#}", kind.as_str());
                }
                Err(error) => return Err(error.context(format!("preparing the engine `{}`", kind.as_str()))),
            }
        }
        bail!("no engine can run on this host")
    }

    async fn probe(&self, kind: EngineKind, kvm_usable: bool) -> anyhow::Result<Arc<dyn Engine>> {
        let kvm_reason = self.kvm.reason.clone();
        Ok(match kind {
            EngineKind::Firecracker => {
                let config = FirecrackerConfig::installed(self.data_dir, kvm_reason);
                Arc::new(FirecrackerEngine::probe(config).await?)
            }
            EngineKind::Qemu => {
                let library_dir = self.library_dir.clone();
                let config = QemuConfig { binary: None, library_dir, kvm_usable, kvm_reason };
                Arc::new(QemuEngine::probe(config).await?)
            }
        })
    }
}

/// Engines to try, best first. Each is tried only if those before it cannot run here.
fn candidates(
    choice: EngineChoice,
    kvm: &KvmVerdict,
    in_use: Option<EngineKind>,
) -> anyhow::Result<Vec<Candidate>> {
    let wanted = match choice {
        EngineChoice::Auto => in_use,
        EngineChoice::Firecracker => Some(EngineKind::Firecracker),
        EngineChoice::Qemu | EngineChoice::Emulated => Some(EngineKind::Qemu),
    };
    if let (Some(wanted), Some(in_use)) = (wanted, in_use)
        && wanted != in_use
    {
        bail!(
            "this host has machines or snapshots of the engine `{0}`, which `{1}` cannot use; set `engine` \
             to `{0}`, or delete them first",
            in_use.as_str(),
            wanted.as_str()
        );
    }
    if wanted == Some(EngineKind::Firecracker) && !kvm.usable {
        return Err(anyhow::anyhow!("{}", kvm.reason)).context("the engine `firecracker` needs KVM");
    }
    let reason = match (choice, in_use) {
        (EngineChoice::Auto, Some(_)) => "this host has machines or snapshots of it".to_owned(),
        (EngineChoice::Auto, None) => kvm.reason.clone(),
        _ => "the settings name it".to_owned(),
    };
    let use_kvm = kvm.usable && choice != EngineChoice::Emulated;
    let kinds = match wanted {
        Some(kind) => vec![kind],
        None if kvm.usable => vec![EngineKind::Firecracker, EngineKind::Qemu],
        None => vec![EngineKind::Qemu],
    };
    Ok(kinds.into_iter().map(|kind| Candidate { kind, kvm: use_kvm, reason: reason.clone() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(
        choice: EngineChoice,
        usable: bool,
        in_use: Option<EngineKind>,
    ) -> Result<Vec<(EngineKind, bool)>, String> {
        let kvm = KvmVerdict { usable, reason: "the probe says so".to_owned() };
        let found = candidates(choice, &kvm, in_use).map_err(|error| format!("{error:#}"))?;
        Ok(found.into_iter().map(|candidate| (candidate.kind, candidate.kvm)).collect())
    }

    #[test]
    fn auto_prefers_firecracker_then_kvm_then_emulation() {
        use EngineKind::{Firecracker, Qemu};
        assert_eq!(kinds(EngineChoice::Auto, true, None), Ok(vec![(Firecracker, true), (Qemu, true)]));
        assert_eq!(kinds(EngineChoice::Auto, false, None), Ok(vec![(Qemu, false)]));
        assert_eq!(kinds(EngineChoice::Qemu, true, None), Ok(vec![(Qemu, true)]));
        assert_eq!(kinds(EngineChoice::Emulated, true, None), Ok(vec![(Qemu, false)]));
        let refused = kinds(EngineChoice::Firecracker, false, None).unwrap_err();
        assert!(refused.contains("needs KVM") && refused.contains("the probe says so"), "{refused}");
    }

    #[test]
    fn a_host_with_machines_keeps_its_engine() {
        use EngineKind::{Firecracker, Qemu};
        assert_eq!(kinds(EngineChoice::Auto, true, Some(Qemu)), Ok(vec![(Qemu, true)]));
        assert_eq!(kinds(EngineChoice::Auto, true, Some(Firecracker)), Ok(vec![(Firecracker, true)]));
        assert!(kinds(EngineChoice::Auto, false, Some(Firecracker)).is_err());
        for (choice, in_use) in [(EngineChoice::Firecracker, Qemu), (EngineChoice::Qemu, Firecracker)] {
            let refused = kinds(choice, true, Some(in_use)).unwrap_err();
            assert!(refused.contains(in_use.as_str()), "{refused}");
        }
    }

    #[test]
    fn the_engine_of_the_last_start_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        EngineKind::Firecracker.record(dir.path()).unwrap();
        assert_eq!(EngineKind::in_use(dir.path()), None, "it has no machines");
        fs::create_dir_all(dir.path().join("store/snapshots/one")).unwrap();
        for kind in [EngineKind::Firecracker, EngineKind::Qemu] {
            kind.record(dir.path()).unwrap();
            assert_eq!(EngineKind::in_use(dir.path()), Some(kind));
        }
        fs::remove_file(dir.path().join(RECORD)).unwrap();
        assert_eq!(EngineKind::in_use(dir.path()), Some(EngineKind::Qemu), "from before there was a record");
    }
}
