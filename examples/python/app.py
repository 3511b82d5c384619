"""A directory becomes an address that stays."""

import tempfile
import urllib.request
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from pandastack import PandaStack

name = f"example-{uuid.uuid4().hex[:8]}"
with PandaStack() as client, tempfile.TemporaryDirectory() as local:
    app = client.apps.create(name)
    for text in ("first", "second"):
        Path(local, "index.html").write_text(text)
        deployment = client.apps.deploy(name, directory=local)
        client.apps.wait_for_deployment(name, deployment["id"])
    # In a browser: app["url"]. Not every resolver knows `*.localhost`, so here the name goes with the request.
    request = urllib.request.Request(client.api_url, headers={"Host": urlsplit(app["url"]).netloc})
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.read().decode())  # second
    client.apps.wait_for_deployment(name, client.apps.rollback(name)["id"])
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.read().decode())  # first
    client.apps.delete(name)
