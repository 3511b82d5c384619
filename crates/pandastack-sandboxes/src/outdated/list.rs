//! The list of outdated states.

use pandastack_types::api::{
    Component, FrozenKind, OutdatedAction, OutdatedComponent, OutdatedList, OutdatedState,
};
use pandastack_types::limits::OUTDATED_LISTED_MAX;
use pandastack_types::{Owner, Result, WorkspaceId};

use super::OutdatedPolicy;
use super::survey::{Subject, SurveyEntry, bakes, hosts, of_workspace};
use crate::Sandboxes;

/// Scope of a list of states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// States of a workspace.
    Workspace(WorkspaceId),
    /// States of all workspaces, and the platform's templates.
    All,
}

/// Lists outdated states. Wakes nothing.
pub async fn list(sandboxes: &Sandboxes, policy: &OutdatedPolicy, scope: &Scope) -> Result<OutdatedList> {
    let advisories = policy.advisories();
    let (hosts, mut complete) = hosts(sandboxes).await;
    let workspaces = match scope {
        Scope::Workspace(workspace) => vec![workspace.clone()],
        Scope::All => sandboxes.store.workspaces().await?.into_iter().map(|record| record.id).collect(),
    };
    let mut found = match scope {
        Scope::Workspace(_) => Vec::new(),
        Scope::All => bakes(&hosts, &advisories),
    };
    for workspace in &workspaces {
        found.extend(of_workspace(sandboxes, &hosts, workspace, &advisories).await?);
    }
    found.retain(|surveyed| !surveyed.components.is_empty());
    if found.len() > OUTDATED_LISTED_MAX {
        found.truncate(OUTDATED_LISTED_MAX);
        complete = false;
    }
    let items = found.into_iter().map(|surveyed| shown(surveyed, scope)).collect();
    Ok(OutdatedList { items, complete })
}

fn shown(surveyed: SurveyEntry, scope: &Scope) -> OutdatedState {
    let SurveyEntry { host, subject, components, verdict } = surveyed;
    let (name, workspace_id) = match &subject {
        Subject::Sandbox(record) => (record.spec.name.clone(), Some(record.workspace.clone())),
        Subject::Snapshot(record, template) => {
            (template.clone().or_else(|| record.spec.name.clone()), Some(record.workspace.clone()))
        }
        Subject::Bake(_) => (None, None),
    };
    let owner = subject.owner();
    OutdatedState {
        kind: subject.kind(),
        id: subject.id(),
        name,
        workspace_id,
        host_id: (*scope == Scope::All).then_some(host),
        next_step: next_step(&subject, &components, verdict.is_some()),
        owner: owner.map(|owner| owner.to_string()),
        action: verdict.as_ref().map_or(OutdatedAction::Keep, |verdict| verdict.action),
        reported_at: verdict.as_ref().map(|verdict| verdict.reported_at),
        action_from: verdict.map(|verdict| verdict.from),
        components,
    }
}

/// Describes an outdated state, as a sentence without a full stop: `sandbox x sleeps with an
/// outdated guest kernel 6.1.0-9 (current: 6.1.0-37)`.
pub(super) fn sentence(subject: &Subject, components: &[OutdatedComponent]) -> String {
    let holder = match subject {
        Subject::Sandbox(record) => format!("sandbox `{}` sleeps with", record.id),
        Subject::Snapshot(_, Some(template)) => format!("template `{template}` has"),
        Subject::Snapshot(record, None) => format!("snapshot `{}` has", record.id),
        Subject::Bake(name) => format!("template `{name}` has"),
    };
    let parts: Vec<String> = components.iter().map(part).collect();
    format!("{holder} an outdated {}", parts.join(", "))
}

fn part(outdated: &OutdatedComponent) -> String {
    let OutdatedComponent { component, found, current, advisories } = outdated;
    let found = found.as_deref().unwrap_or("of unknown version");
    let current = current.iter().map(|current| format!("current: {current}"));
    let notes: Vec<String> = current.chain(advisories.iter().map(|advisory| advisory.id.clone())).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    format!("{} {found}{notes}", component.label())
}

/// How to bring a state up to date. A sleeping sandbox with a verdict loses its memory without waking.
pub(super) fn next_step(subject: &Subject, components: &[OutdatedComponent], has_verdict: bool) -> String {
    // A component that is the host's of today does not get better by a new state.
    let is_current =
        |outdated: &&OutdatedComponent| outdated.found.is_some() && outdated.found == outdated.current;
    if let Some(outdated) = components.iter().find(is_current) {
        let component = match outdated.component {
            Component::Kernel | Component::Guest => "PandaStack",
            Component::Engine => "the engine",
        };
        return format!("update {component} on its host");
    }
    let owner = subject.owner();
    let id = owner.as_ref().map_or_else(String::new, |owner| owner.id().to_owned());
    let first = if has_verdict { "" } else { "wake it, then " };
    match (owner, subject.kind()) {
        (Some(Owner::App(_)), _) => format!("deploy app `{id}` again"),
        (Some(Owner::Function(_)), _) => format!("deploy function `{id}` again"),
        (Some(Owner::Build(_)), FrozenKind::Sandbox) => "wait for the end of the template build".to_owned(),
        (Some(Owner::Drill(_)), _) => "wait for the end of the trial restore".to_owned(),
        (Some(_), FrozenKind::Sandbox) => {
            format!("change the size with `pandastack db update {id} --size`, which makes a new machine")
        }
        (_, FrozenKind::Sandbox) => {
            format!("{first}drop its memory with `pandastack sandbox hibernate --disk-only {}`", subject.id())
        }
        (_, FrozenKind::Snapshot) => "take a new snapshot of a sandbox with current components".to_owned(),
        (_, FrozenKind::Template) if matches!(subject, Subject::Bake(_)) => {
            "nothing: the next create builds it again".to_owned()
        }
        (_, FrozenKind::Template) => "build the template again".to_owned(),
    }
}
