//! Forking a sandbox into children on the same host, and promoting one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use pandastack_agent_client::AgentClient;
use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_store::{Change, IdempotencyKey, SandboxRecord, SandboxSpecRecord, Select, StoreError};
use pandastack_types::agent_api::endpoints::ForkSandbox;
use pandastack_types::agent_api::{AgentFork, ChildOutcome};
use pandastack_types::api::{ForkError, Lineage, Metadata, Promote, Promoted};
use pandastack_types::limits::ANCESTORS_MAX;
use pandastack_types::{Error, Owner, Result, SandboxId, SandboxState, Transition, TreeId};

use super::create::{agent_spec, undo};
use super::{MAKE_WAIT, delete, options_for};
use crate::Sandboxes;
use crate::in_flight::OperationKey;
use crate::placement::PlacementRefused;
use crate::tenancy::is_emulated;
use crate::volumes::attach::DerivedVolumes;

/// Labels of a child: of its fork, and of a candidate.
const TREE_LABEL: &str = "fork_tree_id";
const PARENT_LABEL: &str = "fork_parent_id";
const CANDIDATE_LABEL: &str = "explore";
const CANDIDATE_TTL_LABEL: &str = "explore_ttl";
/// Siblings deleted at once by a promote.
const DELETES_AT_ONCE: usize = 8;

/// The result of a fork.
pub struct ForkResult {
    /// Names the fork.
    pub tree: TreeId,
    /// Milliseconds for which the parent was paused.
    pub pause_ms: f64,
    /// Children that were created.
    pub children: Vec<SandboxRecord>,
    /// Reasons of the failed children.
    pub errors: Vec<ForkError>,
}

/// Forks a machine of a service into one for another of its things, such as `database:<id>`.
pub async fn fork_owned(
    sandboxes: &Arc<Sandboxes>,
    parent: SandboxRecord,
    client: AgentClient,
    owner: Owner,
) -> Result<SandboxRecord> {
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let tree = TreeId::random();
            let child = child_of(&parent, &Metadata::default(), &tree);
            let child = SandboxRecord { owner: Some(owner.clone()), parent: None, tree: None, ..child };
            let id = parent.id.clone();
            let forked = run(&own, parent, client, tree, vec![child], None).await?;
            let none = || Error::internal(format!("the fork of `{id}` has no child"));
            forked.children.into_iter().next().ok_or_else(none)
        })
        .await
}

/// Forks `count` children. Fails if none was made. Runs to its end even if the caller is dropped.
pub async fn fork(
    sandboxes: &Arc<Sandboxes>,
    parent: SandboxRecord,
    client: AgentClient,
    metadata: Metadata,
    count: u32,
    key: Option<IdempotencyKey>,
) -> Result<ForkResult> {
    crate::validate::metadata(&metadata)?;
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let tree = TreeId::random();
            let children = (0..count).map(|_| child_of(&parent, &metadata, &tree)).collect();
            run(&own, parent, client, tree, children, key).await
        })
        .await
}

