"""An HTTP server of this process that answers what a test scripted and keeps what it was sent."""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: Dict[str, str]
    headers: Dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    status: int = 200
    body: Any = None
    headers: Dict[str, str] = field(default_factory=dict)
    #: Sent chunk by chunk instead of ``body``; a callable is called (to wait, say) between chunks.
    chunks: Optional[List[Union[bytes, Callable[[], Any]]]] = None
    #: Break the connection instead of finishing the answer.
    drop: bool = False
    #: Called before anything is sent.
    before: Optional[Callable[[], Any]] = None


class WireServer:
    def __init__(self) -> None:
        self.requests: List[Request] = []
        self._replies: Dict[Tuple[str, str], Deque[Reply]] = defaultdict(deque)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                server._handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # dropped connections are on purpose here
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)

    def on(self, method: str, path: str, status: int = 200, body: Any = None, **more: Any) -> None:
        """Script one answer; several for one route are given in order, the last one again and again."""
        self._replies[method, path].append(Reply(status, body, **more))

    def sent(self, method: str, path: str) -> List[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        body = self._read_body(handler)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.command, parts.path, dict(parse_qsl(parts.query)), headers, body))
        replies = self._replies.get((handler.command, parts.path))
        if not replies:
            reply = Reply(404, {"error": f"nothing scripted at {handler.command} {parts.path}", "code": "not_scripted"})
        else:
            reply = replies.popleft() if len(replies) > 1 else replies[0]
        try:
            self._send(handler, reply)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    @staticmethod
    def _read_body(handler: BaseHTTPRequestHandler) -> bytes:
        return handler.rfile.read(int(handler.headers.get("content-length") or 0))

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        if reply.before is not None:
            reply.before()
        if reply.drop and reply.chunks is None:
            WireServer._drop(handler)
            return
        body = reply.body
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        if not isinstance(body, bytes):
            body = b"" if body is None else json.dumps(body).encode()
        handler.send_response(reply.status)
        for name, value in {"Content-Type": kind, **reply.headers}.items():
            handler.send_header(name, value)
        if reply.chunks is None:
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for chunk in reply.chunks:
            if callable(chunk):
                chunk()
            else:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                handler.wfile.flush()
        if reply.drop:
            WireServer._drop(handler)
        else:
            handler.wfile.write(b"0\r\n\r\n")

    @staticmethod
    def _drop(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
