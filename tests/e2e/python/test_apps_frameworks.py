"""Every detected framework: a sample with packages of real registries, pushed, and opened in a browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from app_samples import SAMPLES, VITE, Sample
from browser import browser, colour  # noqa: F401 (a fixture)
from git_world import Client, GitServer, Repository
from internet import RESOLVER, InternetInABox
from platform_process import Platform
from playwright.sync_api import Browser, Page, expect
from registries import Registries

#: A page is there at once; a machine that wakes for it may take a while.
SHOWN_MS_MAX = 60_000


class World:
    """A platform with repositories and registries in reach."""

    def __init__(self, platform: Platform, root: Path, registries: Dict[str, str]) -> None:
        self.client, self.root, self.registries = Client(platform), root, registries

    def create(self, name: str, sample: Sample) -> Repository:
        repository = Repository(self.root, f"{name}.git")
        env = {**self.registries, **sample.env}
        settings = {"git_url": repository.url, "webhook_secret": "hush", "env": env, "memory_mb": sample.memory_mb}
        self.client.call("POST", "/apps", 201, json={"name": name, **settings})
        return repository

    def push(self, name: str, repository: Repository, files: Dict[str, str]) -> Dict[str, Any]:
        told = self.client.tell_push(name, "hush", repository.push(files))
        return self.client.live(name, told["deployment_id"], seconds_max=1800)

    def address(self, name: str, path: str = "/") -> str:
        return self.client.url.replace("127.0.0.1", f"{name}.localhost") + path


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with InternetInABox(), GitServer() as root, Registries() as registries:
        running = Platform("pdsk", "10.223.0.0/16", "--warm", "base", "--resolver", RESOLVER)
        try:
            yield World(running.start(), root, registries)
        finally:
            running.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:  # noqa: F811
    opened = browser.new_page()
    yield opened
    opened.close()


def shows(page: Page, address: str, heading: str) -> None:
    page.goto(address, timeout=SHOWN_MS_MAX)
    expect(page.locator("h1")).to_have_text(heading, timeout=SHOWN_MS_MAX)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_pushed_sample_app_is_served(world: World, page: Page, name: str) -> None:
    sample, began = SAMPLES[name], time.monotonic()
    repository = world.create(name, sample)
    done = world.push(name, repository, sample.files)
    assert (done["framework"], done["trigger"]) == (sample.framework, "push"), done["build_logs"]
    shows(page, world.address(name), sample.heading)
    assert colour(page) == sample.colour
    print(f"{name}: {time.monotonic() - began:.0f} s from push to page")
    world.client.call("DELETE", f"/apps/{name}", 204)


def test_a_second_push_reuses_dependencies_and_updates_the_page(world: World, page: Page) -> None:
    name = "again"
    repository = world.create(name, VITE)
    world.push(name, repository, VITE.files)
    changed = {"src/main.jsx": VITE.files["src/main.jsx"].replace("vite at", "changed at")}
    done = world.push(name, repository, changed)
    assert "dependencies restored, not reinstalled" in done["build_logs"], done["build_logs"]
    # A path that only the page's own router knows.
    shows(page, world.address(name, "/deep/down"), "changed at /deep/down sweet")
    world.client.call("DELETE", f"/apps/{name}", 204)
