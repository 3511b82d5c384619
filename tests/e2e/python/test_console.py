"""The web console, in a browser and against real machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, List

import pytest
from browser import browser  # noqa: F401 (a fixture)
from full_only import FULL
from playwright.sync_api import Browser, BrowserContext, Page, expect

from pandastack import PandaStack

API = os.environ["PANDASTACK_API"].rstrip("/")
CONSOLE = f"{API}/console"
AXE = Path(__file__).parents[3] / "web/node_modules/axe-core/axe.min.js"
#: Browsers say so when it refuses something.
POLICY = "Content Security Policy"
#: Machines are emulated here; a page that waits for one may take so long.
MACHINE_MS = 120_000
#: The box is busy when tests run beside each other.
expect.set_options(timeout=60_000)
#: Where pictures of the pages go, to be looked at.
PICTURES = Path(os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack")) / "logs/console"


@pytest.fixture(scope="module")
def key() -> str:
    return os.environ["PANDASTACK_API_KEY"]


@pytest.fixture()
def context(browser: Browser) -> Iterator[BrowserContext]:  # noqa: F811
    opened = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme="light")
    opened.set_default_timeout(60_000)
    yield opened
    opened.close()


@pytest.fixture()
def page(context: BrowserContext, key: str) -> Page:
    """Signed in, and watched: no request leaves the installation, and the policy refuses nothing."""
    page = context.new_page()
    page.on("request", lambda request: outside.append(request.url) if not is_own(request.url) else None)
    page.on("console", lambda said: refused.append(said.text) if POLICY in said.text else None)
    outside: List[str] = []
    refused: List[str] = []
    sign_in(page, key)
    page.check_strict = lambda: (outside, refused)  # type: ignore[attr-defined]
    return page


def is_own(url: str) -> bool:
    return url.startswith((f"{API}/", "data:", "blob:"))


def sign_in(page: Page, key: str) -> None:
    page.goto(f"{API}/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def assert_strict(page: Page) -> None:
    assert page.check_strict() == ([], [])  # type: ignore[attr-defined]


def findings(page: Page) -> List[str]:
    """Serious findings of axe-core, as one line each."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    nodes = [(one["id"], node) for one in grave for node in one["nodes"]]
    return [f"{page.url} {rule}: {node['target']} {node['failureSummary']}" for rule, node in nodes]


def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def test_signing_in_keeps_the_key_out_of_the_browser(context: BrowserContext, key: str) -> None:
    page = context.new_page()
    page.goto(f"{CONSOLE}/sandboxes")
    page.get_by_label("API key").fill("pds_00000000000000000000000000000000")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("invalid")
    assert findings(page) == []
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    # The address that was asked for is the one that is shown.
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    (cookie,) = context.cookies()
    assert cookie["name"] == "__Host-pandastack-console"
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert key not in stored and cookie["value"] not in stored
    page.reload()
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert context.cookies() == []


def test_a_page_of_another_origin_cannot_use_the_session(context: BrowserContext, key: str) -> None:
    page = context.new_page()
    sign_in(page, key)
    # As an address that is opened, it is no page and no data.
    opened = context.new_page()
    answer = opened.goto(f"{API}/v1/sandboxes")
    assert answer is not None and answer.status == 403
    # From an origin on the same host, a browser sends the cookie and says who asks.
    other = API.replace("127.0.0.1", "x.localhost")
    opened.goto(f"{other}/healthz")
    ask = "url => fetch(url, {credentials: 'include', mode: 'no-cors'}).then(r => r.type, e => String(e))"
    status = opened.evaluate(ask, f"{API}/v1/me")
    assert status in ("opaque", "TypeError: Failed to fetch")
    assert page.evaluate("fetch('/v1/me').then(r => r.status)") == 200


