"""Serves the files of a static app: ETag, ranges, clean addresses, and index.html for single-page apps.

Sockets and nothing above them: on an emulated machine that was just restored, importing an HTTP library takes longer than
everything else that a deployment of a static app does after its build. Files are sent by the kernel, whatever their size.
"""
import _thread
import os
import socket

ROOT = os.path.realpath(os.environ["STATIC_ROOT"])
SINGLE_PAGE = os.environ.get("STATIC_SINGLE_PAGE") == "1"
#: A connection that says nothing for so many seconds is closed; the edge opens another when it needs one.
IDLE_SECONDS = 75
#: Of an answer nothing may be taken for so long: whoever watches a film may pause it.
PAUSE_SECONDS = 3600
HEAD_BYTES_MAX = 65536
#: A longer one cannot name a file.
PATH_BYTES_MAX = 4096
#: Of names that begin with a dot only this one is for others: the rest, such as .env and .git, came here with the source.
WELL_KNOWN = ".well-known/"
TEXT = "; charset=utf-8"
KINDS = {
    "html": "text/html" + TEXT, "htm": "text/html" + TEXT, "css": "text/css" + TEXT, "js": "text/javascript" + TEXT,
    "mjs": "text/javascript" + TEXT, "txt": "text/plain" + TEXT, "md": "text/markdown" + TEXT, "csv": "text/csv" + TEXT,
    "ics": "text/calendar" + TEXT, "vtt": "text/vtt" + TEXT, "json": "application/json" + TEXT,
    "map": "application/json" + TEXT, "xml": "application/xml" + TEXT, "webmanifest": "application/manifest+json",
    "rss": "application/rss+xml", "atom": "application/atom+xml", "wasm": "application/wasm", "pdf": "application/pdf",
    "zip": "application/zip", "gz": "application/gzip", "svg": "image/svg+xml", "png": "image/png", "jpg": "image/jpeg",
    "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp", "avif": "image/avif", "ico": "image/x-icon",
    "bmp": "image/bmp", "tif": "image/tiff", "tiff": "image/tiff", "heic": "image/heic", "woff": "font/woff", "woff2": "font/woff2", "ttf": "font/ttf", "otf": "font/otf",
    "mp3": "audio/mpeg", "ogg": "audio/ogg", "wav": "audio/wav", "mp4": "video/mp4", "webm": "video/webm",
    "mov": "video/quicktime", "m4v": "video/mp4", "m4a": "audio/mp4", "aac": "audio/aac", "flac": "audio/flac",
    "xhtml": "application/xhtml+xml", "rtf": "application/rtf", "eot": "application/vnd.ms-fontobject",
}
#: What builds put a hash into the name of, so that the name never has another content, and where.
HASHED = {"js", "mjs", "css", "woff", "woff2", "png", "jpg", "jpeg", "svg", "webp", "avif", "gif", "ico", "map"}
HASHED_DIRECTORIES = {"assets", "static", "_next", "_astro", "_app", "build"}
HASH_CHARACTERS_MIN = 8
RANGE_CHARACTERS_MAX = 40
REASONS = {
    200: "OK", 206: "Partial Content", 304: "Not Modified", 400: "Bad Request", 404: "Not Found",
    405: "Method Not Allowed", 416: "Range Not Satisfiable", 431: "Request Header Fields Too Large",
}


class Refused(Exception):
    """A request that is answered with this status; the connection ends with it."""


def unquote(text):
    pieces = text.encode("latin-1").split(b"%")
    plain = bytearray(pieces[0])
    for piece in pieces[1:]:
        try:
            plain += bytes([int(piece[:2], 16)]) + piece[2:] if len(piece) >= 2 else b"%" + piece
        except ValueError:
            plain += b"%" + piece
    return bytes(plain)


def find(target):
    """The file of an address and its status; no file if there is not even a page for unknown ones."""
    path = target.split("?", 1)[0].split("#", 1)[0]
    if not path.startswith("/") and "://" in path:
        path = "/" + path.split("://", 1)[1].partition("/")[2]
    name, is_hidden = unquote(path), False
    if b"\0" not in name and len(name) <= PATH_BYTES_MAX:
        clean = os.path.normpath(b"/" + name).lstrip(b"/").decode("utf-8", "surrogateescape")
        is_hidden = any(part.startswith(".") for part in clean.removeprefix(WELL_KNOWN).split("/"))
        for candidate in () if is_hidden else (clean, clean + ".html", os.path.join(clean, "index.html")):
            file = os.path.realpath(os.path.join(ROOT, candidate))
            if file.startswith(ROOT + os.sep) and os.path.isfile(file):
                return file, 200
    for page, status in (("index.html", 200), ("404.html", 404)):
        file = os.path.join(ROOT, page)
        if (status == 404 or SINGLE_PAGE and not is_hidden) and os.path.isfile(file):
            return file, status
    return None, 404


