"""Templates of the catalogue that are baked on first use: what each is for is done once, on a real machine.

Emulated machines take minutes for what these programs do, so the deadlines are long.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List

import httpx
import pytest
from playwright.sync_api import sync_playwright

from browser import colour
from conftest import RUN, wait_for
from pandastack import PandaStack, Sandbox

HERE = Path(__file__).parent
#: The longest that one program of these templates may take on an emulated machine, on a busy host.
SECONDS_MAX = 1800
MODEL_PORT = 8100
#: Two steps: the second runs what the first wrote, and what it prints has to come back to the model.
STEPS = ["printf 'print(6 * 7)\\n' > answer.py", "python3 answer.py | tee answer.txt"]
ANSWER = "The last command printed: 42"
MODEL = f"http://127.0.0.1:{MODEL_PORT}"
CODEX_PROVIDER = f'{{name="model", base_url="{MODEL}/v1", env_key="OPENAI_API_KEY", wire_api="responses"}}'
OPENCODE = {"provider": {"anthropic": {"options": {"baseURL": f"{MODEL}/v1"}}}, "permission": "allow"}
AGENTS: Dict[str, List[str]] = {
    "claude": ["claude", "--print", "--dangerously-skip-permissions", "Compute it"],
    "codex": ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
              "-c", "model_provider=model", "-c", "model=scripted",
              "-c", f"model_providers.model={CODEX_PROVIDER}", "Compute it"],
    "opencode": ["opencode", "run", "--model", "anthropic/claude-sonnet-4-5", "Compute it"],
}
AGENT_ENVIRONMENT = {
    "ANTHROPIC_BASE_URL": MODEL, "ANTHROPIC_API_KEY": "none", "OPENAI_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE),
}


def upload(sandbox: Sandbox, name: str) -> None:
    sandbox.filesystem.write(f"/test/{name}", (HERE / name).read_bytes())


def answers(sandbox: Sandbox, url: str) -> None:
    probe = f"curl --silent --output /dev/null --retry 300 --retry-delay 1 --retry-connrefused {url}"
    sandbox.exec(probe, timeout_seconds=300, check=True)


def test_kernel_modules_load_in_a_sandbox(own: Sandbox) -> None:
    """What Docker needs of the kernel, in any template."""
    load = "modprobe -a overlay bridge veth && grep -w overlay /proc/filesystems && iptables -t nat -S"
    loaded = own.exec(load, timeout_seconds=120)
    assert loaded.exit_code == 0 and "-P POSTROUTING ACCEPT" in loaded.stdout, loaded


@pytest.fixture(scope="module")
def agent(client: PandaStack) -> Iterator[Sandbox]:
    """Without the internet: nothing but the stand-in can have answered."""
    created = client.sandboxes.create("agent", ttl_seconds=7200, metadata=RUN, network="none")
    with created as sandbox:
        upload(sandbox, "scripted_model.py")
        sandbox.filesystem.write("/test/steps.json", json.dumps(STEPS))
        sandbox.start(f"python3 /test/scripted_model.py {MODEL_PORT} /test/steps.json")
        answers(sandbox, MODEL)
        yield sandbox


@pytest.mark.parametrize("name", AGENTS)
def test_a_coding_agent_completes_a_task(agent: Sandbox, name: str) -> None:
    version = agent.exec([name, "--version"], timeout_seconds=SECONDS_MAX, check=True).stdout
    assert re.search(r"\d+\.\d+\.\d+", version), version
    directory = f"/tmp/task-{name}"
    agent.filesystem.mkdir(directory)
    settings: Dict[str, Any] = {"cwd": directory, "env": AGENT_ENVIRONMENT, "stdin": ""}
    done = agent.exec(AGENTS[name], timeout_seconds=SECONDS_MAX, **settings)
    assert done.exit_code == 0 and ANSWER in done.stdout, done
    assert agent.filesystem.read_text(f"{directory}/answer.txt") == "42\n", done


@pytest.fixture(scope="module")
def browser_box(client: PandaStack) -> Iterator[Sandbox]:
    with client.sandboxes.create("browser", ttl_seconds=7200, metadata=RUN) as sandbox:
        upload(sandbox, "browser_inside.py")
        yield sandbox


def test_browser_libraries_open_click_draw_and_read(browser_box: Sandbox) -> None:
    ran = browser_box.exec("python3 /test/browser_inside.py", timeout_seconds=SECONDS_MAX)
    expect = ["the running browser: clicked", "a browser of its own: clicked", "crawl4ai: read"]
    assert ran.stdout.splitlines() == expect, ran


def test_the_running_browser_is_driven_from_outside(browser_box: Sandbox) -> None:
    browser_box.start("python3 /test/browser_inside.py serve")
    answers(browser_box, "http://127.0.0.1:8000/")
    # Programs other than browsers do not resolve names below `localhost` everywhere: headers name the port.
    edge = str(httpx.URL(browser_box.preview_url(9222)).copy_with(host="127.0.0.1"))
    named = {"E2b-Sandbox-Id": browser_box.id, "E2b-Sandbox-Port": "9222"}
    with sync_playwright() as playwright:
        remote = playwright.chromium.connect_over_cdp(edge, headers=named, timeout=300_000)
        page = remote.new_context(viewport={"width": 100, "height": 100}).new_page()
        page.goto("http://127.0.0.1:8000/", timeout=300_000)
        assert colour(page) == "#ff0000"
        page.click("button", timeout=300_000)
        assert page.title() == "Clicked"
        assert colour(page) == "#00ff00"
        remote.close()


COMPOSE = """
services:
  server:
    image: own
    init: true
    command: [python3, -m, http.server, "8080", --directory, /served]
  client:
    image: own
    command: [python3, /fetch.py, "http://server:8080/word"]
    depends_on: [server]
