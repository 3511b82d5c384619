"""Serves the files of a static app: ETag, ranges, clean addresses, and index.html for single-page apps."""
import hashlib
import mimetypes
import os
import posixpath
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

ROOT = os.path.realpath(os.environ["STATIC_ROOT"])
SINGLE_PAGE = os.environ.get("STATIC_SINGLE_PAGE") == "1"
#: Names with a hash in them never change their content.
HASHED = re.compile(r"[.-][0-9A-Za-z_-]{8,}\.(js|mjs|css|woff2?|png|jpe?g|svg|webp|avif|gif|ico|map)$")


def find(path):
    """The file of an address and whether it is the page for unknown ones."""
    clean = posixpath.normpath("/" + unquote(path)).lstrip("/")
    for name in (clean, clean + ".html", posixpath.join(clean, "index.html")):
        file = os.path.realpath(os.path.join(ROOT, name))
        if (file == ROOT or file.startswith(ROOT + os.sep)) and os.path.isfile(file):
            return file, 200
    if SINGLE_PAGE and os.path.isfile(os.path.join(ROOT, "index.html")):
        return os.path.join(ROOT, "index.html"), 200
    missing = os.path.join(ROOT, "404.html")
    return (missing if os.path.isfile(missing) else None), 404


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        file, status = find(urlsplit(self.path).path)
        if file is None:
            return self.answer(404, b"Not found\n", "text/plain; charset=utf-8")
        with open(file, "rb") as opened:
            content = opened.read()
        tag = '"' + hashlib.sha256(content).hexdigest()[:32] + '"'
        kind = mimetypes.guess_type(file)[0] or "application/octet-stream"
        if kind.startswith("text/") or kind in ("application/javascript", "application/json"):
            kind += "; charset=utf-8"
        cache = "public, max-age=31536000, immutable" if HASHED.search(file) else "public, max-age=0, must-revalidate"
        headers = {"ETag": tag, "Cache-Control": cache, "Accept-Ranges": "bytes"}
        if status == 200 and tag in self.headers.get("If-None-Match", ""):
            return self.answer(304, b"", kind, headers)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")) if status == 200 else None
        if wanted and any(wanted.groups()) and self.headers.get("If-Range", tag) == tag:
            return self.part(content, wanted, kind, headers)
        self.answer(status, content, kind, headers)

    do_HEAD = do_GET

    def part(self, content, wanted, kind, headers):
        first, last = wanted.groups()
        size = len(content)
        begin = int(first) if first else max(0, size - int(last))
        end = min(int(last), size - 1) if first and last else size - 1
        if begin >= size or begin > end:
            return self.answer(416, b"", kind, {"Content-Range": "bytes */%d" % size})
        headers["Content-Range"] = "bytes %d-%d/%d" % (begin, end, size)
        self.answer(206, content[begin:end + 1], kind, headers)

    def answer(self, status, content, kind, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD" and status != 304:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
