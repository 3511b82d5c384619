//! Bytes that the agent holds for callers: output of commands and listings that are not sent yet.
//!
//! Guests decide how much they write, and callers how fast they read. Every byte beyond the first few of
//! a call therefore counts against its sandbox, its workspace and the host, until it is sent or dropped.
//! A call is refused before anything happens in the guest if a budget is already used up. If the call
//! itself uses one up, it keeps the bytes that it has, and its answer says that it is truncated.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pandastack_types::limits::{
    OUTPUT_BYTES_HELD_PER_HOST_MAX, OUTPUT_BYTES_HELD_PER_SANDBOX_MAX, OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX,
    OUTPUT_BYTES_RESERVED_PER_WORKSPACE,
};
use pandastack_types::{SandboxId, WorkspaceId};

/// The budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OverBudget {
    #[error(
        "this sandbox holds more than {} MiB of output that no caller has read yet; read or cancel the open \
         calls, or stream the output", OUTPUT_BYTES_HELD_PER_SANDBOX_MAX >> 20
    )]
    Sandbox,
    #[error(
        "the sandboxes of this workspace hold more than {} MiB of output that no caller has read yet; read \
         or cancel the open calls, or stream the output", OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX >> 20
    )]
    Workspace,
    #[error("the host holds too much output that no caller has read yet; try again shortly")]
    Host,
}

/// Bytes held by all calls of a host.
#[derive(Debug, Default)]
pub(crate) struct HeldOutput(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    total: usize,
    sandboxes: HashMap<SandboxId, usize>,
    workspaces: HashMap<WorkspaceId, usize>,
}

impl HeldOutput {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The budgets of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct OutputBudget {
    held: Arc<HeldOutput>,
    sandbox: SandboxId,
    /// `None` for a sandbox that was created before agents recorded the workspace.
    workspace: Option<WorkspaceId>,
}

impl OutputBudget {
    pub(crate) fn new(held: &Arc<HeldOutput>, sandbox: &SandboxId, workspace: Option<&WorkspaceId>) -> Self {
        Self { held: Arc::clone(held), sandbox: sandbox.clone(), workspace: workspace.cloned() }
    }

    /// The workspace that pays.
    pub(crate) fn workspace(&self) -> Option<&WorkspaceId> {
        self.workspace.as_ref()
    }

    /// Begins a call, unless a budget is used up.
    pub(crate) fn begin(&self) -> Result<OutputLease, OverBudget> {
        self.admit(&self.held.lock(), 1)?;
        Ok(OutputLease { budget: self.clone(), bytes: 0 })
    }

    fn admit(&self, held: &Held, bytes: usize) -> Result<(), OverBudget> {
        let of_sandbox = held.sandboxes.get(&self.sandbox).copied().unwrap_or(0);
        let of_workspace = self.workspace.as_ref().map(|id| held.workspaces.get(id).copied().unwrap_or(0));
        if of_sandbox + bytes > OUTPUT_BYTES_HELD_PER_SANDBOX_MAX {
            return Err(OverBudget::Sandbox);
        }
        if of_workspace.unwrap_or(0) + bytes > OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX {
            return Err(OverBudget::Workspace);
        }
        // Others cannot use up a workspace's own part.
        let has_own = of_workspace.unwrap_or(of_sandbox) + bytes <= OUTPUT_BYTES_RESERVED_PER_WORKSPACE;
        match has_own || held.total + bytes <= OUTPUT_BYTES_HELD_PER_HOST_MAX {
            true => Ok(()),
            false => Err(OverBudget::Host),
        }
    }
}

/// Bytes that one call holds, given back when dropped.
#[derive(Debug)]
pub(crate) struct OutputLease {
    budget: OutputBudget,
    bytes: usize,
}

impl OutputLease {
    /// Counts bytes before they are held.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let mut held = self.budget.held.lock();
        self.budget.admit(&held, bytes)?;
        held.total += bytes;
        *held.sandboxes.entry(self.budget.sandbox.clone()).or_default() += bytes;
        if let Some(workspace) = &self.budget.workspace {
            *held.workspaces.entry(workspace.clone()).or_default() += bytes;
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Gives bytes back that are not held any more, at most all that were taken.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut held = self.budget.held.lock();
        held.total -= bytes;
        subtract(&mut held.sandboxes, self.budget.sandbox.clone(), bytes);
        if let Some(workspace) = &self.budget.workspace {
            subtract(&mut held.workspaces, workspace.clone(), bytes);
        }
    }
}

impl Drop for OutputLease {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// Subtracts from an entry, and removes it at zero.
fn subtract<K: Eq + Hash>(held: &mut HashMap<K, usize>, key: K, bytes: usize) {
    if let Entry::Occupied(mut entry) = held.entry(key) {
        *entry.get_mut() -= bytes;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn budget(held: &Arc<HeldOutput>, sandbox: &str, workspace: &str) -> OutputBudget {
        OutputBudget::new(held, &sandbox.parse().unwrap(), Some(&workspace.parse().unwrap()))
    }

    #[test]
    fn output_budgets_apply_per_sandbox_workspace_and_host() {
        let held = Arc::new(HeldOutput::default());
        let mut one = budget(&held, "a1", "a").begin().unwrap();
        one.take(OUTPUT_BYTES_HELD_PER_SANDBOX_MAX).unwrap();
        assert_eq!(one.take(1), Err(OverBudget::Sandbox));
        assert_eq!(budget(&held, "a1", "a").begin().unwrap_err(), OverBudget::Sandbox);

        let mut sibling = budget(&held, "a2", "a").begin().unwrap();
        sibling.take(OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX - OUTPUT_BYTES_HELD_PER_SANDBOX_MAX).unwrap();
        assert_eq!(budget(&held, "a3", "a").begin().unwrap_err(), OverBudget::Workspace);

        let other = |number: u32| {
            let mut other =
                budget(&held, &format!("b{number}"), &format!("w{}", number / 16)).begin().ok()?;
            other.take(MIB).ok().map(|()| other)
        };
        let others: Vec<_> = (0..).map_while(other).collect();
        let of_others = OUTPUT_BYTES_HELD_PER_HOST_MAX - OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX;
        assert_eq!(others.len() * MIB, of_others + OUTPUT_BYTES_RESERVED_PER_WORKSPACE);
        let mut late = budget(&held, "c", "c").begin().unwrap();
        late.take(OUTPUT_BYTES_RESERVED_PER_WORKSPACE).unwrap();
        assert_eq!(late.take(1), Err(OverBudget::Host));
        drop((others, late));
        one.give_back(MIB);
        one.take(MIB).unwrap();
        drop((one, sibling));
        let held = held.lock();
        assert_eq!((held.total, held.sandboxes.len(), held.workspaces.len()), (0, 0, 0));
    }
}
