"""Machines of another size than their template's: large ones, with several processors."""

from __future__ import annotations

from typing import Iterator

import pytest
from pandastack import BadRequestError, PandaStack, Sandbox

from conftest import RUN, wait_for
from full_only import times
from test_machines import assert_goes_on, read_counter, start_counter

CPU, MEMORY_MB = 2, 2048
#: Forks of forks.
GENERATIONS = 10
#: One process that keeps every processor busy, and one that keeps memory.
LOAD = "for cpu in $(seq $(nproc)); do setsid sh -c 'while :; do :; done' > /dev/null 2>&1 < /dev/null & done"
#: A machine with memory above 4 GiB, and what a host must have free to hold it and what a fork of it changes.
HUGE_MB, HUGE_HOST_MB_MIN = 4096, 8192
#: Numbers in a row: no two pages of them are the same.
HOLD_3300_MIB = "mount -o remount,size=95% /dev/shm && seq 1000000000 1999999999 | head -c 3460300800 > /dev/shm/held"
#: A megabyte of every 50.
SAMPLE = "for at in $(seq 0 50 3299); do dd if=/dev/shm/held bs=1M skip=$at count=1 2> /dev/null; done | md5sum"
HELD_BYTES = times(1024, 192) << 20
HOLD = f"mount -o remount,size=90% /dev/shm && head -c {HELD_BYTES} /dev/zero | tr '\\0' 'x' > /dev/shm/held"


@pytest.fixture
def large(client: PandaStack) -> Iterator[Sandbox]:
    with client.sandboxes.create("base", cpu=CPU, memory_mb=MEMORY_MB, metadata=RUN) as sandbox:
        yield sandbox


def assert_size(sandbox: Sandbox) -> None:
    assert (sandbox.cpu, sandbox.memory_mb) == (CPU, MEMORY_MB)
    processors, kib = sandbox.exec("nproc; grep MemTotal /proc/meminfo | tr -dc 0-9", check=True).stdout.split()
    assert int(processors) == CPU
    assert MEMORY_MB * 0.9 < int(kib) / 1024 <= MEMORY_MB


def test_the_guest_sees_its_size_and_later_creates_are_forked(client: PandaStack, large: Sandbox) -> None:
    assert_size(large)

    def forked() -> bool:
        with client.sandboxes.create("base", cpu=CPU, memory_mb=MEMORY_MB, metadata=RUN) as again:
            assert_size(again)
            return again.boot_mode == "fork"

    wait_for("creates of this size fork", forked, seconds=300)
    with client.sandboxes.create("base", metadata=RUN) as plain:
        assert (plain.cpu, plain.memory_mb) == (1, 512)


def test_a_size_out_of_range_is_refused(client: PandaStack) -> None:
    with pytest.raises(BadRequestError, match="steps of 128"):
        client.sandboxes.create("base", memory_mb=1000)


def test_a_large_machine_under_load_forks_sleeps_and_rolls_back(large: Sandbox) -> None:
    large.exec(HOLD, timeout_seconds=240, check=True)
    large.exec(LOAD, check=True)
    start_counter(large)
    identity, count = read_counter(large)
    with large.fork() as child:
        assert_size(child)
        assert child.exec("stat -c %s /dev/shm/held", check=True).stdout.strip() == str(HELD_BYTES)
        assert_goes_on(child, identity, count)
        child.hibernate()
        assert_goes_on(child, identity, count)
    assert_goes_on(large, identity, count)
    taken = large.snapshot()
    large.rollback(taken)
    assert_goes_on(large, identity, count)


def test_memory_above_3_gib_is_forked_too(client: PandaStack) -> None:
    """A machine's memory has a gap before 4 GiB: what is above it comes from another part of its file."""
    available_mb = int(next(line for line in open("/proc/meminfo") if line.startswith("MemAvailable")).split()[1]) >> 10
    if available_mb < HUGE_HOST_MB_MIN:
        pytest.skip(f"this host has {available_mb} MiB of memory free, and {HUGE_HOST_MB_MIN} are needed")
    with client.sandboxes.create("base", cpu=1, memory_mb=HUGE_MB, metadata=RUN) as huge:
        huge.exec(HOLD_3300_MIB, timeout_seconds=900, check=True)
        start_counter(huge)
        identity, count = read_counter(huge)
        held = huge.exec(SAMPLE, timeout_seconds=300, check=True).stdout
        with huge.fork() as child:
            assert child.exec(SAMPLE, timeout_seconds=300, check=True).stdout == held
            child.exec("dd if=/dev/zero of=/dev/shm/held bs=1M count=200 seek=3000 conv=notrunc", timeout_seconds=300, check=True)
            assert child.exec(SAMPLE, timeout_seconds=300, check=True).stdout != held
            assert_goes_on(child, identity, count)
        assert huge.exec(SAMPLE, timeout_seconds=300, check=True).stdout == held, "the child wrote into its parent"
        assert_goes_on(huge, identity, count)


def test_forks_of_forks_ten_deep(large: Sandbox) -> None:
    large.filesystem.write("/srv/line", "0\n")
    start_counter(large)
    identity, count = read_counter(large)
    line = [large]
    try:
        for generation in range(1, GENERATIONS + 1):
            line.append(line[-1].fork())
            line[-1].exec(f"echo {generation} >> /srv/line", check=True)
        for generation, sandbox in enumerate(line):
            assert sandbox.exec("cat /srv/line", check=True).stdout.split() == [str(n) for n in range(generation + 1)]
        assert_goes_on(line[-1], identity, count)
    finally:
        for sandbox in line[1:]:
            sandbox.delete()
