"""Chromium without a window: what a person would see."""

from __future__ import annotations

import shutil
import struct
import zlib
from typing import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

#: Tests run as root, in whose hands Chromium's own sandbox does not work; pages are our own samples.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "install Debian's package chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=ARGUMENTS, timeout=120_000)
        yield started
        started.close()


def colour(page: Page) -> str:
    """The colour of the first pixel of what the page shows, as `#rrggbb`."""
    picture = page.screenshot()
    at, depth_and_kind, pixels = 8, (0, 0), b""
    while at < len(picture):
        (length,) = struct.unpack(">I", picture[at:at + 4])
        name, content = picture[at + 4:at + 8], picture[at + 8:at + 8 + length]
        at += length + 12
        if name == b"IHDR":
            depth_and_kind = (content[8], content[9])
        elif name == b"IDAT":
            pixels += content
    assert depth_and_kind in ((8, 2), (8, 6)), "8 bits of red, green and blue, maybe with alpha"
    return first_pixel(zlib.decompress(pixels))


def first_pixel(rows: bytes) -> str:
    # Before the first pixel comes its row's filter; whichever it is, it has no neighbours to be told from.
    red, green, blue = rows[1:4]
    return f"#{red:02x}{green:02x}{blue:02x}"
