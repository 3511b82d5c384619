"""Best of many, over copies of a running sandbox."""

from __future__ import annotations

import asyncio
from typing import List

import pytest
from pandastack import AsyncPandaStack, BranchOutcome, Candidate, ExploreError, Sandbox


def branches(own: Sandbox) -> set[str]:
    return {child["id"] for child in own.lineage()["children"]}


def test_explore_keeps_the_best_branch_and_deletes_the_others(own: Sandbox) -> None:
    own.filesystem.write("/srv/numbers", "3 1 2\n")
    seen: List[str] = []
    result = own.explore(
        [
            Candidate.shell("worse", "cp /srv/numbers /srv/out; echo 1", env={"UNUSED": "1"}),
            Candidate.shell("better", "tr ' ' '\\n' < /srv/numbers | sort > /srv/out; echo 3"),
            Candidate.shell("failing", "echo 9; exit 1"),
            Candidate.call("function", lambda copy: copy.exec("echo 2 > /srv/out; hostname").stdout),
        ],
        score_fn=lambda copy, outcome: float(outcome.stdout_tail or 2),
        on_outcome=lambda outcome: seen.append(outcome.label),
    )
    try:
        assert result.winner_outcome and result.winner_outcome.label == "better"
        assert result.winner.filesystem.read("/srv/out") == b"1\n2\n3\n"
        assert [outcome.label for outcome in result.outcomes] == ["worse", "better", "failing", "function"]
        assert sorted(seen) == ["better", "failing", "function", "worse"]
        by_label = {outcome.label: outcome for outcome in result.outcomes}
        assert by_label["better"].files_changed == ["/srv/out"] and by_label["better"].score == 3
        assert (by_label["failing"].exit_code, by_label["failing"].ok) == (1, False)
        assert by_label["function"].value.strip() and by_label["function"].ok
        assert [outcome.label for outcome in result.best(2)] == ["better", "function"]
        assert "* better" in result.table()
        assert branches(own) == {result.winner.id}
        assert len(result.reaped) == 3 and not result.reap_failures and not result.errors
        assert own.exec("ls /srv/out").exit_code != 0, "the parent is as it was"
    finally:
        result.winner.delete()


def test_a_failed_exploration_deletes_its_branches(own: Sandbox) -> None:
    with pytest.raises(ExploreError, match="no branch succeeded") as caught:
        own.explore(["false", Candidate.shell("slow", "sleep 60", timeout_s=1)])
    outcomes = {outcome.label: outcome for outcome in caught.value.outcomes}
    assert outcomes["slow"].timed_out and not outcomes["false"].timed_out
    assert branches(own) == set()
    with pytest.raises(ExploreError, match="1 to 100 candidates"):
        own.explore([])
    with pytest.raises(ExploreError, match="either `cmd` or `fn`"):
        own.explore([Candidate("neither")])


def test_the_async_client_can_explore(own: Sandbox) -> None:
    async def scored(copy: object, outcome: BranchOutcome) -> float:
        return -float(outcome.duration_ms)

    async def go() -> None:
        async with AsyncPandaStack() as client:
            parent = await client.sandboxes.get(own.id)
            result = await parent.explore(["sleep 20", "true"], score_fn=scored, capture_files=False)
            assert result.winner_outcome and result.winner_outcome.label == "true"
            await result.winner.delete()

    asyncio.run(go())
