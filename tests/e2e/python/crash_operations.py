"""Operations on sandboxes with kills in between, the steps at which they are held, and the required result.

For each operation: it happened or it did not; acknowledged changes are there; the same call works again.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Set, Tuple
from uuid import uuid4

import httpx

from crash_world import LOOK, TTL_SECONDS, World
from platform_process import wait_until


@dataclass
class Cell:
    """One operation, held at one step, while one thing is killed."""

    victim: str
    operation: "Operation"
    step: str
    #: What the operation is done to; a create makes it.
    sandbox: str = ""
    snapshot: str = ""
    #: Of the call, so that a repetition is known to be one.
    key: str = field(default_factory=lambda: uuid4().hex)
    answer: "Optional[Future[httpx.Response]]" = None

    @property
    def name(self) -> str:
        return f"{self.operation.name}:{self.step}"

    @property
    def label(self) -> str:
        return f"{self.victim}-{self.operation.name}-{self.step}"

    @property
    def child_label(self) -> str:
        return f"{self.label}-child"

    def acknowledged(self) -> Optional[httpx.Response]:
        """Response to the caller, if it reported success."""
        assert self.answer is not None
        try:
            answer = self.answer.result()
        except httpx.TransportError:
            return None
        return answer if answer.is_success else None

    def is_lossy(self) -> bool:
        """Whether machines that ran may be lost."""
        return self.victim in ("machine", "processes", "power")


class Operation:
    """A call on a sandbox that exists."""

    name: str
    method = "POST"
    steps: Tuple[str, ...]
    #: At these the sandbox is what lies on the disk: whatever is killed, it is there.
    sleeping: Tuple[str, ...] = ()
    #: At these it has no process.
    without_machine: Tuple[str, ...] = ()

    def prepare(self, world: World, cell: Cell) -> None:
        cell.sandbox = world.make(cell.label)

    def path(self, cell: Cell) -> str:
        return f"/sandboxes/{cell.sandbox}/{self.name}"

    def body(self, cell: Cell) -> Optional[Dict[str, object]]:
        return None

    def call(self, world: World, cell: Cell) -> httpx.Response:
        return world.request(self.method, self.path(cell), self.body(cell), cell.key)

    def again(self, world: World, cell: Cell) -> httpx.Response:
        return world.until_done(f"{cell.name} again", self.method, self.path(cell), self.body(cell), cell.key)

    def machines(self, world: World, cell: Cell) -> List[int]:
        """Processes of the machine that the operation is about."""
        return world.machines(cell.sandbox)

    def expected(self, cell: Cell) -> Set[str]:
        """Answers that the sandbox may give."""
        return {answer_of(cell.label)}

    def lives(self, world: World, cell: Cell) -> bool:
        """Whether the sandbox exists with all its state. It may be lost only with its machine."""
        fate = world.fate(cell.sandbox, LOOK, self.expected(cell))
        may_be_lost = cell.is_lossy() and cell.step not in self.sleeping
        assert fate == "alive" or (fate == "failed" and may_be_lost), fate
        return fate == "alive"

    def check(self, world: World, cell: Cell) -> None:
        raise NotImplementedError


def answer_of(label: str) -> str:
    return f"{label}\n{label}\nping {label}\n"


class Create(Operation):
    name = "create"
    steps = (
        "create.prepared", "create.forked", "launch.recorded", "create.made", "create.recorded",
        "control.create.inserted", "control.create.made", "control.create.done",
    )
    without_machine = ("create.prepared", "control.create.inserted")

    def prepare(self, world: World, cell: Cell) -> None:
        pass

    def path(self, cell: Cell) -> str:
        return "/sandboxes"

    def body(self, cell: Cell) -> Dict[str, object]:
        metadata = {"cell": cell.label}
        return {"template": "base", "ttl_seconds": TTL_SECONDS, "metadata": metadata, "env": metadata}

    def machines(self, world: World, cell: Cell) -> List[int]:
        return [pid for made in world.sandboxes(cell.label) for pid in world.machines(made)]

    def check(self, world: World, cell: Cell) -> None:
        told = cell.acknowledged()
        if told is not None and self.was_lost(world, cell, told.json()["id"]):
            told, cell.key = None, uuid4().hex
        made = self.again(world, cell).json()["id"]
        assert told is None or made == told.json()["id"]
        assert world.fate(made, "echo $cell", {f"{cell.label}\n"}) == "alive"
        assert list(world.sandboxes(cell.label)) == [made], "one call made one sandbox"

    def was_lost(self, world: World, cell: Cell, made: str) -> bool:
        """Whether the new sandbox lost its machine. Such a sandbox can be deleted."""
        fate = world.fate(made, "echo $cell", {f"{cell.label}\n"})
        assert fate == "alive" or cell.is_lossy(), fate
        if fate == "failed":
            world.expect("DELETE", f"/sandboxes/{made}")
        return fate != "alive"


class Exec(Operation):
    name = "exec"
    steps = ("exec.leased", "exec.ran", "control.exec.answered")

    def body(self, cell: Cell) -> Dict[str, object]:
        return {"cmd": "echo done >> /root/done", "timeout_seconds": 60}

    def check(self, world: World, cell: Cell) -> None:
        if not self.lives(world, cell):
            return
        times = world.run(cell.sandbox, "cat /root/done").count("done")
        assert times == 1 if cell.acknowledged() else times <= 1, f"it ran {times} times"
        self.again(world, cell)
        assert world.run(cell.sandbox, "cat /root/done").count("done") == times + 1


class Fork(Operation):
    name = "fork"
    steps = (
        "fork.prepared", "fork.paused", "fork.forked", "launch.recorded", "fork.made", "fork.settled",
        "control.fork.inserted", "control.fork.made", "control.fork.done",
    )
    childless = ("fork.prepared", "fork.paused", "control.fork.inserted")

    def body(self, cell: Cell) -> Dict[str, object]:
        return {"metadata": {"cell": cell.child_label}}

    def machines(self, world: World, cell: Cell) -> List[int]:
        """The child's where there is one: what happens to a parent alone has nothing to do with a fork."""
        children = [pid for made in world.sandboxes(cell.child_label) for pid in world.machines(made)]
        assert bool(children) != (cell.step in self.childless), children
        return children or super().machines(world, cell)

    def check(self, world: World, cell: Cell) -> None:
        told = cell.acknowledged()
        if told is not None and self.child_was_lost(world, cell, told.json()["id"]):
            cell.key = uuid4().hex
        if self.lives(world, cell):
            child = self.again(world, cell).json()["id"]
            assert world.fate(child, LOOK, self.expected(cell)) == "alive"
            assert list(world.sandboxes(cell.child_label)) == [child], "one call made one child"

    def child_was_lost(self, world: World, cell: Cell, child: str) -> bool:
        fate = world.fate(child, LOOK, self.expected(cell))
        assert fate == "alive" or cell.is_lossy(), fate
        if fate == "failed":
            world.expect("DELETE", f"/sandboxes/{child}")
        return fate != "alive"


