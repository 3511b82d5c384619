"""Settings in an app's source, of any origin."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from test_apps import DEPLOY_SECONDS, Apps, get

from pandastack import Sandbox

#: Healthy only where its file says, and with the variables from there.
SERVER = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = False
    def do_GET(self):
        Handler.asked = Handler.asked or self.path == "/up"
        body = (os.environ["GREETING"] + " " + os.environ["PORT"]).encode()
        self.send_response(200 if Handler.asked else 503)
        self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
ThreadingHTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
"""

MANIFEST = """
[app]
name = "unused"
root_directory = "web"
install_command = "echo installs; find /srv/app -name .git"
start_command = "exec python3 main.py"
port = 3000
health_path = "/up"

[env]
GREETING = "hello"
WORKERS = 2
"""


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    with Apps() as made:
        yield made


@pytest.fixture(scope="module")
def written(shared: Sandbox) -> str:
    """A directory of a sandbox with an app in it, as `--from-sandbox` takes it."""
    directory = f"/root/{uuid.uuid4().hex[:8]}"
    shared.filesystem.mkdir(f"{directory}/web")
    shared.filesystem.write(f"{directory}/pandastack.toml", MANIFEST)
    shared.filesystem.write(f"{directory}/web/main.py", SERVER)
    shared.filesystem.write(f"{directory}/web/.python-version", "3.1\n")
    for history in (".git", "web/.git"):
        shared.filesystem.mkdir(f"{directory}/{history}")
        shared.filesystem.write(f"{directory}/{history}/config", "s3cret")
    return f"{shared.id}:{directory}"


def deploy(apps: Apps, name: str, directory: Path, *words: str) -> Dict[str, Any]:
    """Runs the command line there; answers the deployment."""
    command = [os.environ["PANDASTACK_BIN"], "app", "deploy", name, *words]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=DEPLOY_SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"http://{name}."), ran.stdout
    newest = apps.call("GET", f"/apps/{name}/deploys", 200)["items"][0]
    found: Dict[str, Any] = apps.call("GET", f"/apps/{name}/deploys/{newest['id']}", 200)
    return found


def test_deploying_a_sandbox_directory_uses_its_pandastack_toml(apps: Apps, written: str, tmp_path: Path) -> None:
    name = "t" + uuid.uuid4().hex[:12]
    apps.made.append(name)
    # The file of another app, in the current directory.
    (tmp_path / "pandastack.toml").write_text('[app]\nname = "another"\nport = 9999\nroot_directory = "nowhere"\n')
    first = deploy(apps, name, tmp_path, "--from-sandbox", written)
    assert (first["trigger"], first["status"]) == ("sandbox", "live"), first
    assert "\n/srv/app" not in first["build_logs"], "a repository's history is no part of the source"
    for words in ("\ninstalls", "/up responded with 200", ".python-version asks for Python 3.1, but"):
        assert words in first["build_logs"], first["build_logs"]
    app = apps.call("GET", f"/apps/{name}", 200)
    assert get(app).text == "hello 3000"
    assert app["port"] == 8080, "what the file says is the version's, not the app's"
    # Settings of the app win, and `--no-cache` installs again.
    apps.call("PUT", f"/apps/{name}/env/GREETING", 200, json={"value": "said"})
    second = deploy(apps, name, tmp_path, "--from-sandbox", written, "--port", "8080", "--no-cache")
    assert "\ninstalls" in second["build_logs"], second["build_logs"]
    assert get(app).text == "said 8080"


def test_an_unknown_setting_is_named_in_the_error(apps: Apps) -> None:
    app = apps.create()
    ended = apps.finished(apps.upload(app, {"main.py": "", "pandastack.toml": '[app]\nstrat_command = "x"\n'}))
    assert ended["status"] == "failed" and "`strat_command`" in ended["error"], ended


def test_a_bad_archive_reports_the_reason(apps: Apps) -> None:
    headers = {"content-type": "application/x-tar"}
    ended = apps.finished(apps.call("POST", f"/apps/{apps.create()['id']}/deploys", 202, content=b"nonsense" * 200, headers=headers))
    assert ended["status"] == "failed" and "does not look like a tar archive" in ended["error"], ended
