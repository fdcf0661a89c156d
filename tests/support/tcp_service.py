"""A service that can be stopped and started again."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.support.ports import free_port

if TYPE_CHECKING:
    from typing import Self


class TcpService:
    """A listening socket. Nothing accepts its connections, which is enough for a tcp: probe."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.port = free_port()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._socket is not None

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def start(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=4096)
