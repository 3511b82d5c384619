"""When a lost stream is taken up again, and after how long. Pure: the clock comes from outside.

A process outlives every connection to it, and its output waits by offset, so a follower that lost its
stream asks for the rest. Only failures that say nothing about the process are worth that.
"""

from __future__ import annotations

import time
from typing import Callable, Optional

from .errors import APIConnectionError, PandaStackError, RequestTimeout, ServerError

#: How long a follower tries without getting anything. A restarted server is back in seconds.
RECONNECT_SECONDS_MAX = 60.0
#: Waits between attempts: from the first, doubling, to the last.
DELAY_SECONDS_MIN = 0.1
DELAY_SECONDS_MAX = 2.0

#: Statuses of a restarting server, or of a proxy in front of it.
_PASSING = frozenset({502, 503})


def is_passing(error: Optional[PandaStackError]) -> bool:
    """Whether the failure may be temporary. ``None``: the stream ended without an error."""
    if error is None:
        return True
    if isinstance(error, RequestTimeout):
        return False
    return isinstance(error, APIConnectionError) or (isinstance(error, ServerError) and error.status in _PASSING)


class Reconnect:
    """The state of one follower's attempts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lost_at: Optional[float] = None
        self._delay = 0.0

    def succeeded(self) -> None:
        """Something came: the next loss is a new one."""
        self._lost_at = None

    def delay_after(self, error: Optional[PandaStackError]) -> Optional[float]:
        """Seconds to wait before the next attempt, or ``None`` to give up."""
        if not is_passing(error):
            return None
        now = self._clock()
        if self._lost_at is None:
            self._lost_at, self._delay = now, DELAY_SECONDS_MIN
        elif now - self._lost_at > RECONNECT_SECONDS_MAX:
            return None
        delay, self._delay = self._delay, min(self._delay * 2, DELAY_SECONDS_MAX)
        return delay
