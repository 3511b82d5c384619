"""Kills commands whose caller is cancelled."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Callable

from .. import _wire
from ._io import regardless, sleep, within
from .transport import AsyncTransport

#: How long a cancelled call takes at most to kill its command.
KILL_SECONDS_MAX = 5.0
#: Waits between looks for a command that the server may be starting at this moment.
LOOK_AGAIN_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 0.0)


def unique_tag() -> str:
    """A tag by which a command can be found before its process number is known."""
    return f"exec-{uuid.uuid4().hex}"


async def abandon(kill: Callable[..., Any], *args: Any) -> None:
    """Call ``kill`` for a bounded time, also if the caller is cancelled again. Its errors are dropped."""
    try:
        await regardless(within(KILL_SECONDS_MAX, kill(*args)))
    except Exception:  # the caller is told of its cancellation; the command's own timeout ends it
        pass


async def kill_process(transport: AsyncTransport, path: str) -> None:
    """Kill a process and everything it started."""
    call = _wire.post(f"{path}/signal", {"signal": "KILL"}, seconds_max=KILL_SECONDS_MAX)
    await transport.send(call)


async def kill_tagged(transport: AsyncTransport, processes: str, tag: str) -> None:
    """Kill the process with this tag, which may be about to start. Ended ones stay listed for a while."""
    for pause in LOOK_AGAIN_SECONDS:
        call = replace(_wire.get(processes), seconds_max=KILL_SECONDS_MAX)
        for record in (await transport.send(call)).records("processes"):
            if record.get("tag") == tag:
                return await kill_process(transport, f"{processes}/{int(record['id'])}")
        await sleep(pause)
