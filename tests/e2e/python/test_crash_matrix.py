"""Whatever is killed at whatever step of whatever operation: every acknowledged thing is there, and nothing else is.

A *round* holds operations at a step each, all at once, kills one kind of process, and checks what became of each operation and
then of the whole host. So one restart serves many cells, and they are killed in the midst of each other's work. A run
takes a sample, with every operation in every round; `PANDASTACK_TEST_FULL=1` takes all. `PANDASTACK_CRASH_SEED` takes another
sample, and `PANDASTACK_CRASH_STEPS=create.made,fork.made` takes those steps.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Set, Tuple

import pytest

from crash_operations import APP_POINTS, OPERATIONS, TEMPLATE_POINTS, Cell, Operation, points_of
from crash_world import RECOVERY_SECONDS_MAX, World
from full_only import FULL
from platform_process import Platform, wait_until

VICTIMS = ("control", "agent", "machine", "zygote", "processes", "power")
#: The same sample in every run, so that a change which breaks something is the one that turns red.
SEED = int(os.environ.get("PANDASTACK_CRASH_SEED") or 1)
STEPS = set(filter(None, os.environ.get("PANDASTACK_CRASH_STEPS", "").split(",")))
#: Operations held at once: the first must not have waited for longer than its caller does when the last one stands.
ROUND_MAX = 12
SAMPLE = 8
#: The cell that looks at the host as a whole, after the others of its round.
REST = "nothing else"
#: Slots are made ahead of need.
READY_SLACK = 4

Step = Tuple[Operation, str]


def steps_for(victim: str) -> List[Step]:
    """The steps at which that can be killed."""
    operations = [op for op in OPERATIONS if victim != "zygote" or op.name == "create"]
    steps = [(op, step) for op in operations for step in op.steps]
    if victim == "machine":
        steps = [(op, step) for op, step in steps if step not in op.without_machine]
    return [(op, step) for op, step in steps if not STEPS or step in STEPS]


def sample(steps: List[Step], dice: random.Random) -> List[Step]:
    """One step of each operation, and some more."""
    dice.shuffle(steps)
    firsts = {op.name: (op, step) for op, step in reversed(steps)}
    others = [step for step in steps if step not in firsts.values()]
    return (list(firsts.values()) + others)[:SAMPLE]


def rounds() -> List[List[Cell]]:
    """Cells, by the kill that they share."""
    dice = random.Random(SEED)
    found = []
    for victim in VICTIMS:
        steps = steps_for(victim)
        if not FULL and not STEPS:
            steps = sample(steps, dice)
        dice.shuffle(steps)
        cells = [Cell(victim, op, step) for op, step in steps]
        found += [cells[first : first + ROUND_MAX] for first in range(0, len(cells), ROUND_MAX)]
    return found


ROUNDS = rounds()
CASES = [
    pytest.param(number, name, id=f"{cells[0].victim}-{number}-{name}")
    for number, cells in enumerate(ROUNDS)
    for name in [cell.name for cell in cells] + [REST]
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    platform = Platform("psk", "10.202.0.0/16", "--warm", "base")
    world = World(platform)
    try:
        yield world.start()
    finally:
        platform.stop()


class Player:
    """Plays each round once, when its first cell comes to be checked."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: What the host has of a platform without sandboxes.
        self.clean = world.platform.footprint()
        self.number = -1
        self.is_played = False

    def enter(self, number: int) -> Dict[str, Cell]:
        print(f"PANDASTACK_CRASH_SEED={SEED}")
        if self.number != number:
            self.number, self.is_played = number, False
            empty(self.world)
            with ThreadPoolExecutor(ROUND_MAX) as callers:
                try:
                    play(self.world, ROUNDS[number], callers)
                finally:
                    # Or the callers' end would be waited for.
                    self.world.faults.clear()
            self.is_played = True
        assert self.is_played, "the first cell of this round says why it could not be played"
        return {cell.name: cell for cell in ROUNDS[number]}


@pytest.fixture(scope="module")
def player(world: World) -> Player:
    return Player(world)


def play(world: World, cells: List[Cell], callers: ThreadPoolExecutor) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda cell: cell.operation.prepare(world, cell), cells))
    gates: Set[Path] = set()
    machines: List[int] = []
    for cell in cells:
        world.faults.arm(cell.step)
        cell.answer = callers.submit(cell.operation.call, world, cell)

        def reached() -> object:
            assert cell.answer is not None and not cell.answer.done(), f"{cell.name}: {cell.answer.result().text}"
            return world.faults.reached(cell.step, gates)

        gate = wait_until(f"{cell.name} is reached", reached, 60)
        assert isinstance(gate, Path)
        gates.add(gate)
        if cell.victim == "machine":
            mine = cell.operation.machines(world, cell)
            assert mine, f"{cell.name} has no machine"
            machines += mine
    world.strike(cells[0].victim, machines)


@pytest.mark.parametrize("number, name", CASES)
def test_operations_recover_from_a_kill(player: Player, number: int, name: str) -> None:
    cells = player.enter(number)
    if name == REST:
        check_host(player.world)
        check_emptied(player.world, player.clean)
    else:
        cells[name].operation.check(player.world, cells[name])


def check_host(world: World) -> None:
    """The host has what the record names, and no process, directory or row beside that."""
    def differences() -> List[str]:
        states = world.sandboxes()
        running = [made for made, state in states.items() if state == "running"]
        found = {
            "directories": world.names("sandboxes") ^ set(states),
            "snapshots": world.names("snapshots") ^ set(world.snapshots()),
            "half written": world.names(".staging"),
            "half removed": world.names(".trash"),
            "machines": [made for made in running if len(world.machines(made)) != 1],
            "strays": len(world.platform.machine_pids()) - len(running) - len(world.zygotes()),
            "rows": world.platform.rows("select id, state from sandboxes where state in ('creating', 'stopping')"),
        }
        return [f"{kind}: {what}" for kind, what in found.items() if what]

    settle(differences)


def empty(world: World) -> None:
    for sandbox in world.sandboxes():
        world.expect("DELETE", f"/sandboxes/{sandbox}")
    for snapshot in world.snapshots():
        world.expect("DELETE", f"/snapshots/{snapshot}")


def check_emptied(world: World, clean: Dict[str, object]) -> None:
    """Once all is deleted, the host is as it was before the first sandbox."""
    empty(world)

    def differences() -> List[str]:
        now = world.platform.footprint()
        return [f"{kind}: {clean[kind]} became {now[kind]}" for kind in clean if differs(kind, clean[kind], now[kind])]

    settle(differences)


def differs(kind: str, before: object, now: object) -> bool:
    if kind in ("links", "namespaces", "mounts"):
        assert isinstance(before, int) and isinstance(now, int)
        return abs(now - before) > READY_SLACK
    return now != before


def settle(differences: Callable[[], List[str]]) -> None:
    """Waits until there are none, and says what they are if there always are."""
    last: List[str] = []

    def none() -> bool:
        last[:] = differences()
        return not last

    try:
        wait_until("the host is in order", none, RECOVERY_SECONDS_MAX)
    except AssertionError as late:
        raise AssertionError("; ".join(last)) from late


def test_every_fault_point_is_covered() -> None:
    sources = Path(__file__).parents[3] / "crates"
    operations = {step for operation in OPERATIONS for step in operation.steps}
    assert points_of(sources) == operations | set(APP_POINTS) | set(TEMPLATE_POINTS)