def test_the_console_creates_uses_and_forks_a_sandbox(page: Page, client: PandaStack) -> None:
    page.goto(f"{CONSOLE}/sandboxes?create")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("from-console")
    expect(dialog.locator("pre")).to_contain_text("--metadata name=from-console")
    dialog.get_by_role("button", name="Python").click()
    expect(dialog.locator("pre")).to_contain_text('metadata={"name": "from-console"}')
    dialog.get_by_role("button", name="Create sandbox").click()
    expect(page.get_by_role("heading", name="from-console")).to_be_visible(timeout=MACHINE_MS)
    sandbox = page.url.rsplit("/", 1)[1]
    try:
        # A shell: what is typed is run, and what it prints is shown.
        page.get_by_role("link", name="Terminal").click()
        expect(page.locator(".screen[data-state=open]")).to_be_visible(timeout=MACHINE_MS)
        page.locator(".screen").click()
        page.keyboard.type("echo $((6*7)) > /root/answer.txt; cat /root/answer.txt | tr 2 3\n")
        expect(page.locator(".xterm-rows")).to_contain_text("43", timeout=MACHINE_MS)
        picture(page, "terminal")
        # Another tab and back: the same shell, with what it printed.
        page.get_by_role("link", name="Files").click()
        # A file: read, changed, saved.
        page.get_by_role("button", name="answer.txt").click(timeout=MACHINE_MS)
        editor = page.get_by_label("Content of answer.txt")
        expect(editor).to_contain_text("42", timeout=MACHINE_MS)
        editor.click()
        page.keyboard.press("Control+End")
        page.keyboard.type("edited")
        picture(page, "files")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved")).to_be_visible(timeout=MACHINE_MS)
        assert b"edited" in client.sandboxes.get(sandbox).filesystem.read("/root/answer.txt")
        page.get_by_role("link", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_contain_text("43", timeout=MACHINE_MS)
        # A fork made here grows the tree, and so does one made elsewhere.
        page.get_by_role("link", name="Forks").click()
        nodes = page.get_by_role("treeitem")
        expect(nodes).to_have_count(1)
        page.get_by_role("main").get_by_role("button", name="Fork", exact=True).last.click()
        expect(nodes).to_have_count(2, timeout=MACHINE_MS)
        client.sandboxes.get(sandbox).fork()
        expect(nodes).to_have_count(3, timeout=MACHINE_MS)
        picture(page, "forks")
        assert findings(page) == []
        nodes.nth(1).click()
        page.wait_for_url(lambda url: sandbox not in url)
        # Destroying asks for the name.
        page.goto(f"{CONSOLE}/sandboxes/{sandbox}")
        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Delete").click()
        confirm = page.get_by_role("dialog").get_by_role("button", name="Delete")
        expect(confirm).to_be_disabled()
        page.get_by_role("dialog").get_by_role("textbox").fill(sandbox)
        confirm.click()
        expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible(timeout=MACHINE_MS)
        assert_strict(page)
    finally:
        # Forks have their parent's metadata.
        for left in client.sandboxes.list():
            if left.metadata.get("name") == "from-console":
                left.delete()


def test_pages_are_accessible_in_both_themes_and_on_a_phone(page: Page) -> None:
    always = ("", "sandboxes", "databases", "apps", "keys")
    rest = ("functions", "schedules", "volumes", "templates", "usage", "webhooks", "hosts")
    for name in (*always, *rest) if FULL else always:
        page.goto(f"{CONSOLE}/{name}")
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("[aria-busy]")).to_have_count(0)
        assert findings(page) == []
        picture(page, f"page-{name or 'overview'}")
    page.get_by_role("button", name="Use the dark theme").click()
    for name in ("", "keys"):
        page.goto(f"{CONSOLE}/{name}")
        expect(page.locator("main h1")).to_be_visible()
        assert findings(page) == []
        picture(page, f"dark-{name or 'overview'}")
    page.set_viewport_size({"width": 390, "height": 780})
    for name in ("", "sandboxes", "keys"):
        page.goto(f"{CONSOLE}/{name}")
        expect(page.locator("main h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        picture(page, f"phone-{name or 'overview'}")
    page.keyboard.press("Control+k")
    page.get_by_placeholder("Search pages").fill("sched")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    assert_strict(page)


def test_the_console_shows_sql_branches_and_history_of_a_database(page: Page, client: PandaStack) -> None:
    database = client.databases.create(label="console-db")
    try:
        page.goto(f"{CONSOLE}/databases/{database['id']}/sql")
        page.get_by_label("SQL").click()
        page.keyboard.press("Control+a")
        page.keyboard.type("SELECT n, n * n AS square FROM generate_series(1, 5) AS n")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("region", name="Result")).to_contain_text("25", timeout=MACHINE_MS)
        picture(page, "sql")
        page.get_by_role("button", name="Chart").click()
        expect(page.locator(".chart canvas")).to_be_visible()
        page.goto(f"{CONSOLE}/databases/{database['id']}/branches")
        page.get_by_role("button", name="Branch").click()
        page.get_by_role("dialog").get_by_label("Name").fill("console-branch")
        page.get_by_role("button", name="Create branch").click()
        expect(page.get_by_role("treeitem")).to_have_count(2, timeout=MACHINE_MS)
        picture(page, "branches")
        page.goto(f"{CONSOLE}/databases/{database['id']}/history")
        expect(page.get_by_text("Continuous archive")).to_be_visible(timeout=MACHINE_MS)
        assert findings(page) == []
        picture(page, "history")
        assert_strict(page)
    finally:
        for item in client.databases.list():
            if item["id"] == database["id"] or item.get("cloned_from") == database["id"]:
                client.databases.delete(item["id"])
