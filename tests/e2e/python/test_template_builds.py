"""Templates built from Dockerfiles: what a build runs, keeps and says."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Iterator, List

import pytest

from conftest import RUN, wait_for
from pandastack import NotFoundError, PandaStack, TemplateBuildError

#: Every kind of step, in an order that has something before and after each. The name makes its steps new to the cache.
DOCKERFILE = """\
ARG WHO=nobody
FROM base AS made
RUN mkdir /out && echo made > /out/file && chown 1000:1000 /out/file && : unlike {name}
FROM base
ARG WHO
WORKDIR /app
COPY --chmod=0755 run.sh greeting*.txt ./
COPY --from=made /out/file /app/from-stage
RUN --mount=type=bind,target=/src --mount=type=bind,from=made,source=/out/file,target=run.sh \
    test ! -e /src/secret.txt && cat /src/greeting1.txt run.sh > mounted.txt; echo junk > /src/junk; \
    echo "built for $WHO" > built.txt; mkdir -m 755 deep
COPY tree ./
ENV GREETING="hello $WHO"
COPY <<end /app/inline.txt
inline $WHO
end
USER user
CMD ["./run.sh"]
"""


@pytest.fixture
def template(client: PandaStack) -> Iterator[str]:
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    yield name
    try:
        client.templates.delete(name)
    except NotFoundError:
        pass


@pytest.fixture
def directory(tmp_path: Path, template: str) -> Path:
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "greeting1.txt").write_text("one")
    (tmp_path / "greeting2.txt").write_text("two")
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep").chmod(0o750)
    (tmp_path / "secret.txt").write_text("not for machines")
    (tmp_path / ".dockerignore").write_text("secret*\n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.format(name=template))
    return tmp_path


def logged(client: PandaStack, build_id: str) -> List[str]:
    return list(client.templates.build_logs(build_id))


def test_a_dockerfile_becomes_a_template(client: PandaStack, template: str, directory: Path) -> None:
    began = client.templates.build(template, directory, args={"WHO": "you"}, tags=["v1"])
    log = logged(client, began.id)
    built = client.templates.wait_for_build(began.id, poll_interval=0.2)
    assert built.cached_steps == 0, log
    assert any("RUN mkdir /out" in line and line.startswith("#2 [2/") for line in log), log

    with client.sandboxes.create(template=f"{template}:v1", metadata=RUN) as sandbox:
        assert sandbox.template == template
        shown = "cat built.txt inline.txt from-stage mounted.txt; ./run.sh"
        result = sandbox.exec(f'id -un; pwd; echo "$GREETING"; {shown}')
        expect = ["user", "/app", "hello you", "built for you", "inline you", "made", "onemade", "ran"]
        assert result.stdout.split("\n")[:-1] == expect, result
        owners = sandbox.exec("stat -c '%n %u %a' run.sh from-stage deep; ls; ls -A /", user="root")
        lines = owners.stdout.split()
        assert lines[:9] == ["run.sh", "0", "755", "from-stage", "1000", "644", "deep", "0", "750"], owners
        assert "greeting2.txt" in lines
        assert not {"secret.txt", "src", "pandastack-mounts"} & set(lines), lines

    # Nothing changed: nothing runs.
    again = client.templates.build(template, directory, args={"WHO": "you"})
    log = logged(client, again.id)
    done = client.templates.wait_for_build(again.id, poll_interval=0.2)
    assert not [line for line in log if " DONE " in line and not line.endswith("0.0s")], log
    assert done.cached_steps is not None and done.cached_steps >= 5, done

    # A failing step is named, and the template stays as it is.
    fails = "RUN echo last words | tee /tmp/words; exit 7\n"
    (directory / "Dockerfile").write_text(DOCKERFILE.format(name=template) + fails)
    broken = client.templates.build(template, directory, args={"WHO": "you"}, debug=True)
    with pytest.raises(TemplateBuildError) as caught:
        client.templates.wait_for_build(broken.id, poll_interval=0.2)
    failure = caught.value.build.failure or {}
    assert (failure["line"], failure["exit_code"], failure["output"]) == (17, 7, ["last words"]), failure
    with client.sandboxes.create(from_snapshot=failure["snapshot_id"]) as machine:
        assert machine.exec("cat /tmp/words /app/built.txt").stdout == "last words\nbuilt for you\n"
    version = client.templates.get(template).version or {}
    assert version["build_id"] == again.id
    assert {tag["tag"]: tag["build_id"] for tag in version["tags"]} == {"latest": again.id, "v1": began.id}



def test_a_build_is_cancelled_at_once(client: PandaStack, template: str) -> None:
    build = client.templates.build(template, dockerfile="FROM base\nRUN echo begun; sleep 600\n")
    for line in client.templates.build_logs(build.id):
        if line.endswith("begun"):
            break
    client.templates.cancel_build(build.id)
    ended = wait_for("it ended", lambda: (lambda now: now if now.is_failed else None)(client.templates.get_build(build.id)))
    assert (ended.phase, ended.error) == ("cancelled", "the build was cancelled")
