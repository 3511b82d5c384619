"""The few primitives in which sync differs from async; see ``_async/_io.py``."""

from __future__ import annotations

import time
from typing import Any, Callable, TypeVar

T = TypeVar("T")


class TimeUp(Exception):
    """Never raised: in sync code the limits lie in the socket reads and between them."""


sleep = time.sleep


def within(seconds: float, result: T) -> T:
    """The result, which is already there."""
    return result


def run_blocking(function: Callable[..., T], *args: Any) -> T:
    """Call it."""
    return function(*args)


def invoke(callback: Callable[..., Any], *args: Any) -> None:
    """Call a user's callback."""
    callback(*args)
