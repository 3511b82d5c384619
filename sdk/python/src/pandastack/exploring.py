"""Arguments and results of :meth:`Sandbox.explore`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from ._check import checked_init
from .errors import PandaStackError

#: Most candidates of one exploration: as many copies as one fork makes.
CANDIDATES_MAX = 100
#: Bytes kept of the end of each output.
TAIL_BYTES = 4096
#: Changed files that are listed of one branch.
FILES_MAX = 200


class ExploreError(PandaStackError):
    """No candidates were given, or none succeeded. ``outcomes`` has the result of each."""

    def __init__(self, message: str, outcomes: Sequence[BranchOutcome] = ()) -> None:
        super().__init__(message)
        self.outcomes = list(outcomes)


@checked_init
@dataclass
class Candidate:
    """A candidate to try: a shell command, or a function that receives the copy."""

    label: str
    cmd: Optional[str] = None
    fn: Optional[Callable[[Any], Any]] = None
    timeout_s: float = 60.0
    env: Optional[Mapping[str, str]] = None
    #: Known in advance; no scorer is asked.
    score: Optional[float] = None

    @staticmethod
    def shell(label: str, cmd: str, **options: Any) -> Candidate:
        """A shell command."""
        return Candidate(label, cmd=cmd, **options)

    @staticmethod
    def call(label: str, fn: Callable[[Any], Any], **options: Any) -> Candidate:
        """A function; what it returns is the outcome's ``value``."""
        return Candidate(label, fn=fn, **options)


@dataclass
class BranchOutcome:
    """The result of one candidate."""

    label: str
    sandbox_id: str
    ok: bool = False
    score: float = 0.0
    exit_code: Optional[int] = None
    stdout_tail: str = ""
    stderr_tail: str = ""
    #: Files that are new or changed since the fork; at most :data:`FILES_MAX`.
    files_changed: List[str] = field(default_factory=list)
    duration_ms: int = 0
    value: Any = None
    error: Optional[str] = None
    timed_out: bool = False


@dataclass
class ExploreResult:
    """The result of ``explore``."""

    #: The sandbox of the best branch, a sandbox like any other from now on.
    winner: Any
    winner_outcome: Optional[BranchOutcome]
    #: In the order of the candidates.
    outcomes: List[BranchOutcome]
    tree_id: str
    #: Copies that were deleted.
    reaped: List[str]
    reap_failures: Dict[str, str]
    #: Copies that could not be made.
    errors: List[str]

    def best(self, n: int = 1) -> List[BranchOutcome]:
        """The best outcomes, best first."""
        return sorted(self.outcomes, key=lambda outcome: (outcome.ok, outcome.score), reverse=True)[:n]

    def table(self) -> str:
        """The outcomes as human-readable lines."""
        width = max((len(outcome.label) for outcome in self.outcomes), default=0)
        lines = []
        for outcome in self.outcomes:
            kept = "*" if self.winner_outcome is outcome else " "
            end = "timeout" if outcome.timed_out else outcome.error or f"exit {outcome.exit_code}"
            lines.append(f"{kept} {outcome.label:<{width}}  {outcome.score:8.3f}  {outcome.duration_ms:6} ms  {end}")
        return "\n".join(lines)


#: ``"max"``, ``"min"``, or a function that picks.
Select = Union[str, Callable[[List[BranchOutcome]], BranchOutcome]]


def as_candidates(given: Sequence[Union[Candidate, str]]) -> List[Candidate]:
    """The given branches, with commands as candidates."""
    candidates = [Candidate.shell(item, item) if isinstance(item, str) else item for item in given]
    if not 1 <= len(candidates) <= CANDIDATES_MAX:
        raise ExploreError(f"explore: give 1 to {CANDIDATES_MAX} candidates, not {len(candidates)}")
    for candidate in candidates:
        if (candidate.cmd is None) == (candidate.fn is None):
            raise ExploreError(f"explore: candidate {candidate.label!r} needs either `cmd` or `fn`")
    return candidates


def pick(outcomes: List[BranchOutcome], select: Select) -> BranchOutcome:
    """The winner; of equals the first."""
    if callable(select):
        return select(outcomes)
    if select not in ("max", "min"):
        raise ExploreError(f'explore: `select` is "max", "min" or a function, not {select!r}')
    sign = 1 if select == "max" else -1
    return max(outcomes, key=lambda outcome: sign * outcome.score)


def score_of(given: Any) -> float:
    """A score as a number. NaN is not a valid score: the winner would depend on the order of branches."""
    if isinstance(given, (str, bytes)):
        raise TypeError(f"a score must be a number, not {type(given).__name__}")
    score = float(given)
    if score != score:
        raise ValueError("a score must be a number, not NaN")
    return score


def tail(text: str) -> str:
    """The end of an output."""
    return text.encode()[-TAIL_BYTES:].decode(errors="ignore")
