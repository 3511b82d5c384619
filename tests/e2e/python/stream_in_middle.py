"""A stream that is read while something happens in its middle: every byte comes, and each once."""

from __future__ import annotations

from threading import Thread
from typing import Callable, List

from pandastack import Sandbox

LAST = 150_000
#: Each takes some 25 ms on an emulated machine: what happens in the middle begins after the first five.
SLOWLY = 120
# Slowly at first, so that something happens in its middle; then far more than any buffer holds.
COUNT = f"i=0; while [ $i -lt {SLOWLY} ]; do echo $i; i=$((i+1)); sleep 0.01; done; seq {SLOWLY} {LAST}"
EXPECTED = "".join(f"{number}\n" for number in range(LAST + 1))


def check_every_byte_once(sandbox: Sandbox, middle: Callable[[], object]) -> None:
    failures: List[BaseException] = []

    def happen() -> None:
        try:
            middle()
        except BaseException as error:
            failures.append(error)

    worker = Thread(target=happen)
    stream = sandbox.exec_stream(COUNT, timeout_seconds=300)
    seen: List[str] = []
    for chunk in stream:
        seen.append(chunk.text)
        if len(seen) == 5:
            worker.start()
    worker.join()
    assert failures == []
    assert "".join(seen) == EXPECTED
    assert (stream.exit_code, stream.gaps, stream.offsets) == (0, [], (len(EXPECTED), 0))