def is_hashed(file):
    """Whether a build gave it a name of its own for this content: where builds do that, and with what looks like a hash.

    One without a digit could be a word, one without letters a date.
    """
    directory, name = os.path.split(os.path.relpath(file, ROOT))
    stem, _, extension = name.rpartition(".")
    before = max(0, len(stem) - HASH_CHARACTERS_MIN)
    mark = stem[max(stem.rfind("-", 0, before), stem.rfind(".", 0, before)) + 1:]
    plain = mark.replace("-", "").replace("_", "")
    digits = sum(character.isdecimal() for character in plain)
    looks_so = mark != stem and 0 < digits < len(plain) and plain.isascii() and plain.isalnum()
    return looks_so and extension in HASHED and not HASHED_DIRECTORIES.isdisjoint(directory.split(os.sep))


def wanted_part(value, size):
    """First and last byte of a range, the last before the first if there is no such part; `None` to send everything."""
    unit, _, span = value.partition("=")
    first, dash, last = span.strip().partition("-")
    if unit != "bytes" or not dash or not (first + last).isdecimal() or len(span) > RANGE_CHARACTERS_MAX:
        return None
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


def answer(connection, status, headers, is_last):
    lines = ["HTTP/1.1 %d %s" % (status, REASONS[status])] + ["%s: %s" % header for header in headers]
    if is_last:
        lines.append("Connection: close")
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def say(connection, status, is_last, is_head=False):
    text = (REASONS[status] + "\n").encode()
    headers = [("Content-Type", "text/plain" + TEXT), ("Content-Length", len(text))]
    answer(connection, status, headers + ([("Allow", "GET, HEAD")] if status == 405 else []), is_last)
    if not is_head:
        connection.sendall(text)


def serve(connection, method, target, headers, is_last):
    file, status = find(target)
    is_head = method == "HEAD"
    if file is None:
        return say(connection, 404, is_last, is_head)
    with open(file, "rb") as opened:
        about = os.fstat(opened.fileno())
        # By when it was put here, not by the time that its archive names: that may be the same for every version.
        size, tag = about.st_size, '"%x-%x"' % (about.st_ctime_ns, about.st_size)
        name = os.path.basename(file)
        cache = "public, max-age=31536000, immutable" if is_hashed(file) else "public, max-age=0, must-revalidate"
        head = [("ETag", tag), ("Cache-Control", cache), ("Accept-Ranges", "bytes")]
        if status == 200 and tag in headers.get("if-none-match", ""):
            return answer(connection, 304, head, is_last)
        part = None
        if status == 200 and "range" in headers and headers.get("if-range", tag) == tag:
            part = wanted_part(headers["range"], size)
        first, last = part or (0, size - 1)
        if part and first > last:
            head = [("Content-Range", "bytes */%d" % size), ("Content-Length", 0)]
            return answer(connection, 416, head, is_last)
        if part:
            status = 206
            head.append(("Content-Range", "bytes %d-%d/%d" % (first, last, size)))
        kind = KINDS.get(name.rpartition(".")[2].lower(), "application/octet-stream")
        length = last - first + 1
        answer(connection, status, head + [("Content-Type", kind), ("Content-Length", length)], is_last)
        if length > 0 and not is_head and connection.sendfile(opened, first, length) < length:
            raise OSError("the file became shorter")


def parse(head):
    """Method, address and headers; whether the connection ends with the answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(400)
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400)
        headers[name.lower()] = value.strip()
    if words[0] not in ("GET", "HEAD"):
        raise Refused(405)
    # A body is not read: what follows it could be taken for a request.
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    is_kept = words[2] == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return words[0], words[1], headers, has_body or not is_kept


def converse(connection):
    received, is_last = b"", False
    while not is_last:
        while b"\r\n\r\n" not in received:
            if len(received) > HEAD_BYTES_MAX:
                raise Refused(431)
            connection.settimeout(IDLE_SECONDS)
            more = connection.recv(65536)
            if not more:
                return
            received += more
        head, _, received = received.partition(b"\r\n\r\n")
        method, target, headers, is_last = parse(head)
        connection.settimeout(PAUSE_SECONDS)
        serve(connection, method, target, headers, is_last)


def attend(connection):
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        converse(connection)
    except Refused as refused:
        try:
            say(connection, refused.args[0], True)
        except OSError:
            pass
    except OSError:
        pass  # The client is gone or slow, and cannot be told.
    finally:
        connection.close()


def main():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", int(os.environ["PORT"])))
    listener.listen(1024)
    while True:
        try:
            connection = listener.accept()[0]
        except OSError:
            continue  # The connection closed before it was accepted.
        try:
            _thread.start_new_thread(attend, (connection,))
        except RuntimeError:
            connection.close()  # No room for another thread; those that are under way go on.


main()
