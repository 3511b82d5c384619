"""The few primitives in which async differs from sync; everything else here is written once.

``_sync/_io.py`` is its hand-written counterpart. ``tools/generate_sync.py`` makes the other files
of ``_sync`` from this package.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Awaitable, Callable, TypeVar

T = TypeVar("T")

#: What :func:`within` raises when time is up.
TimeUp = asyncio.TimeoutError

sleep = asyncio.sleep


async def within(seconds: float, result: Awaitable[T]) -> T:
    """The result, or :data:`TimeUp` after ``seconds``, whatever the other side does."""
    return await asyncio.wait_for(result, seconds)


async def run_blocking(function: Callable[..., T], *args: Any) -> T:
    """Call something that blocks on a local file, without blocking the event loop."""
    return await asyncio.to_thread(function, *args)


async def invoke(callback: Callable[..., Any], *args: Any) -> None:
    """Call a user's callback, plain or async."""
    result = callback(*args)
    if inspect.isawaitable(result):
        await result
