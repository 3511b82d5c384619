"""The few primitives in which async differs from sync; everything else here is written once.

``_sync/_io.py`` is its hand-written counterpart. ``tools/generate_sync.py`` makes the other files
of ``_sync`` from this package.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Awaitable, Callable, List, Sequence, Set, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Event loops hold tasks weakly.
_going_on: Set[Any] = set()

#: Raised by :func:`within` when time is up.
TimeUp = asyncio.TimeoutError

#: Raised inside a call that its caller abandons.
Cancelled = asyncio.CancelledError

sleep = asyncio.sleep


async def within(seconds: float, result: Awaitable[T]) -> T:
    """The result, or :data:`TimeUp` after ``seconds``, even if the other side never answers."""
    # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the result.
    task = asyncio.ensure_future(result)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeUp
        return task.result()
    except (Cancelled, TimeUp):
        task.cancel()
        unwanted = (await asyncio.gather(task, return_exceptions=True))[0]
        if hasattr(unwanted, "aclose"):
            await unwanted.aclose()
        raise


async def regardless(work: Awaitable[T]) -> T:
    """The result of work that continues even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    _going_on.add(task)
    task.add_done_callback(_going_on.discard)
    return await asyncio.shield(task)


async def run_blocking(function: Callable[..., T], *args: Any) -> T:
    """Call something that blocks on a local file, without blocking the event loop."""
    return await asyncio.to_thread(function, *args)


async def result_of(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a user's function, plain or async."""
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


async def invoke(callback: Callable[..., Any], *args: Any) -> None:
    """Call a user's callback, plain or async."""
    await result_of(callback, *args)


async def each(at_once: int, function: Callable[[T], Awaitable[R]], items: Sequence[T]) -> List[R]:
    """The results for all items, in order, so many worked on at once."""
    turns = asyncio.Semaphore(at_once)

    async def one(item: T) -> R:
        async with turns:
            return await function(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
