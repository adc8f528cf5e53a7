"""A proxy such as hospitals have, through which their machines reach the world."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from typing import Self


class Proxy(socketserver.ThreadingTCPServer):
    """A hospital's proxy: connects to where a client asks it to, and passes bytes on that it cannot read."""

    daemon_threads, block_on_close = True, False

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), Tunnel)
        self.requested: list[str] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Tunnel(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        method, where, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        self.server.requested.append(where if method == "CONNECT" else f"{method} {where}")
        host, _, port = where.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            ends = [self.connection, there]
            while True:
                for end in select.select(ends, [], [], 60)[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    ends[end is self.connection].sendall(data)