"""
FETCH = """
import sys, time, urllib.request
for _ in range(600):
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
        break
    except OSError:
        time.sleep(0.5)
else:
    sys.exit("nobody answers")
"""
#: An image of the machine's own files: Python and what it loads.
MAKE_IMAGE = """
set -eu
mkdir -p /build/root/served /build/root/tmp && cd /build
printf 'from the server' > root/served/word
cp /test/fetch.py root/fetch.py
python=$(readlink -f /usr/bin/python3)
version=$(basename "$python")
{ echo "$python"; echo /lib64/ld-linux-x86-64.so.2
  for file in "$python" /usr/lib/"$version"/lib-dynload/*.so; do ldd "$file" | grep -o '/[^ ]*'; done
} | sort -u > files
tar -ch -T files --exclude='*/__pycache__' /usr/lib/"$version" 2> /dev/null | tar -x -C root
ln -sf "$version" root/usr/bin/python3
tar -c -C root . > root.tar
{ echo FROM scratch; echo ADD root.tar /; echo ENV PATH=/usr/bin
  echo 'CMD ["python3", "-c", "print(6 * 7)"]'; } > Dockerfile
docker build --progress plain --tag own . 2>&1
"""


@pytest.fixture(scope="module")
def docker(client: PandaStack) -> Iterator[Sandbox]:
    """Without the internet, so that no registry is asked for anything."""
    with client.sandboxes.create("docker", ttl_seconds=7200, metadata=RUN, network="none") as sandbox:
        sandbox.filesystem.write("/test/fetch.py", FETCH)
        sandbox.filesystem.write("/test/compose.yaml", COMPOSE)
        sandbox.exec(MAKE_IMAGE, timeout_seconds=SECONDS_MAX, check=True)
        yield sandbox


def test_docker_runs_a_built_image(docker: Sandbox) -> None:
    described = docker.exec("docker info --format json", timeout_seconds=SECONDS_MAX, check=True)
    info = json.loads(described.stdout)
    assert (info["Driver"], info["CgroupVersion"], info["CgroupDriver"]) == ("overlay2", "2", "cgroupfs")
    assert docker.exec("docker run --rm own", timeout_seconds=SECONDS_MAX, check=True).stdout == "42\n"
    # Limits are the kernel's, not only noted.
    limited = "docker run --rm --memory 64m own python3 -c 'bytearray(256 << 20)'; echo $?"
    assert docker.exec(limited, timeout_seconds=SECONDS_MAX).stdout.split()[-1] == "137"


def test_composed_services_talk_to_each_other(docker: Sandbox) -> None:
    up = "docker compose --project-name talk up --exit-code-from client --no-color 2>&1"
    ran = docker.exec(up, cwd="/test", timeout_seconds=SECONDS_MAX)
    assert ran.exit_code == 0 and "from the server" in ran.stdout, ran
    down = "docker compose --project-name talk down"
    docker.exec(down, cwd="/test", timeout_seconds=SECONDS_MAX, check=True)


def test_containers_go_on_in_a_fork_and_after_sleep(docker: Sandbox) -> None:
    count = "import time\nfor n in range(10 ** 9):\n open('/tmp/count', 'w').write(str(n)); time.sleep(0.2)"
    docker.exec(["docker", "run", "--detach", "--name", "counter", "own", "python3", "-c", count],
                timeout_seconds=SECONDS_MAX, check=True)

    def counted(sandbox: Sandbox) -> int:
        read = sandbox.exec("docker exec counter python3 -c 'print(open(\"/tmp/count\").read() or 0)'",
                            timeout_seconds=SECONDS_MAX)
        return int(read.stdout or 0)

    before = wait_for("the container counts", lambda: counted(docker), SECONDS_MAX)
    with docker.fork() as copy:
        copied = counted(copy)
        assert copied >= before
        wait_for("the fork's container goes on", lambda: counted(copy) > copied, SECONDS_MAX)
    docker.hibernate()
    wait_for("the container goes on after sleep", lambda: counted(docker) > before, SECONDS_MAX)


ENVIRONMENT_PORT = 8200
CALLS = [
    ["write", {"file_path": "/workspace/first.txt", "content": "one\n"}],
    ["bash", {"command": "echo begun >> begun; while [ ! -e go ]; do sleep 0.2; done; cat first.txt; "
                         "env | grep -c ^ANTHROPIC_"}],
    ["read", {"file_path": "/workspace/first.txt"}],
]
WORKER_ENVIRONMENT = {
    "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{ENVIRONMENT_PORT}", "ANTHROPIC_ENVIRONMENT_ID": "env_1",
    "ANTHROPIC_ENVIRONMENT_KEY": "key-of-the-environment", "CLAUDE_AGENT_MAX_IDLE_SECONDS": "5",
}


def test_a_worker_of_managed_agents_serves_a_session_through_a_kill(client: PandaStack) -> None:
    settings: Dict[str, Any] = {"ttl_seconds": 7200, "metadata": RUN, "network": "none"}
    settings["env"] = WORKER_ENVIRONMENT
    with client.sandboxes.create("claude-agent", **settings) as sandbox:
        upload(sandbox, "scripted_environment.py")
        sandbox.filesystem.write("/test/calls.json", json.dumps(CALLS))
        service = f"http://127.0.0.1:{ENVIRONMENT_PORT}/state"
        sandbox.start(f"python3 /test/scripted_environment.py {ENVIRONMENT_PORT} /test/calls.json")
        answers(sandbox, service)
        worker = sandbox.start("claude-agent")
        wait_for("the second call runs", lambda: sandbox.filesystem.exists("/workspace/begun"), SECONDS_MAX)
        # The brackets keep the pattern from matching the shell that runs this.
        sandbox.exec("pkill -KILL --full 'claude-agent/[w]orker.py'", check=True)
        sandbox.filesystem.write("/workspace/go", "")

        def told() -> Dict[str, object]:
            return dict(json.loads(sandbox.exec(["curl", "--silent", service], check=True).stdout))

        wait_for("the session's work ends", lambda: told()["state"] == "stopped", SECONDS_MAX)
        state = told()
        assert state["problems"] == [] and state["claims"] == 2, state
        results = state["results"]
        assert isinstance(results, list)
        texts = [result["content"][0]["text"] for result in results]
        assert texts[0].startswith("wrote 4 bytes") and texts[2] == "one\n", texts
        assert texts[1].split() == ["one", "0"], texts
        # One line for each time that the second call began.
        assert sandbox.filesystem.read_text("/workspace/begun") == "begun\n" * 2
        assert worker.refresh().info.state == "running"
