use std::task::Poll;

use async_trait::async_trait;
use pandastack_edge::{AccessLog, Edge, Route, RouteSource, RouteUnavailable};
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::user_sandbox::UserSandbox;
use pandastack_sandboxes::{Background, EventNotice};
use pandastack_store::{self as store, SandboxRecord, SnapshotRecord};
use pandastack_types::HostId;
use pandastack_types::api::{ExecResult, Lifecycle, PatchLifecycle, RunRequest};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::*;

/// A host without room: the machines of these tests exist before they begin.
struct NoRoom;

fn no_room() -> Error {
    Error::new(ErrorCode::NoCapacity, "no host has room")
}

#[async_trait]
impl Machines for NoRoom {
    async fn create(&self, _: Owner, _: MachineSpec, _: WaitPolicy) -> Result<Machine> {
        Err(no_room())
    }
    async fn open(&self, _: &WorkspaceId, _: &SandboxId) -> Result<Machine> {
        Err(no_room())
    }
    async fn owned_by(&self, _: &Owner) -> Result<Vec<SandboxRecord>> {
        Ok(Vec::new())
    }
    async fn fork(&self, _: &Machine, _: Owner) -> Result<Machine> {
        Err(no_room())
    }
    async fn delete(&self, _: SandboxRecord, _: Option<&str>) -> Result<()> {
        Ok(())
    }
    async fn find(&self, _: Option<&WorkspaceId>, id: &SandboxId) -> store::Result<SandboxRecord> {
        unreachable!("no test deletes {id}")
    }
    fn sandbox(&self, _: &WorkspaceId, id: &SandboxId) -> UserSandbox {
        unreachable!("no test opens {id}")
    }
    async fn run(
        &self,
        _: WorkspaceId,
        _: RunRequest,
        _: usize,
        _: CancellationToken,
    ) -> Result<(SandboxId, ExecResult)> {
        Err(no_room())
    }
    async fn lifecycle(&self, record: &SandboxRecord) -> Lifecycle {
        unreachable!("no test shows {}", record.id)
    }
    async fn patch(&self, _: SandboxRecord, _: PatchLifecycle) -> Result<()> {
        Ok(())
    }
    async fn snapshot(&self, _: &WorkspaceId, id: &SnapshotId) -> store::Result<SnapshotRecord> {
        unreachable!("no test reads {id}")
    }
    async fn user_snapshot(&self, _: &WorkspaceId, _: &SnapshotId) -> Result<SnapshotRecord> {
        Err(no_room())
    }
    async fn snapshots(&self, _: &WorkspaceId) -> Result<Vec<SnapshotRecord>> {
        Ok(Vec::new())
    }
    async fn remove_snapshot(&self, _: &SnapshotRecord) -> Result<()> {
        Ok(())
    }
    fn is_reachable(&self, _: &HostId) -> bool {
        true
    }
    fn events(&self) -> broadcast::Receiver<EventNotice> {
        broadcast::channel(1).1
    }
}

struct NoRoutes;

#[async_trait]
impl RouteSource for NoRoutes {
    async fn find(&self, _: &SandboxId) -> std::result::Result<Option<Route>, RouteUnavailable> {
        Ok(None)
    }
}

fn core() -> Core {
    Core {
        machines: Arc::new(NoRoom),
        edge: Edge::new(Arc::new(NoRoutes), AccessLog::open(None).unwrap()),
        background: Background::new(CancellationToken::new()),
    }
}

/// A pool with one machine that serves one call at a time.
fn pool_of_one() -> Arc<Pool> {
    let pool = Pool::new(Source {
        function: FunctionId::random(),
        version: 1,
        workspace: WorkspaceId::default_workspace(),
        snapshot: SnapshotId::random(),
        concurrency: 1,
    });
    let instance = Arc::new(Instance {
        sandbox: SandboxId::random(),
        began: Instant::now(),
        ended: AtomicBool::new(false),
    });
    let mut state = pool.lock();
    state.instances = 1;
    state.free.push(CallSlot { instance, connection: None, used: false, free_since: Instant::now() });
    drop(state);
    pool
}

fn one_machine() -> Limits {
    Limits { max_instances: 1, queue_max: 10, ..Limits::default() }
}

#[tokio::test]
async fn a_caller_that_leaves_as_its_slot_arrives_gives_the_slot_back() {
    let (core, pool) = (core(), pool_of_one());
    let first = pool.lease(&core, one_machine()).await.unwrap();
    assert!(first.cold);
    {
        let second = pool.lease(&core, one_machine());
        tokio::pin!(second);
        let polled = std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        // The slot is now in the channel, and nobody reads it.
        first.answered();
    }
    let third = pool.lease(&core, one_machine()).await.unwrap();
    assert!(!third.cold);
    assert_eq!(pool.counts(), (1, 0));
}

#[tokio::test]
async fn a_caller_that_left_the_line_is_skipped() {
    let (core, pool) = (core(), pool_of_one());
    let first = pool.lease(&core, one_machine()).await.unwrap();
    {
        let second = pool.lease(&core, one_machine());
        tokio::pin!(second);
        let polled = std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context))).await;
        assert!(polled.is_pending());
    }
    first.answered();
    let third = pool.lease(&core, one_machine()).await.unwrap();
    assert!(third.sandbox().is_some());
}
