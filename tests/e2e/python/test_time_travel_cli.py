"""Time travel from the command line, on real machines: what docs/explanation/snapshots-and-forks.md says to type."""

from __future__ import annotations

import os
import subprocess
from typing import List

from conftest import RUN
from pandastack import PandaStack, Sandbox

#: Longest time for one command: a restore of an emulated machine on a busy box.
COMMAND_SECONDS_MAX = 120


def run(*words: str) -> str:
    """Output of a command; it must succeed."""
    command = [os.environ["PANDASTACK_BIN"], *words]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=COMMAND_SECONDS_MAX)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.strip()


def short(sandbox: str) -> str:
    return sandbox.split("-")[0]


def drawn(root: str) -> List[str]:
    """The branches of a tree and the states at their ends, without ages."""
    return [line.rsplit("  ", 1)[0] for line in run("sandbox", "tree", root).splitlines()]


def test_the_cli_creates_rolls_back_to_and_deletes_a_snapshot(own: Sandbox) -> None:
    own.filesystem.write("/srv/state", "then")
    snapshot = run("sandbox", "snapshot", own.id, "--name", "before-upgrade")
    listed = run("snapshot", "list", "--sandbox", own.id)
    assert snapshot in listed and "before-upgrade" in listed
    run("sandbox", "exec", own.id, "--", "rm /srv/state")
    assert run("sandbox", "rollback", own.id, snapshot) == own.id
    assert run("sandbox", "exec", own.id, "--", "cat /srv/state") == "then"
    label = "".join(f"{key}={value}" for key, value in RUN.items())
    again = run("sandbox", "create", "--from-snapshot", snapshot, "--metadata", label)
    assert run("sandbox", "exec", again, "--", "cat /srv/state") == "then"
    assert run("sandbox", "rm", again) == again
    assert run("snapshot", "rm", snapshot) == snapshot
    assert snapshot not in run("snapshot", "list", "--sandbox", own.id)


def test_the_cli_creates_prints_and_prunes_a_fork_tree(client: PandaStack, own: Sandbox) -> None:
    child = run("sandbox", "fork", own.id)
    leaves = run("sandbox", "fork", child, "-n", "3").split()
    assert len(set(leaves)) == 3
    root, branch, *below = drawn(own.id)
    assert root == f"{short(own.id)}  base  running" and branch == f"└── {short(child)}  running"
    assert [line[4:8] for line in below] == ["├── ", "├── ", "└── "]
    assert {line[8:] for line in below} == {f"{short(leaf)}  running" for leaf in leaves}
    winner, *others = leaves
    assert sorted(run("sandbox", "promote", winner).split()) == sorted(others)
    assert run("sandbox", "hibernate", winner) == winner
    assert drawn(own.id)[2:] == [f"    └── {short(winner)}  hibernated"]
    assert run("sandbox", "wake", winner) == winner
    assert client.sandboxes.get(winner).status == "running"
    run("sandbox", "rm", winner, child)
    assert len(drawn(own.id)) == 1
