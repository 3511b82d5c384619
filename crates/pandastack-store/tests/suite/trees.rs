//! Children of a fork: requirements on every store; listed in `main.rs`.

use std::collections::BTreeSet;

use pandastack_store::*;
use pandastack_types::{SandboxId, SandboxState, Transition, TreeId};

use super::{new_sandbox, now, ws};

/// `count` running children of one fork, oldest first.
async fn children(store: &dyn Store, count: usize) -> (TreeId, Vec<SandboxId>) {
    let tree = TreeId::random();
    for _ in 0..count {
        let mut child = new_sandbox();
        child.tree = Some(tree.clone());
        child.spec.candidate = true;
        store.insert_sandboxes(std::slice::from_ref(&child), None).await.unwrap();
        store.transition(&child.id, Transition::Created, &Change::at(now())).await.unwrap();
    }
    let made = store.sandboxes(&Select::Tree(ws(), tree.clone())).await.unwrap();
    (tree, made.into_iter().map(|child| child.id).collect())
}

async fn state(store: &dyn Store, id: &SandboxId) -> SandboxState {
    store.sandbox(None, id).await.unwrap().state
}

pub(super) async fn a_promotion_decides_about_its_tree(store: &dyn Store) {
    let (tree, ids) = children(store, 3).await;
    let (_, others) = children(store, 1).await;
    let promote = async |id, alone| store.promote(&ws(), &tree, id, alone, now()).await;

    let first = promote(&ids[0], false).await.unwrap();
    assert_eq!((first.events.len(), first.leaving.len(), first.staying.len()), (1, 0, 0));
    let kept = store.sandbox(None, &ids[0]).await.unwrap();
    assert!(kept.spec.promoted && !kept.spec.candidate);

    let second = promote(&ids[1], true).await.unwrap();
    assert_eq!(second.staying, ids[..1], "one that was promoted stays");
    assert_eq!(second.leaving.iter().map(|row| row.id.clone()).collect::<Vec<_>>(), ids[2..]);
    let kinds: Vec<_> = second.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["promoted", Transition::Deleting.as_str()]);
    assert_eq!(state(store, &ids[2]).await, SandboxState::Stopping);
    assert_eq!(state(store, &others[0]).await, SandboxState::Running, "another tree");

    assert!(matches!(promote(&ids[2], false).await, Err(StoreError::Held(_))), "it is on its way out");
    assert!(matches!(promote(&others[0], true).await, Err(StoreError::NotFound { .. })), "not of this tree");
    let again = promote(&ids[1], true).await.unwrap();
    assert_eq!(again.leaving.len(), 1, "a repeated call finishes what is left");
    assert_eq!(again.events.len(), 1, "and does not tell it again");
}

pub(super) async fn one_of_two_promotions_wins(store: &dyn Store) {
    for _ in 0..10 {
        let (tree, ids) = children(store, 4).await;
        let workspace = ws();
        let calls = ids.iter().map(|id| store.promote(&workspace, &tree, id, true, now()));
        let answers = futures::future::join_all(calls).await;
        let won: Vec<_> = ids.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).collect();
        let [(winner, Ok(promotion))] = won[..] else { panic!("{answers:?}") };
        let refused = answers.iter().filter(|answer| matches!(answer, Err(StoreError::Held(_)))).count();
        assert_eq!(refused, 3, "{answers:?}");
        let leaving: BTreeSet<_> = promotion.leaving.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(leaving.len(), 3);
        for id in &ids {
            let wanted = if id == winner { SandboxState::Running } else { SandboxState::Stopping };
            assert_eq!(state(store, id).await, wanted);
        }
    }
}
