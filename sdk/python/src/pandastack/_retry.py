"""When a refused create is sent again, and after how long. Pure: clock and dice come from outside.

Only refusals that promise "nothing was created" are repeated (503 with ``Retry-After``, 507, 429
with ``Retry-After``), always with the same ``Idempotency-Key``. Lost connections and timeouts are
not decided here: it is unknown what the server did.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import Callable, Optional

from .errors import CapacityError, PandaStackError, RateLimitError

#: Default time for which refused creates are repeated.
CREATE_RETRY_SECONDS_DEFAULT = 60.0
#: A template being baked makes progress, so waiting for it has a budget of its own.
TEMPLATE_BAKE_SECONDS_MAX = 900.0
#: Least wait after 507, whose ``Retry-After`` is optional: disk space does not come back at once.
DISK_FULL_WAIT_SECONDS_MIN = 0.5
#: Upper end of the random extra wait, by attempt; the last value repeats.
JITTER_SECONDS_MAX = (1.0, 2.0, 4.0, 8.0, 15.0)


@dataclass(frozen=True)
class CreateRetryEvent:
    """Passed to ``on_create_retry`` before each wait."""

    method: str
    path: str
    attempt: int
    status_code: int
    error: str
    delay_seconds: float
    elapsed_seconds: float
    retry_after_seconds: Optional[float] = None


class CapacityRetry:
    """The retry state of one call."""

    def __init__(
        self,
        budget_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._budget_seconds = budget_seconds
        self._clock = clock
        self._dice = dice
        self._started_at = clock()
        self.attempt = 0

    @property
    def elapsed_seconds(self) -> float:
        """Time since the first attempt began."""
        return self._clock() - self._started_at

    def delay_after(self, error: PandaStackError) -> Optional[float]:
        """Seconds to wait before the next attempt, or ``None`` to give up and raise ``error``."""
        minimum = self._wait_asked_for(error)
        if minimum is None or self._budget_seconds <= 0:
            return None
        budget = self._budget_seconds
        if error.code == "template_baking":
            budget = max(budget, TEMPLATE_BAKE_SECONDS_MAX)
        left = budget - self.elapsed_seconds
        if minimum > left:
            return None
        cap = JITTER_SECONDS_MAX[min(self.attempt, len(JITTER_SECONDS_MAX) - 1)]
        self.attempt += 1
        return min(minimum + self._dice() * cap, left)

    @staticmethod
    def _wait_asked_for(error: PandaStackError) -> Optional[float]:
        if isinstance(error, CapacityError):
            if error.status == 507:
                return max(error.retry_after_seconds or 0.0, DISK_FULL_WAIT_SECONDS_MIN)
            return error.retry_after_seconds
        # A 429 without the header is a used-up quota: waiting changes nothing.
        return error.retry_after_seconds if isinstance(error, RateLimitError) else None


def parse_budget(value: Optional[str]) -> float:
    """The retry budget from the environment; nonsense means the default."""
    try:
        seconds = float(value) if value else CREATE_RETRY_SECONDS_DEFAULT
    except ValueError:
        return CREATE_RETRY_SECONDS_DEFAULT
    return max(0.0, seconds) if math.isfinite(seconds) else CREATE_RETRY_SECONDS_DEFAULT
