"""Promises of the SDK beside its calls: its cost, and that many streams at once lose nothing.

`PANDASTACK_SHOW_BARS=1` prints the figures for `bench/README.md`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from typing import Callable, List

import httpx

from conftest import RUN
from pandastack import AsyncPandaStack, PandaStack, Sandbox

CALLS = 100
#: The best of so many counts: a neighbour stretches all calls of a round.
ROUNDS = 3
OVERHEAD_MS_MAX = 2.0
STREAMS = 100
LINES = 500


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def show(text: str) -> None:
    if os.environ.get("PANDASTACK_SHOW_BARS"):
        print(text, file=sys.stderr)


def test_sdk_calls_add_little_overhead(client: PandaStack, shared: Sandbox, raw: httpx.Client) -> None:
    path = f"/sandboxes/{shared.id}"

    def overhead() -> float:
        bare: List[float] = []
        ours: List[float] = []
        calls = [
            lambda: bare.append(timed(lambda: raw.get(path).raise_for_status())),
            lambda: ours.append(timed(lambda: client.sandboxes.get(shared.id))),
        ]
        for turn in range(CALLS):
            # In turns, and each first as often: whatever else this machine does befalls both alike.
            for call in calls if turn % 2 else reversed(calls):
                call()
        show(f"python: raw p50 {statistics.median(bare):.2f} ms, sdk p50 {statistics.median(ours):.2f} ms")
        return statistics.median(ours) - statistics.median(bare)

    assert min(overhead() for _ in range(ROUNDS)) <= OVERHEAD_MS_MAX


def test_a_hundred_streams_of_one_client_lose_nothing() -> None:
    expected = "".join(f"{line}\n" for line in range(1, LINES + 1))

    async def read(sandbox: object, number: int) -> str:
        stream = await sandbox.exec_stream(f"seq {LINES}; echo {number} >&2; exit {number % 7}", timeout_seconds=300)  # type: ignore[attr-defined]
        seen = {"stdout": "", "stderr": ""}
        async for chunk in stream:
            seen[chunk.stream] += chunk.text
        assert (seen["stderr"], stream.exit_code) == (f"{number}\n", number % 7)
        return seen["stdout"]

    async def run() -> List[str]:
        async with AsyncPandaStack() as client:
            async with await client.sandboxes.create(template="base", ttl_seconds=1800, metadata=RUN) as sandbox:
                return list(await asyncio.gather(*(read(sandbox, number) for number in range(STREAMS))))

    began = time.perf_counter()
    outputs = asyncio.run(run())
    show(f"{STREAMS} streams at once: {time.perf_counter() - began:.1f} s")
    assert len(outputs) == STREAMS and all(output == expected for output in outputs)