async fn run(
    sandboxes: &Sandboxes,
    parent: SandboxRecord,
    client: AgentClient,
    tree: TreeId,
    mut children: Vec<SandboxRecord>,
    key: Option<IdempotencyKey>,
) -> Result<ForkResult> {
    if is_emulated(&parent.spec.isolation) && sandboxes.avoids_emulation().await? {
        return Err(PlacementRefused::Emulated.into());
    }
    let mut derived = DerivedVolumes::default();
    for child in &mut children {
        derived.add(sandboxes, child, &parent.spec.volumes).await?;
    }
    derived.insert(sandboxes).await?;
    let marks = children.iter().map(|child| OperationKey::Sandbox(child.id.clone()));
    let _marks: Vec<_> = marks.filter_map(|mark| sandboxes.background.mark(&mark)).collect();
    let events = sandboxes.store.insert_sandboxes(&children, key.as_ref()).await?;
    sandboxes.publish(&parent.workspace, events);
    fault::point("control.fork.inserted").await;
    let body = AgentFork { children: children.iter().map(agent_spec).collect() };
    let forking = client.call(ForkSandbox::new(parent.id.clone()), options_for(&parent, MAKE_WAIT), &body);
    let (answer, synced) = tokio::join!(forking, sandboxes.store.sync());
    let answer = match synced.map_err(Error::from).and(answer.map_err(Error::from)) {
        Ok(answer) => answer,
        Err(error) => {
            for child in &children {
                undo(sandboxes, child, Some(&client), &error.message).await;
            }
            return Err(error);
        }
    };
    fault::point("control.fork.made").await;
    let mut forked = ForkResult { tree, pause_ms: answer.pause_ms, children: Vec::new(), errors: Vec::new() };
    let mut outcomes = answer.children.into_iter();
    for (index, child) in (0..).zip(&children) {
        let outcome = outcomes.next().unwrap_or(ChildOutcome::Failed("its host did not report it".into()));
        match settle(sandboxes, &client, child, outcome, answer.pause_ms).await {
            Ok(record) => forked.children.push(record),
            Err(err) => forked.errors.push(ForkError { index, err }),
        }
    }
    if let (true, Some(first)) = (forked.children.is_empty(), forked.errors.first()) {
        return Err(Error::new(
            pandastack_types::ErrorCode::GuestUnavailable,
            format!("sandbox `{}` could not be forked: {}", parent.id, first.err),
        ));
    }
    fault::point("control.fork.done").await;
    Ok(forked)
}

/// Updates a child's row to the state of its machine.
async fn settle(
    sandboxes: &Sandboxes,
    client: &AgentClient,
    child: &SandboxRecord,
    outcome: ChildOutcome,
    pause_ms: f64,
) -> Result<SandboxRecord, String> {
    let why = match outcome {
        ChildOutcome::Made(seen) => {
            let change = Change { pause_ms: Some(pause_ms), ..Change::at(now()).with_observed(*seen) };
            match sandboxes.transition(&child.id, Transition::Created, &change).await {
                Ok(record) => return Ok(record),
                Err(error) => Error::from(error).message,
            }
        }
        ChildOutcome::Failed(why) => why,
    };
    undo(sandboxes, child, Some(client), &why).await;
    Err(why)
}

fn child_of(parent: &SandboxRecord, given: &Metadata, tree: &TreeId) -> SandboxRecord {
    let at = now();
    let mut metadata = parent.metadata.clone();
    // A winner's own children are not candidates just because it once was one.
    metadata.remove(CANDIDATE_LABEL);
    metadata.remove(CANDIDATE_TTL_LABEL);
    metadata.extend(given.clone());
    metadata.insert(TREE_LABEL.to_owned(), tree.to_string());
    metadata.insert(PARENT_LABEL.to_owned(), parent.id.to_string());
    let candidate_ttl = given
        .get(CANDIDATE_LABEL)
        .filter(|value| *value == "1")
        .and_then(|_| given.get(CANDIDATE_TTL_LABEL)?.parse::<u64>().ok());
    let line = std::iter::once(parent.id.clone()).chain(parent.spec.ancestors.iter().cloned());
    let spec = SandboxSpecRecord {
        ancestors: line.take(ANCESTORS_MAX).collect(),
        candidate: candidate_ttl.is_some(),
        promoted: false,
        from_snapshot: None,
        guest_ip: None,
        residency: None,
        kept: None,
        boot_mode: None,
        boot_ms: None,
        boot_stages_us: BTreeMap::new(),
        pause_ms: None,
        failure: None,
        usage: Default::default(),
        egress_denied: 0,
        name: None,
        ..parent.spec.clone()
    };
    let own_ttl = (!spec.persistent).then_some(spec.ttl_seconds);
    let ttl = [own_ttl, candidate_ttl].into_iter().flatten().min();
    SandboxRecord {
        id: SandboxId::random(),
        state: SandboxState::Creating,
        incarnation: 1,
        parent: Some(parent.id.clone()),
        tree: Some(tree.clone()),
        owner: None,
        created_at: at,
        changed_at: at,
        expires_at: ttl.and_then(|ttl| after_seconds(at, ttl)),
        metadata,
        spec,
        ..parent.clone()
    }
}

