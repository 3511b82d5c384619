"""A WebSocket client of a few lines: what a test needs, and no package that it would have to trust."""

from __future__ import annotations

import base64
import os
import socket
import struct
from typing import Iterator, Optional, Union
from urllib.parse import urlsplit

Message = Union[str, bytes]
SECONDS_MAX = 60.0


class WebSocket:
    def __init__(self, connection: socket.socket, rest: bytes) -> None:
        self._connection = connection
        self._rest = rest
        self.close_code: Optional[int] = None

    def send(self, message: Message) -> None:
        text = isinstance(message, str)
        self._send_frame(1 if text else 2, message.encode() if isinstance(message, str) else message)

    def receive(self) -> Message:
        for message in self:
            return message
        raise AssertionError(f"the socket was closed with {self.close_code}")

    def __iter__(self) -> Iterator[Message]:
        while self.close_code is None:
            kind, payload = self._receive_frame()
            if kind == 1:
                yield payload.decode()
            elif kind == 2:
                yield payload
            elif kind == 8:
                self.close_code = struct.unpack(">H", payload[:2])[0] if payload else 1005
            elif kind == 9:
                self._send_frame(10, payload)

    def close(self) -> None:
        self._connection.close()

    def _send_frame(self, kind: int, payload: bytes) -> None:
        mask = os.urandom(4)
        length = len(payload)
        if length < 126:
            head = struct.pack(">BB", 0x80 | kind, 0x80 | length)
        elif length < 1 << 16:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, length)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, length)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        self._connection.sendall(head + mask + masked)

    def _receive_frame(self) -> "tuple[int, bytes]":
        first, length = self._read(2)
        assert first & 0x80 and not length & 0x80, "whole, unmasked frames are all a server sends here"
        if length == 126:
            (length,) = struct.unpack(">H", self._read(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self._read(8))
        return first & 0x0F, self._read(length)

    def _read(self, count: int) -> bytes:
        while len(self._rest) < count:
            piece = self._connection.recv(65536)
            if not piece:
                raise ConnectionError("the server ended the connection")
            self._rest += piece
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


def connect(base_url: str, path: str, key: str) -> WebSocket:
    """Open a socket; a refusal is raised with the server's answer."""
    parts = urlsplit(base_url)
    connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=SECONDS_MAX)
    nonce = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {nonce}",
        f"Authorization: Bearer {key}",
    ]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = connection.recv(4096)
        if not piece:
            break
        answer += piece
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b" 101 " not in head.split(b"\r\n")[0]:
        connection.close()
        raise ConnectionError(answer.decode(errors="replace"))
    return WebSocket(connection, rest)
