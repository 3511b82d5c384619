"""Sandboxes that are gone leave nothing: no process, mount, namespace, link, rule, file or row."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

import pytest

from full_only import times
from platform_process import Platform, wait_until

SERIAL = times(200, 50)
PARALLEL = 20


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("pdsl", "10.212.0.0/16", "--warm", "base")
    try:
        yield running.start()
    finally:
        running.stop()


def test_creates_and_deletes_leak_nothing(platform: Platform) -> None:
    client = platform.client()

    def once(_: int) -> None:
        sandbox = client.sandboxes.create(template="base")
        sandbox.delete()

    # The first one waits for the template; what it leaves ready (slots, the zygote) is not a leak.
    once(0)
    wait_until("a zygote", lambda: len(platform.machine_pids()) == 1, 120)
    once(0)
    settle = ("links", "namespaces", "mounts")
    before = platform.footprint()
    rows = platform.rows("select count(*) from sandboxes where state not in ('deleted', 'failed')")
    for number in range(SERIAL):
        once(number)
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(once, range(PARALLEL)))

    def clean() -> bool:
        now = platform.footprint()
        # Ready slots come and go with the refill; everything else must be exactly as before.
        exact = all(now[key] == before[key] for key in before if key not in settle)
        return exact and all(abs(now[key] - before[key]) <= 4 for key in settle)

    try:
        wait_until("nothing is left", clean, 60)
    except AssertionError as late:
        raise AssertionError(f"{before} became {platform.footprint()}") from late
    assert platform.rows("select count(*) from sandboxes where state not in ('deleted', 'failed')") == rows
    assert client.sandboxes.list() == []
