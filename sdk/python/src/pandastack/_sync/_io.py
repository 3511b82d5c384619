"""The few primitives in which sync differs from async; see ``_async/_io.py``."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Sequence, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class TimeUp(Exception):
    """Never raised: in sync code the limits lie in the socket reads and between them."""


#: Raised inside a call that its caller abandons.
Cancelled = KeyboardInterrupt

sleep = time.sleep


def within(seconds: float, result: T) -> T:
    """The result, which is already there."""
    return result


def regardless(work: T) -> T:
    """The result, which is already there."""
    return work


def run_blocking(function: Callable[..., T], *args: Any) -> T:
    """Call it."""
    return function(*args)


def result_of(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a user's function."""
    return function(*args)


def invoke(callback: Callable[..., Any], *args: Any) -> None:
    """Call a user's callback."""
    callback(*args)


def each(at_once: int, function: Callable[[T], R], items: Sequence[T]) -> List[R]:
    """The results for all items, in order, so many worked on at once."""
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return list(pool.map(function, items))
