"""`pandastack mcp`, driven by the protocol's own client library over both transports."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Iterator

import httpx
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from pandastack import PandaStack

BIN = os.environ["PANDASTACK_BIN"]
KEY = os.environ["PANDASTACK_API_KEY"]
TOOLS = {
    "sandbox_create", "sandbox_list", "sandbox_delete", "sandbox_exec", "run", "run_code", "sandbox_fork",
    "sandbox_snapshot", "sandbox_rollback", "sandbox_hibernate", "preview_url", "file_read", "file_write",
    "file_list",
}  # fmt: skip


class Agent:
    """An agent's end of a connection."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def call(self, tool: str, **arguments: Any) -> Any:
        text, failed = await self.try_call(tool, **arguments)
        assert not failed, text
        return json.loads(text)

    async def try_call(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        answer = await self.session.call_tool(tool, arguments)
        return answer.content[0].text, bool(answer.is_error)


@asynccontextmanager
async def over_stdio() -> AsyncIterator[Agent]:
    server = StdioServerParameters(command=BIN, args=["mcp"], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield Agent(session)


@pytest.fixture(scope="module")
def http_url() -> Iterator[str]:
    process = subprocess.Popen([BIN, "mcp", "--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://\S+/mcp", process.stderr.readline())
        assert found, "the server does not say where it listens"
        yield found.group()
    finally:
        process.terminate()
        process.wait(10)


@asynccontextmanager
async def over_http(url: str, key: str = KEY) -> AsyncIterator[Agent]:
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {key}"}) as client:
        async with streamable_http_client(url, http_client=client) as streams:
            async with ClientSession(*streams[:2]) as session:
                await session.initialize()
                yield Agent(session)


async def work(agent: Agent) -> None:
    """Acts like an agent: creates a machine, runs its code, branches it, shows it, cleans up."""
    made = await agent.call("sandbox_create", template="base", ttl_seconds=600)
    sandbox = made["sandbox_id"]
    forks = []
    try:
        assert made["status"] == "running"
        await agent.call("file_write", sandbox_id=sandbox, path="/srv/a/program.py", content="print(6 * 7)\n")
        ran = await agent.call("sandbox_exec", sandbox_id=sandbox, command="python3 program.py", cwd="/srv/a")
        assert ran == {"exit_code": 0, "stdout": "42\n", "stderr": ""}
        await agent.call("run_code", sandbox_id=sandbox, code="let x = 41", language="js")
        code = "console.log('seen'); x + 1"
        ran = await agent.call("run_code", sandbox_id=sandbox, code=code, language="js")
        assert ran == {"stdout": "seen\n", "stderr": "", "results": ["42"]}
        listed = await agent.call("file_list", sandbox_id=sandbox, path="/srv/a")
        assert listed == {"entries": [{"name": "program.py", "is_dir": False, "size": 13}], "left_out": 0}
        assert (await agent.call("file_read", sandbox_id=sandbox, path="/srv/a/program.py"))["content"] == "print(6 * 7)\n"

        taken = await agent.call("sandbox_snapshot", sandbox_id=sandbox)
        forks = [fork["sandbox_id"] for fork in (await agent.call("sandbox_fork", sandbox_id=sandbox, count=2))["children"]]
        assert len(forks) == 2
        shown = {entry["sandbox_id"] for entry in await agent.call("sandbox_list")}
        assert {sandbox, *forks} <= shown
        await agent.call("sandbox_exec", sandbox_id=forks[0], command="rm /srv/a/program.py")
        assert (await agent.call("file_read", sandbox_id=forks[1], path="/srv/a/program.py"))["content"]

        await agent.call("sandbox_exec", sandbox_id=sandbox, command="rm -r /srv/a")
        await agent.call("sandbox_rollback", sandbox_id=sandbox, snapshot_id=taken["snapshot_id"])
        assert (await agent.call("file_read", sandbox_id=sandbox, path="/srv/a/program.py"))["content"]

        server = "cd /srv/a; nohup python3 -m http.server 8000 > /dev/null 2>&1 & until ss -ltn | grep -q :8000; do sleep 0.1; done"
        await agent.call("sandbox_exec", sandbox_id=sandbox, command=server)
        url = (await agent.call("preview_url", sandbox_id=sandbox, port=8000))["url"]
        assert sandbox in url

        await agent.call("sandbox_hibernate", sandbox_id=sandbox)
        woken = await agent.call("sandbox_exec", sandbox_id=sandbox, command="echo awake")
        assert woken["stdout"] == "awake\n"
    finally:
        for each in [sandbox, *forks]:
            await agent.call("sandbox_delete", sandbox_id=each)


def test_mcp_works_over_stdio() -> None:
    async def go() -> None:
        async with over_stdio() as agent:
            tools = (await agent.session.list_tools()).tools
            assert {tool.name for tool in tools} == TOOLS
            assert all(tool.description for tool in tools)
            await work(agent)

    asyncio.run(go())


def test_mcp_works_over_http(http_url: str) -> None:
    async def go() -> None:
        async with over_http(http_url) as agent:
            await work(agent)

    asyncio.run(go())


def test_http_requires_a_key_and_a_trusted_host_and_origin(http_url: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert httpx.post(http_url, json=body).status_code == 401
    authorized = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
    assert httpx.post(http_url, json=body, headers={**authorized, "Host": "evil.example"}).status_code == 403
    assert httpx.post(http_url, json=body, headers={**authorized, "Origin": "http://evil.example"}).status_code == 403

    async def wrong_key() -> None:
        async with over_http(http_url, key="pds_" + 32 * "0") as agent:
            sentence, failed = await agent.try_call("sandbox_list")
            assert failed and "key" in sentence.lower()

    asyncio.run(wrong_key())


def test_tool_errors_explain_the_failure() -> None:
    async def go() -> None:
        async with over_stdio() as agent:
            refusals: Dict[str, Callable[[], Awaitable[tuple[str, bool]]]] = {
                "sandbox `not-there` not found": lambda: agent.try_call("sandbox_exec", sandbox_id="not-there", command="true"),
                "is not a valid sandbox id": lambda: agent.try_call("sandbox_delete", sandbox_id="NOT AN ID"),
                "template `nothing` not found": lambda: agent.try_call("sandbox_create", template="nothing"),
                "steps of 128": lambda: agent.try_call("sandbox_create", memory_mb=1000),
            }
            for sentence, attempt in refusals.items():
                text, failed = await attempt()
                assert failed and sentence in text, text
            ran = await agent.call("run", command="echo out; echo err >&2; exit 3")
            assert ran == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}

    asyncio.run(go())


def test_large_tool_results_are_truncated_or_paged(client: PandaStack) -> None:
    async def go() -> None:
        async with over_stdio() as agent:
            with client.sandboxes.create("base") as sandbox:
                flood = "echo begin; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"
                ran = await agent.call("sandbox_exec", sandbox_id=sandbox.id, command=flood)
                assert len(ran["stdout"]) < 33_000 and "bytes omitted" in ran["stdout"]
                assert ran["stdout"].startswith("begin") and ran["stdout"].endswith("end\n")

                sandbox.filesystem.write("/srv/long", "".join(f"{n:09}\n" for n in range(10_000)))
                content, offset = "", 0
                while offset is not None:
                    part = await agent.call("file_read", sandbox_id=sandbox.id, path="/srv/long", offset=offset)
                    content, offset = content + part["content"], part.get("next_offset")
                assert content.splitlines()[9_999] == "000009999" and len(content) == 100_000
                sandbox.exec("mkdir /srv/many && cd /srv/many && seq 501 | xargs touch", check=True)
                listed = await agent.call("file_list", sandbox_id=sandbox.id, path="/srv/many")
                assert (len(listed["entries"]), listed["left_out"]) == (500, 1)

    asyncio.run(go())