class Snapshot(Operation):
    name = "snapshot"
    steps = (
        "capture.paused", "capture.forked", "capture.taken", "snapshot.published",
        "control.snapshot.taken", "control.snapshot.inserted",
    )

    def path(self, cell: Cell) -> str:
        return f"/sandboxes/{cell.sandbox}/snapshots"

    def body(self, cell: Cell) -> Dict[str, object]:
        return {}

    def check(self, world: World, cell: Cell) -> None:
        if self.lives(world, cell):
            self.again(world, cell)
        told, listed = cell.acknowledged(), world.snapshots(cell.sandbox)
        assert told is None or told.json()["id"] in listed
        # Each that is listed can be restored; trying the oldest will do.
        for snapshot in listed[-1:]:
            body = {"from_snapshot": snapshot, "ttl_seconds": TTL_SECONDS, "metadata": {"cell": cell.child_label}}
            copy = world.until_done("a sandbox from the snapshot", "POST", "/sandboxes", body).json()["id"]
            assert world.fate(copy, LOOK, self.expected(cell)) == "alive"


class Hibernate(Operation):
    name = "hibernate"
    steps = (
        "hibernate.paused", "capture.taken", "hibernate.published", "hibernate.recorded", "hibernate.ended",
        "control.hibernate.answered",
    )
    sleeping = ("hibernate.recorded", "hibernate.ended", "control.hibernate.answered")
    without_machine = ("hibernate.ended", "control.hibernate.answered")

    def check(self, world: World, cell: Cell) -> None:
        if cell.acknowledged():
            assert world.sandboxes(cell.label) == {cell.sandbox: "hibernated"}
        if self.lives(world, cell):
            assert self.again(world, cell).json()["status"] == "hibernated"
            assert self.lives(world, cell)


