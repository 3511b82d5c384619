"""Whole directories in and out, searching, and links that need no key."""

import tempfile
import urllib.request
from pathlib import Path

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    with tempfile.TemporaryDirectory() as local:
        Path(local, "src").mkdir()
        Path(local, "src/main.py").write_text("answer = 42\n")
        sandbox.filesystem.upload_dir(local, "/srv/project")
        print(sandbox.filesystem.grep("answer", "/srv/project")[0].path)  # /srv/project/src/main.py
        sandbox.exec("sed -i s/42/43/ /srv/project/src/main.py", check=True)
        sandbox.filesystem.download_dir("/srv/project", Path(local, "back"))
        print(Path(local, "back/src/main.py").read_text().strip())  # answer = 43
    url = sandbox.filesystem.signed_url("/srv/project/src/main.py", expires_in_seconds=60)
    with urllib.request.urlopen(url) as answer:
        print(answer.read().decode().strip())  # answer = 43
