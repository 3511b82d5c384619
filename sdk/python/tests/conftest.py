"""Each test runs against both clients: the async one behind a face that waits for its results."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Callable, Iterator

import pytest

from pandastack import AsyncPandaStack, PandaStack

from wire_server import WireServer

KEY = "pds_0123456789abcdef0123456789abcdef"


class Waiting:
    """An async object whose methods return their results, as the sync one's do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        self.__dict__.update(_loop=loop, _target=target)

    def _face(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return self._face(self._loop.run_until_complete(value))
        if inspect.isasyncgen(value):
            return self._iterate(value)
        if isinstance(value, list):
            return [self._face(item) for item in value]
        return Waiting(self._loop, value) if type(value).__name__.startswith("Async") else value

    def _iterate(self, generator: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._face(self._loop.run_until_complete(generator.__anext__()))
            except StopAsyncIteration:
                return

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return self._face(value)
        return lambda *args, **kwargs: self._face(value(*args, **kwargs))

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._target.__aiter__())

    def __enter__(self) -> Waiting:
        self._loop.run_until_complete(self._target.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._target.__aexit__(*error))


@pytest.fixture
def server() -> Iterator[WireServer]:
    made = WireServer()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("API", "API_URL", "API_KEY", "TOKEN", "PREVIEW_HOST", "MAX_CREATE_RETRY_SECONDS"):
        monkeypatch.delenv(f"PANDASTACK_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest, server: WireServer) -> Iterator[Callable[..., Any]]:
    loop = asyncio.new_event_loop()
    made = []

    def make(**options: Any) -> Any:
        options = {"base_url": server.url, "api_key": KEY, **options}
        client: Any = PandaStack(**options) if request.param == "sync" else Waiting(loop, AsyncPandaStack(**options))
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def client(make_client: Callable[..., Any]) -> Any:
    return make_client()


@pytest.fixture
def sandbox(server: WireServer, client: Any) -> Any:
    server.on("GET", "/v1/sandboxes/s1", 200, {"id": "s1", "template": "base", "cpu": 1, "memory_mb": 512, "status": "running"})
    return client.sandboxes.get("s1")
