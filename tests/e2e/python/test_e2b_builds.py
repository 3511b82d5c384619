"""Templates built by E2B's unmodified client, and sandboxes of them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Iterator, List

import httpx
import pytest

from conftest import RUN
from test_e2b import API, TIMEOUT, create, e2b, feature


@pytest.fixture
def template_name() -> Iterator[str]:
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    yield name
    httpx.delete(f"{API}/templates/{name}", headers={"X-API-Key": os.environ["E2B_API_KEY"]})


@feature(
    "Template: build, get_build_status, exists, assign_tags, remove_tags, get_tags",
    "steps, start command and ready check; logs; failing steps",
)
def test_build_a_template(template_name: str, tmp_path: Path) -> None:
    server = "s.HTTPServer(('', 8000), s.SimpleHTTPRequestHandler).serve_forever()"
    (tmp_path / "app.py").write_text(f"import http.server as s; {server}")
    assert e2b.Template.exists(template_name) is False
    lines: List[str] = []
    steps = e2b.Template(file_context_path=tmp_path).from_template("base").set_envs({"SAID": "line\nbreak"})
    steps = steps.copy("app.py", "app/", mode=0o755)
    steps = steps.run_cmd('echo "$SAID" > /served; id -un >> /served', user="root")
    started = steps.set_workdir("/").set_start_cmd("python3 /home/user/app/app.py", e2b.wait_for_port(8000))
    tagged = f"{template_name}:v1"
    built = e2b.Template.build(started, tagged, on_build_logs=lambda entry: lines.append(entry.message))
    assert any(line.startswith("[3/5] RUN echo") for line in lines), lines
    with e2b.Sandbox.create(f"{template_name}:v1", timeout=TIMEOUT, metadata=RUN) as made:
        show = "curl -s localhost:8000/served; stat -c '%U %a' ~/app/app.py; id -un"
        shown = made.commands.run(show).stdout
        assert shown == "line\nbreak\nroot\nuser 755\nuser\n"

    assert e2b.Template.exists(template_name) is True
    assert e2b.Template.get_build_status(built).status.value == "ready"
    with pytest.raises(e2b.SandboxException):
        create(template_name)  # it has no default version yet
    assert e2b.Template.assign_tags(f"{template_name}:v1", ["default", "v2"]).build_id == built.build_id
    e2b.Template.remove_tags(template_name, "v2")
    assert sorted(tag.tag for tag in e2b.Template.get_tags(template_name)) == ["default", "v1"]

    broken = e2b.Template().from_template(template_name).set_user("root").run_cmd("echo last words; exit 7")
    with pytest.raises(e2b.BuildException, match=r"step 2 \(`RUN echo last words; exit 7`\).*exit code 7"):
        e2b.Template.build(broken, template_name)
