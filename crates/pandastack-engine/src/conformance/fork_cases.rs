//! Cases of engines that can fork.

use std::time::Duration;

use super::{CaseResult, Failure, Question, Suite, TEMPLATE_NUMBER, expect, one, save};
use crate::{Pause, Restore, RunState, SaveTarget};

/// Time for which a parent that may not resume yet is watched: longer than a fork takes.
const UNTOLD_MIN: Duration = Duration::from_millis(300);

impl Suite<'_> {
    pub(super) async fn forks_are_independent(&self) -> CaseResult {
        let parent = self.restored().await?;
        self.run_and_ask(&*parent, Question::Remember(40)).await?;
        parent.pause().await?;
        let mut places = Vec::new();
        for _ in 0..3 {
            places.push(self.fixture.place_beside(&*parent).await);
        }
        let children: Vec<_> = parent.fork(places).await?.into_iter().collect::<Result<_, _>>()?;
        expect(children.len(), 3, "number of children")?;
        for (number, child) in children.iter().enumerate() {
            expect(child.run_state().await?, RunState::Paused, "state of a child")?;
            expect(self.run_and_ask(&**child, Question::Recall).await?, 40, "memory of a child")?;
            self.ask(&**child, Question::Remember(41 + number as u64)).await?;
        }
        expect(self.run_and_ask(&*parent, Question::Recall).await?, 40, "memory of the parent")?;
        for (number, child) in children.iter().enumerate() {
            expect(
                self.ask(&**child, Question::Recall).await?,
                41 + number as u64,
                "memory of a child, later",
            )?;
            child.kill().await?;
        }
        expect(self.ask(&*parent, Question::Recall).await?, 40, "memory of the parent, later")?;
        Ok(parent.kill().await?)
    }

    pub(super) async fn forks_have_disks_of_their_own(&self) -> CaseResult {
        let parent = self.restored().await?;
        self.run_and_ask(&*parent, Question::Write(50)).await?;
        parent.pause().await?;
        let child = self.fork_one(&*parent).await?;
        expect(self.run_and_ask(&*child, Question::Read).await?, 50, "disk of the child")?;
        self.ask(&*child, Question::Write(51)).await?;
        expect(self.run_and_ask(&*parent, Question::Read).await?, 50, "disk of the parent")?;
        self.ask(&*parent, Question::Write(52)).await?;
        expect(self.ask(&*child, Question::Read).await?, 51, "disk of the child, later")?;
        child.kill().await?;
        Ok(parent.kill().await?)
    }

    pub(super) async fn forks_of_forks_continue(&self) -> CaseResult {
        let mut line = vec![self.restored().await?];
        for generation in 1..=3 {
            let parent = line[line.len() - 1].clone();
            self.run_and_ask(&*parent, Question::Remember(60 + generation)).await?;
            parent.pause().await?;
            let child = self.fork_one(&*parent).await?;
            expect(
                self.run_and_ask(&*child, Question::Recall).await?,
                60 + generation,
                "memory of a descendant",
            )?;
            line.push(child);
        }
        for (generation, machine) in line.iter().enumerate().take(3) {
            let answer = self.run_and_ask(&**machine, Question::Recall).await?;
            expect(answer, 61 + generation as u64, "memory of an ancestor")?;
        }
        for machine in line {
            machine.kill().await?;
        }
        Ok(())
    }

    pub(super) async fn a_saved_fork_restores(&self) -> CaseResult {
        let parent = self.restored().await?;
        self.run_and_ask(&*parent, Question::Remember(70)).await?;
        parent.pause().await?;
        let child = self.fork_one(&*parent).await?;
        self.run_and_ask(&*child, Question::Remember(71)).await?;
        child.pause().await?;
        let SaveTarget { state, memory, .. } = save(self.fixture, &*child).await?;
        let place = self.fixture.place(&child.record().disk).await;
        let restore = Restore { shape: self.fixture.shape(), place, state, memory };
        let restored = self.fixture.engine().restore(restore).await?;
        expect(self.run_and_ask(&*restored, Question::Recall).await?, 71, "memory of the saved fork")?;
        expect(self.run_and_ask(&*child, Question::Recall).await?, 71, "memory of the fork")?;
        for machine in [restored, child, parent] {
            machine.kill().await?;
        }
        Ok(())
    }

    pub(super) async fn forks_outlive_their_parent(&self) -> CaseResult {
        let parent = self.restored().await?;
        self.run_and_ask(&*parent, Question::Remember(80)).await?;
        parent.pause().await?;
        let child = self.fork_one(&*parent).await?;
        parent.kill().await?;
        expect(self.run_and_ask(&*child, Question::Recall).await?, 80, "memory of an orphan")?;
        child.kill().await?;
        expect(child.exited().borrow().is_some(), true, "event of the orphan's end")
    }

    pub(super) async fn an_adopted_machine_forks(&self) -> CaseResult {
        let parent = self.restored().await?;
        self.run_and_ask(&*parent, Question::Remember(90)).await?;
        parent.pause().await?;
        let record = parent.record().clone();
        drop(parent);
        let parent = self.fixture.engine().adopt(record).await?;
        let child = self.fork_one(&*parent).await?;
        let record = child.record().clone();
        drop(child);
        let child = self.fixture.engine().adopt(record).await?;
        expect(self.run_and_ask(&*child, Question::Recall).await?, 90, "memory of the adopted child")?;
        child.kill().await?;
        Ok(parent.kill().await?)
    }

    pub(super) async fn a_parent_goes_on_at_once(&self) -> CaseResult {
        let parent = self.restored().await?;
        self.run_and_ask(&*parent, Question::Remember(95)).await?;
        parent.pause().await?;
        let places =
            vec![self.fixture.place_beside(&*parent).await, self.fixture.place_beside(&*parent).await];
        let (sender, mut resumed) = tokio::sync::oneshot::channel();
        let (told, copied) = tokio::sync::oneshot::channel();
        let checked = async {
            let early = tokio::time::timeout(UNTOLD_MIN, &mut resumed).await;
            let before = if early.is_ok() { Ok(RunState::Running) } else { parent.run_state().await };
            let _ = told.send(());
            (before, resumed.await)
        };
        let forking = parent.fork_and_resume(places, Pause::begun(copied, sender));
        let (children, (before, resumed)) = tokio::join!(forking, checked);
        expect(before?, RunState::Paused, "state of the parent while its disk is copied")?;
        expect(resumed.is_ok(), true, "word that the parent goes on")?;
        expect(parent.run_state().await?, RunState::Running, "state of the parent")?;
        expect(self.ask(&*parent, Question::Remember(96)).await?, 96, "answer of the parent")?;
        for child in children? {
            let child = child?;
            expect(child.run_state().await?, RunState::Paused, "state of a child")?;
            expect(self.run_and_ask(&*child, Question::Recall).await?, 95, "memory of a child")?;
            child.kill().await?;
        }
        Ok(parent.kill().await?)
    }

    pub(super) async fn a_parent_is_forked_when_it_is_paused(&self) -> CaseResult {
        let parent = self.restored().await?;
        parent.resume().await?;
        let places = vec![self.fixture.place_beside(&*parent).await];
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let (told, begun) = tokio::sync::oneshot::channel();
        let (_, copied) = tokio::sync::oneshot::channel();
        let (resumed, goes_on) = tokio::sync::oneshot::channel();
        let pausing = async {
            let _ = is_ready.await;
            self.ask(&*parent, Question::Remember(97)).await?;
            parent.pause().await?;
            let _ = told.send(());
            Ok::<_, Failure>(goes_on.await)
        };
        let pause = Pause { ready, begun, copied, resumed };
        let (children, paused) = tokio::join!(parent.fork_and_resume(places, pause), pausing);
        expect(paused?.is_ok(), true, "word that the parent goes on")?;
        let child = one(children?)?;
        expect(self.run_and_ask(&*child, Question::Recall).await?, 97, "memory of the child")?;
        expect(self.ask(&*parent, Question::Recall).await?, 97, "memory of the parent")?;
        child.kill().await?;
        Ok(parent.kill().await?)
    }

    pub(super) async fn a_parent_that_is_not_paused_goes_on(&self) -> CaseResult {
        let parent = self.restored().await?;
        parent.resume().await?;
        let places = vec![self.fixture.place_beside(&*parent).await];
        let (ready, _) = tokio::sync::oneshot::channel();
        let (_, begun) = tokio::sync::oneshot::channel();
        let (_, copied) = tokio::sync::oneshot::channel();
        let (resumed, _) = tokio::sync::oneshot::channel();
        let forked = parent.fork_and_resume(places, Pause { ready, begun, copied, resumed }).await;
        expect(forked.is_err(), true, "refusal to fork what was not paused")?;
        expect(self.ask(&*parent, Question::Recall).await?, TEMPLATE_NUMBER, "answer after the refusal")?;
        Ok(parent.kill().await?)
    }

    pub(super) async fn a_bad_place_fails_alone(&self) -> CaseResult {
        let parent = self.restored().await?;
        let good = self.fixture.place_beside(&*parent).await;
        let mut bad = self.fixture.place_beside(&*parent).await;
        bad.disk = self.fixture.fresh_path("missing");
        let mut outcomes = parent.fork(vec![bad, good]).await?;
        expect(outcomes.len(), 2, "number of outcomes")?;
        let good = one(vec![outcomes.remove(1)])?;
        expect(outcomes.remove(0).is_err(), true, "failure of the bad place")?;
        expect(self.run_and_ask(&*good, Question::Recall).await?, TEMPLATE_NUMBER, "memory of the good one")?;
        good.kill().await?;
        expect(self.run_and_ask(&*parent, Question::Recall).await?, TEMPLATE_NUMBER, "memory of the parent")?;
        Ok(parent.kill().await?)
    }

    pub(super) async fn forking_a_running_machine_is_refused(&self) -> CaseResult {
        let parent = self.restored().await?;
        parent.resume().await?;
        let place = self.fixture.place_beside(&*parent).await;
        expect(parent.fork(vec![place]).await.is_err(), true, "refusal to fork a running machine")?;
        expect(self.ask(&*parent, Question::Recall).await?, TEMPLATE_NUMBER, "answer after the refusal")?;
        Ok(parent.kill().await?)
    }
}
