"""Three ways from the same state; the best one stays."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    found = sandbox.explore(
        ["echo 3", "echo 8", "echo 5"],
        score_fn=lambda _, outcome: float(outcome.stdout_tail),
    )
    print(found.winner_outcome.stdout_tail.strip())  # 8
    found.winner.delete()
