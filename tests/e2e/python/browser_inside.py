"""What runs inside a sandbox of the template `browser`: a page of a local server is opened, clicked, read and
drawn, by the libraries as they are installed and without any setting."""

from __future__ import annotations

import asyncio
import functools
import http.server
import io
import sys
import threading
from pathlib import Path
from typing import Any, Tuple

from crawl4ai import AsyncWebCrawler, BrowserConfig, CrawlerRunConfig
from PIL import Image
from playwright.sync_api import Page, sync_playwright

PORT = 8000
PAGE = """<!doctype html><title>Colours</title>
<body style="margin: 0; background: #204060">
<main><h1 style="position: absolute; top: 200px">Forty-two pandas</h1>
<p style="position: absolute; top: 260px">They eat <a href="/bamboo">bamboo</a>.
A giant panda spends most of its day eating, and needs up to forty kilograms of leaves, stems and shoots,
because it digests little of them.</p></main>
<button style="position: absolute; left: 0; top: 0; width: 100px; height: 100px; border: 0;
 background: #ff0000"
 onclick="this.style.background = '#00ff00'; document.title = 'Clicked'"></button>
"""
BACKGROUND, BEFORE, AFTER = (0x20, 0x40, 0x60), (255, 0, 0), (0, 255, 0)


def serve(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "index.html").write_text(PAGE)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
    server = http.server.ThreadingHTTPServer(("0.0.0.0", PORT), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def pixels(page: Page) -> Tuple[Any, Any]:
    """The colours of the button and of the page beside it."""
    with Image.open(io.BytesIO(page.screenshot(timeout=120_000))) as picture:
        shown = picture.convert("RGB")
        return shown.getpixel((50, 50)), shown.getpixel((300, 50))


def click_and_look(page: Page) -> None:
    page.goto(f"http://127.0.0.1:{PORT}/", timeout=120_000)
    assert pixels(page) == (BEFORE, BACKGROUND), pixels(page)
    page.click("button", timeout=120_000)
    assert page.title() == "Clicked"
    assert pixels(page) == (AFTER, BACKGROUND), pixels(page)


async def read() -> str:
    browser, run = BrowserConfig(verbose=False), CrawlerRunConfig(verbose=False, page_timeout=120_000)
    async with AsyncWebCrawler(config=browser) as crawler:
        result = await crawler.arun(f"http://127.0.0.1:{PORT}/", config=run)
    assert result.success, result.error_message
    return str(result.markdown)


if __name__ == "__main__":
    serve(Path("/tmp/page"))
    if sys.argv[1:] == ["serve"]:
        threading.Event().wait()
    with sync_playwright() as playwright:
        running = playwright.chromium.connect_over_cdp("http://127.0.0.1:9222", timeout=120_000)
        click_and_look(running.new_context(viewport={"width": 640, "height": 480}).new_page())
        running.close()
        print("the running browser: clicked")
        started = playwright.chromium.launch(timeout=120_000)
        click_and_look(started.new_page())
        started.close()
        print("a browser of its own: clicked")
    text = asyncio.run(read())
    assert "# Forty-two pandas" in text and f"[bamboo](http://127.0.0.1:{PORT}/bamboo)" in text, text
    print("crawl4ai: read")
