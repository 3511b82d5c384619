//! `pandastack sandbox tree`: the fork tree.
//!
//! ```text
//! 5f0c1a2b  base  running  2 m
//! ├── 9e1d77aa  running  1 m
//! │   └── 03ab12cd  hibernated  30 s
//! └── c4d5e6f7  paused  1 m
//! ```

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::Sandbox;

use super::resolve::resolve;
use crate::output::{Output, age};

/// Maximum depth shown; deeper levels are only counted.
const DEPTH_MAX: usize = 64;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show only this sandbox and its descendants: ID, unique ID prefix or name
    id: Option<String>,
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let root = match &args.id {
        Some(text) => Some(resolve(client, text).await?),
        None => None,
    };
    let sandboxes = client.list_sandboxes().await?;
    output.value(&sandboxes, |sandboxes| draw(sandboxes, root.as_ref(), Timestamp::now()))?;
    Ok(ExitCode::SUCCESS)
}

/// Draws the tree. A sandbox whose parent was deleted is a root, marked with the parent's id.
fn draw(sandboxes: &[Sandbox], root: Option<&SandboxId>, now: Timestamp) -> String {
    let mut children: BTreeMap<&SandboxId, Vec<&Sandbox>> = BTreeMap::new();
    for sandbox in sandboxes {
        if let Some(parent) = &sandbox.parent_id {
            children.entry(parent).or_default().push(sandbox);
        }
    }
    let is_root = |sandbox: &&Sandbox| match root {
        Some(root) => sandbox.id == *root,
        None => !sandbox.parent_id.as_ref().is_some_and(|id| sandboxes.iter().any(|other| other.id == *id)),
    };
    let mut lines = Vec::new();
    for sandbox in sandboxes.iter().filter(is_root) {
        let gone = sandbox.parent_id.as_ref().filter(|_| root.is_none());
        let gone = gone.map_or_else(String::new, |id| format!("  (forked from {}, deleted)", short(id)));
        lines.push(format!(
            "{}  {}  {}{gone}",
            short(&sandbox.id),
            sandbox.template,
            status_and_age(sandbox, now)
        ));
        draw_below(&sandbox.id, &children, String::new(), now, &mut lines);
    }
    lines.join("\n")
}

fn draw_below(
    id: &SandboxId,
    children: &BTreeMap<&SandboxId, Vec<&Sandbox>>,
    indent: String,
    now: Timestamp,
    lines: &mut Vec<String>,
) {
    let below = children.get(id).map(Vec::as_slice).unwrap_or_default();
    if indent.chars().count() / 4 >= DEPTH_MAX && !below.is_empty() {
        lines.push(format!("{indent}└── {} more below", below.len()));
        return;
    }
    for (index, child) in below.iter().enumerate() {
        let last = index + 1 == below.len();
        let (branch, under) = if last { ("└── ", "    ") } else { ("├── ", "│   ") };
        lines.push(format!("{indent}{branch}{}  {}", short(&child.id), status_and_age(child, now)));
        draw_below(&child.id, children, format!("{indent}{under}"), now, lines);
    }
}

fn short(id: &SandboxId) -> &str {
    id.as_str().split('-').next().unwrap_or_default()
}

fn status_and_age(sandbox: &Sandbox, now: Timestamp) -> String {
    format!("{}  {}", sandbox.status.as_str(), age(sandbox.created_at, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, parent: Option<&str>) -> Sandbox {
        serde_json::from_value(serde_json::json!({
            "id": format!("{id}-0000"), "workspace": "w", "template": "base", "cpu": 1, "memory_mb": 512,
            "status": "running", "host_reachable": true, "engine": "e", "isolation": "emulated",
            "metadata": {}, "persistent": false, "created_at": "2026-01-01T00:00:00Z",
            "parent_id": parent.map(|parent| format!("{parent}-0000")),
        }))
        .unwrap()
    }

    #[test]
    fn forks_are_drawn_below_their_parents() {
        let all = [
            sandbox("a", None),
            sandbox("b", Some("a")),
            sandbox("c", Some("b")),
            sandbox("d", Some("a")),
            sandbox("e", Some("lost")),
        ];
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        let drawn = draw(&all, None, now);
        let shape: Vec<&str> = drawn.lines().map(|line| line.split("  running").next().unwrap()).collect();
        assert_eq!(shape, ["a  base", "├── b", "│   └── c", "└── d", "e  base"]);
        assert!(drawn.ends_with("(forked from lost, deleted)"), "{drawn}");
        let below: SandboxId = "b-0000".parse().unwrap();
        assert_eq!(draw(&all, Some(&below), now).lines().count(), 2);
    }
}
