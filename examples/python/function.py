"""Code that is called, and a schedule that calls it."""

import tempfile
import uuid
from pathlib import Path

from pandastack import PandaStack

name = f"example-{uuid.uuid4().hex[:8]}"
with PandaStack() as client, tempfile.TemporaryDirectory() as local:
    Path(local, "main.py").write_text("def handler(event, context):\n    return {'sum': sum(event)}\n")
    function = client.functions.deploy(name, "python", local, entrypoint="main.py")
    print(client.functions.invoke(name, [1, 2, 3])["output"])  # {'sum': 6}
    schedule = client.schedules.create(name, function["id"], "0 8 * * MON", timezone="Europe/Berlin")
    print(client.schedules.trigger(schedule["id"])["status"])  # success
    client.schedules.delete(schedule["id"])
    client.functions.delete(name)
