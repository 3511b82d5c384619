"""A TCP relay: one more address for a server."""

from __future__ import annotations

import socket
import threading
from typing import Tuple

Address = Tuple[str, int]


class Relay:
    """`with Relay(listen, to):` connections to one address reach the other."""

    def __init__(self, listen: Address, to: Address) -> None:
        self.listener = socket.create_server(listen)
        self.to = to
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.to)
            except OSError:
                client.close()
                continue
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=pour, args=(source, target), daemon=True).start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()


def pour(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            try:
                end.shutdown(how)
            except OSError:
                pass