class Wake(Operation):
    name = "wake"
    steps = (
        "restore.prepared", "restore.started", "launch.recorded", "wake.restored", "wake.recorded",
        "control.wake.answered",
    )
    sleeping = ("restore.prepared", "restore.started", "launch.recorded", "wake.restored")
    without_machine = ("restore.prepared",)

    def prepare(self, world: World, cell: Cell) -> None:
        super().prepare(world, cell)
        world.expect("POST", f"/sandboxes/{cell.sandbox}/hibernate")

    def check(self, world: World, cell: Cell) -> None:
        if self.lives(world, cell):
            assert self.again(world, cell).json()["status"] == "running"


class Rollback(Operation):
    name = "rollback"
    steps = ("rollback.published", "rollback.recorded", "rollback.ended", "control.rollback.answered")
    sleeping = ("rollback.recorded", "rollback.ended")
    without_machine = ("rollback.ended",)

    def prepare(self, world: World, cell: Cell) -> None:
        super().prepare(world, cell)
        taken = world.expect("POST", f"/sandboxes/{cell.sandbox}/snapshots", {})
        cell.snapshot = str(taken["id"])
        world.run(cell.sandbox, "echo new > /root/kept; echo new > /dev/shm/kept")

    def body(self, cell: Cell) -> Dict[str, object]:
        return {"snapshot_id": cell.snapshot}

    def expected(self, cell: Cell) -> Set[str]:
        old, new = answer_of(cell.label), f"new\nnew\nping {cell.label}\n"
        return {old} if cell.acknowledged() else {old, new}

    def check(self, world: World, cell: Cell) -> None:
        if self.lives(world, cell):
            self.again(world, cell)
            assert world.fate(cell.sandbox, LOOK, {answer_of(cell.label)}) == "alive"
        assert world.snapshots(cell.sandbox) == [cell.snapshot]


class Delete(Operation):
    name = "delete"
    method = "DELETE"
    steps = (
        "delete.begun", "delete.ended", "delete.removed",
        "control.delete.intended", "control.delete.removed", "control.delete.done",
    )
    without_machine = ("delete.ended", "delete.removed", "control.delete.removed", "control.delete.done")

    def path(self, cell: Cell) -> str:
        return f"/sandboxes/{cell.sandbox}"

    def check(self, world: World, cell: Cell) -> None:
        self.again(world, cell)
        wait_until("no row", lambda: not world.sandboxes(cell.label), 60)


OPERATIONS: List[Operation] = [
    Create(), Exec(), Fork(), Snapshot(), Hibernate(), Wake(), Rollback(), Delete(),
]


#: Steps of deployments of apps, in their order, and of deliveries of webhooks: tried by `test_apps_crash.py`.
APP_POINTS = (
    "control.deploy.begun", "control.deploy.machine", "control.deploy.fetched", "control.deploy.built", "control.deploy.saved",
    "control.deploy.kept", "control.deploy.booted", "control.deploy.healthy", "control.deploy.switched", "control.deploy.ended",
    "control.hook.proved", "control.hook.taken",
)


#: Steps of template builds, in their order: tried by `test_template_crash.py`.
TEMPLATE_POINTS = (
    "control.template.begun", "control.template.machine", "control.template.ran", "control.template.kept",
    "control.template.noted", "control.template.cleared", "control.template.published",
)


def points_of(sources: Path) -> Set[str]:
    """Names of all points that stand in the servers' sources."""
    found: Set[str] = set()
    for source in sources.glob("*/src/**/*.rs"):
        found.update(re.findall(r'fault::point\("([^"]+)"\)', source.read_text()))
    return found
