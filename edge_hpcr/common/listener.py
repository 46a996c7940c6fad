"""A listening socket that idle connections cannot exhaust."""

from __future__ import annotations

import resource
import selectors
import socket
from collections import deque
from contextlib import suppress
from typing import Any

MOST_OPEN, MOST_SILENT = 400, 64  # connections; and of those that have said nothing


class Listener(socket.socket):
    """Gives the server only connections on which something was said, and not too many of them.

    Each connection costs a file handle; a process has few, and the journal needs some. Connections that say nothing wait
    here, before anything is encrypted, and the oldest of them makes room for the newest: whoever speaks is let in at once.
    """

    def __init__(self, host: str, port: int, most_open: int = MOST_OPEN) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(family, kind, protocol)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Of every connection: that of a client which lost its power ends some time.
        self.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if family == socket.AF_INET6:
            self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.bind(address)
        self.setblocking(False)
        self._watched = selectors.DefaultSelector()
        self._watched.register(super().fileno(), selectors.EVENT_READ)
        self._silent: deque[socket.socket] = deque()
        self._open: list[socket.socket] = []
        self._most_open = most_open

    def fileno(self) -> int:
        """What the server's event loop waits for: somebody connects, or speaks."""
        return self._watched.fileno()

    @property
    def open(self) -> list[socket.socket]:
        """The connections that the server has been given and has not closed yet."""
        self._open = [each for each in self._open if each.fileno() >= 0]
        return self._open

    def accept(self) -> tuple[socket.socket, Any]:
        for key, _ in self._watched.select(0):
            if not isinstance(key.fileobj, socket.socket):
                self._take_in()
                continue
            self._watched.unregister(key.fileobj)
            self._silent.remove(key.fileobj)
            most = min(self._most_open, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3)
            if len(self.open) < most:
                self._open.append(key.fileobj)
                return key.fileobj, key.data
            key.fileobj.close()
        raise BlockingIOError  # nobody has said anything

    def _take_in(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            connection, address = super().accept()
            self._watched.register(connection, selectors.EVENT_READ, address)
            self._silent.append(connection)
        if len(self._silent) > MOST_SILENT:
            oldest = self._silent.popleft()
            self._watched.unregister(oldest)
            oldest.close()

    def close(self) -> None:
        for connection in self._silent:
            connection.close()
        self._watched.close()
        super().close()