/// Keeps a candidate and, if requested, deletes the other children of its tree that were not promoted
/// before. The store decides in one step, so of two at the same time one is refused. Runs to its end even
/// if the caller is dropped.
pub async fn promote(
    sandboxes: &Arc<Sandboxes>,
    winner: SandboxRecord,
    request: &Promote,
) -> Result<Promoted> {
    let Some(tree) = winner.tree.clone() else {
        return Err(Error::bad_request(format!(
            "sandbox `{}` is not a child of a fork; promote one that is",
            winner.id
        )));
    };
    if request.tree_id.as_ref().is_some_and(|given| *given != tree) {
        return Err(Error::bad_request(format!(
            "sandbox `{}` belongs to tree `{tree}`; set that `tree_id`",
            winner.id
        )));
    }
    let (own, alone) = (Arc::clone(sandboxes), request.cleanup_siblings);
    sandboxes.owned(async move { promote_in(&own, winner, tree, alone).await }).await
}

async fn promote_in(
    sandboxes: &Sandboxes,
    winner: SandboxRecord,
    tree: TreeId,
    alone: bool,
) -> Result<Promoted> {
    let promotion = match sandboxes.store.promote(&winner.workspace, &tree, &winner.id, alone, now()).await {
        // The parent existed a moment ago.
        Err(StoreError::NotFound { .. }) => {
            return Err(Error::conflict(format!(
                "sandbox `{}` no longer exists and cannot be promoted; it was deleted, or another child of \
                 its fork \
                 was promoted first",
                winner.id
            )));
        }
        promoted => promoted?,
    };
    sandboxes.publish(&winner.workspace, promotion.events);
    sandboxes.expiry_changed.notify_one();
    let stays = |id: SandboxId| (id.to_string(), "it was promoted too, so it is kept".to_owned());
    let mut failures: BTreeMap<_, _> = promotion.staying.into_iter().map(stays).collect();
    let results = futures::stream::iter(promotion.leaving).map(|sibling| async move {
        let done = delete::carry_out(sandboxes, &sibling).await;
        (sibling.id, done)
    });
    let results: Vec<_> = results.buffered(DELETES_AT_ONCE).collect().await;
    let mut deleted = Vec::new();
    for (id, result) in results {
        match result {
            Ok(()) => deleted.push(id),
            Err(error) => drop(failures.insert(id.to_string(), error.message)),
        }
    }
    Ok(Promoted { winner: winner.id, tree_id: tree, deleted, failures })
}

/// Ancestors, siblings and children of a sandbox.
pub async fn lineage(sandboxes: &Sandboxes, record: SandboxRecord) -> Result<Lineage> {
    let workspace = record.workspace.clone();
    let children = Select::Children(workspace.clone(), record.id.clone());
    let children = sandboxes.store.sandboxes(&children).await?;
    let mut siblings = match &record.tree {
        Some(tree) => sandboxes.store.sandboxes(&Select::Tree(workspace, tree.clone())).await?,
        None => Vec::new(),
    };
    siblings.retain(|sibling| sibling.id != record.id);
    let shown = |records: Vec<SandboxRecord>| {
        records.into_iter().map(|record| crate::view::sandbox(&sandboxes.hosts, record)).collect()
    };
    Ok(Lineage {
        id: record.id,
        parent_id: record.parent,
        tree_id: record.tree,
        ancestors: record.spec.ancestors,
        children: shown(children),
        siblings: shown(siblings),
    })
}
