"""A live server, sandboxes that go away again, and waiting with a deadline."""

from __future__ import annotations

import os
import sys
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, TypeVar

import httpx
import pytest

from full_only import reason_of
from pandastack import NotFoundError, PandaStack, Sandbox

T = TypeVar("T")

#: Labels every sandbox of this run, so that nothing is left behind and nothing else is touched.
RUN = {"e2e": uuid.uuid4().hex}
#: Emulated machines on a busy box are slow; a healthy one needs a fraction of this.
PATIENCE_SECONDS = 180.0


#: Features of E2B's clients that a test of this run proved, with what was proved of each.
E2B_PASSED: Dict[str, List[str]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed and "platform_process" in sys.modules:
        for platform in sys.modules["platform_process"].Platform.running:
            tails = platform.log_tails().items()
            report.sections += [(f"{name} of {platform.prefix}", text) for name, text in tails]
    marker = item.get_closest_marker("e2b")
    if marker is not None and call.when == "call" and report.passed:
        E2B_PASSED.setdefault(marker.args[0], []).append(marker.args[1])


# Five seconds, the default, are not much for a call into an emulated guest.
for limit in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, limit, PATIENCE_SECONDS)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_platform: starts platforms of its own, or an internet")
    config.addinivalue_line("markers", "internet: makes an internet, of which there can be one at a time")
    config.addinivalue_line("markers", "e2b(feature, detail): the feature of E2B's clients that a test proves")
    missing = [name for name in ("PANDASTACK_API", "PANDASTACK_API_KEY") if not os.environ.get(name)]
    if missing:
        raise pytest.UsageError(f"{' and '.join(missing)} must name a running server: see tests/e2e/README.md")


def pytest_collection_modifyitems(items: List[pytest.Function]) -> None:
    """Whoever starts platforms or an internet is marked, so that those tests can run beside the others. What only a full run
    has is skipped."""
    for item in items:
        reason = reason_of(f"{item.path.name}::{item.name}")
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        if "InternetInABox" in vars(item.module):
            item.add_marker("internet")
        if {"Platform", "ReplicatedPlatform"} & vars(item.module).keys():
            item.add_marker("own_platform")


def wait_for(what: str, probe: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """The first truthy result of ``probe``."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def client() -> Iterator[PandaStack]:
    with PandaStack() as made:
        yield made
        delete_run(made)


def delete_run(client: PandaStack) -> None:
    for sandbox in client.sandboxes.list():
        if sandbox.metadata.get("e2e") == RUN["e2e"]:
            try:
                sandbox.delete()
            except NotFoundError:
                pass


@pytest.fixture(scope="session")
def shared(client: PandaStack) -> Sandbox:
    """One sandbox for tests that do not change its state."""
    return client.sandboxes.create(template="base", ttl_seconds=6 * 3600, metadata=RUN)


@pytest.fixture
def own(client: PandaStack) -> Iterator[Sandbox]:
    """A sandbox for one test."""
    with client.sandboxes.create(template="base", ttl_seconds=1800, metadata=RUN) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def raw() -> Iterator[httpx.Client]:
    """The API without the SDK, for requests that the SDK refuses to send."""
    headers = {"Authorization": f"Bearer {os.environ['PANDASTACK_API_KEY']}"}
    base = os.environ["PANDASTACK_API"].rstrip("/").removesuffix("/v1") + "/v1"
    with httpx.Client(base_url=base, headers=headers, timeout=PATIENCE_SECONDS) as made:
        yield made


def error_body(response: httpx.Response) -> Dict[str, Any]:
    """The error envelope, checked."""
    shown = f"{response.request.method} {response.request.url}: {response.status_code} {response.text[:500]}"
    assert 400 <= response.status_code < 500, shown
    assert response.headers["content-type"].startswith("application/json"), shown
    body: Dict[str, Any] = response.json()
    assert isinstance(body["error"], str) and len(body["error"]) > 5, shown
    assert isinstance(body["code"], str) and body["code"] == body["code"].lower() and " " not in body["code"], shown
    return body
