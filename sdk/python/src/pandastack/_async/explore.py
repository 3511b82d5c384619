"""Best of many: try each candidate in a copy of its own, keep the best copy, delete the rest.

The async client, from which the sync one is generated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from ..errors import PandaStackError, SandboxTimeout
from ..exploring import (
    FILES_MAX,
    BranchOutcome,
    Candidate,
    ExploreError,
    ExploreResult,
    Select,
    as_candidates,
    pick,
    score_of,
    tail,
)
from . import _io

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

#: Its time distinguishes it from files that a branch writes.
MARKER = "/run/.pandastack-explore"
#: Where changed files are looked for.
ROOTS = ("/srv", "/app", "/work", "/workspace", "/root", "/home", "/tmp")

Scorer = Callable[[Any, BranchOutcome], Any]
Branch = Tuple["AsyncSandbox", Candidate]


async def explore(
    parent: AsyncSandbox,
    given: Sequence[Union[Candidate, str]],
    *,
    score_fn: Optional[Scorer],
    select: Select,
    require_success: bool,
    max_concurrency: Optional[int],
    cleanup_losers: bool,
    promote_winner: bool,
    capture_files: Union[bool, str],
    ttl_seconds: int,
    on_outcome: Optional[Callable[[BranchOutcome], Any]],
) -> ExploreResult:
    """See :meth:`AsyncSandbox.explore`."""
    candidates = as_candidates(given)
    labels = {"explore": "1", "explore_ttl": str(int(ttl_seconds))}
    children = await parent.fork_tree(len(candidates), labels)
    tree_id = children[0].metadata.get("fork_tree_id", "") if children else ""
    errors = [f"{len(candidates) - len(children)} copies could not be made"] if len(children) < len(candidates) else []

    async def branch(pair: Branch) -> BranchOutcome:
        outcome = await _run(pair[0], pair[1], capture_files)
        await _score(pair[0], pair[1], outcome, score_fn)
        if on_outcome is not None:
            await _io.invoke(on_outcome, outcome)
        return outcome

    kept: Optional[AsyncSandbox] = None
    try:
        outcomes = await _io.each(max_concurrency or 4, branch, list(zip(children, candidates)))
        viable = [outcome for outcome in outcomes if outcome.ok or not require_success]
        if not viable:
            raise ExploreError("explore: no branch succeeded; see `outcomes` of this error", outcomes)
        best = pick(viable, select)
        kept = next(child for child in children if child.id == best.sandbox_id)
    finally:
        if kept is None and cleanup_losers:
            await _delete(children)
    reaped: List[str] = []
    failures: Dict[str, str] = {}
    if promote_winner:
        promoted = await kept.promote(cleanup_siblings=cleanup_losers, tree_id=tree_id or None)
        reaped, failures = promoted.get("deleted", []), promoted.get("failures", {})
    elif cleanup_losers:
        reaped, failures = await _delete([child for child in children if child is not kept])
    return ExploreResult(kept, best, outcomes, tree_id, reaped, failures, errors)


async def _run(sandbox: AsyncSandbox, candidate: Candidate, capture_files: Union[bool, str]) -> BranchOutcome:
    """Runs a candidate. A failure is recorded in the outcome, not raised."""
    outcome = BranchOutcome(candidate.label, sandbox.id)
    began = time.monotonic()
    try:
        if capture_files:
            await sandbox.exec(["touch", MARKER])
            began = time.monotonic()
        if candidate.fn is not None:
            outcome.value = await _io.result_of(candidate.fn, sandbox)
            outcome.ok = True
        else:
            result = await sandbox.exec(candidate.cmd or "", timeout_seconds=candidate.timeout_s, env=candidate.env)
            outcome.exit_code, outcome.ok = result.exit_code, result.exit_code == 0
            outcome.stdout_tail, outcome.stderr_tail = tail(result.stdout), tail(result.stderr)
    except SandboxTimeout as error:
        outcome.error, outcome.timed_out = str(error), True
    except Exception as error:  # a candidate's own function may raise anything
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.duration_ms = round((time.monotonic() - began) * 1000)
    if capture_files:
        outcome.files_changed = await _changed_files(sandbox, capture_files)
    return outcome


async def _changed_files(sandbox: AsyncSandbox, where: Union[bool, str]) -> List[str]:
    roots = [where] if isinstance(where, str) else list(ROOTS)
    try:
        found = await sandbox.exec(["find", *roots, "-xdev", "-type", "f", "-newer", MARKER], timeout_seconds=30)
    except PandaStackError:
        return []  # the branch broke its own sandbox; its outcome says so
    return sorted(found.stdout.splitlines())[:FILES_MAX]


async def _score(
    sandbox: AsyncSandbox, candidate: Candidate, outcome: BranchOutcome, scorer: Optional[Scorer]
) -> None:
    if candidate.score is None and scorer is None:
        outcome.score = 1.0 if outcome.ok else 0.0
        return
    try:
        given: Any = candidate.score
        if given is None and scorer is not None:
            given = await _io.result_of(scorer, sandbox, outcome)
        outcome.score = score_of(given)
    except Exception as error:  # a user's scorer may raise anything
        outcome.ok, outcome.error = False, f"the scorer failed: {type(error).__name__}: {error}"


async def _delete(sandboxes: Sequence[AsyncSandbox]) -> Tuple[List[str], Dict[str, str]]:
    deleted: List[str] = []
    failures: Dict[str, str] = {}
    for sandbox in sandboxes:
        try:
            await sandbox.delete()
            deleted.append(sandbox.id)
        except PandaStackError as error:
            failures[sandbox.id] = str(error)
    return deleted, failures
