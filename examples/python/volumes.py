"""A disk that outlives machines."""

import uuid

from pandastack import PandaStack

name = f"example-{uuid.uuid4().hex[:8]}"
with PandaStack() as client:
    client.volumes.create(name, 64)
    place = [{"name": name, "path": "/data"}]
    with client.sandboxes.create(template="base", volumes=place, ttl_seconds=600) as first:
        first.exec("echo kept > /data/note", check=True)
    with client.sandboxes.create(template="base", volumes=place, ttl_seconds=600) as second:
        print(second.filesystem.read_text("/data/note").strip())  # kept
    client.volumes.delete(name)
