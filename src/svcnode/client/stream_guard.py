"""What comes on the connection that a request takes, heard by way of the hook that httpx has for watching.

The errors of httpx say what did not come, not what came instead; and of interim answers (1xx), which may come before
the one that counts, it takes any number.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import UnexpectedResponseError
from svcnode.core.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_HEAD_BYTES = 256 * 1024  # with all that may come before it, and the beginning of the body
_HTTP_PREFIX = b"HTTP/"
_CONNECT_STARTED_EVENTS = ("connection.connect_tcp.started", "connection.connect_unix_socket.started")
_CONNECTED_EVENTS = (
    "connection.connect_tcp.complete",
    "connection.connect_unix_socket.complete",
    "connection.start_tls.complete",
)
_TLS_ALERT = b"\x15\x03"  # so begins the complaint of a server that expects TLS


class StreamGuard:
    """The one that a request takes; a kept one is heard by whoever takes it next."""

    def __init__(self, url: str) -> None:
        self.is_new_connection = self.has_response = False
        self._url = url
        self._first_bytes = b""
        self._received_bytes = 0

    @contextmanager
    def activate(self) -> Iterator[None]:
        token = _active_guard.set(self)
        try:
            yield
        finally:
            _active_guard.reset(token)

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        self.is_new_connection |= event in _CONNECT_STARTED_EVENTS
        if event in _CONNECTED_EVENTS:
            _wrap_read(info["return_value"])

    def receive(self, data: bytes) -> None:
        if self.has_response:
            return
        self._received_bytes += len(data)
        self._first_bytes = self._first_bytes or data
        if not _HTTP_PREFIX.startswith(self._first_bytes[: len(_HTTP_PREFIX)]):
            raise UnexpectedResponseError(f"expected HTTP, got {_describe_bytes(self._first_bytes)} at {self._url}")
        if self._received_bytes > MAX_HEAD_BYTES:
            size = f"{MAX_HEAD_BYTES // 1024} KiB"
            raise UnexpectedResponseError(f"expected HTTP, got {size} without an answer at {self._url}")


_active_guard: ContextVar[StreamGuard] = ContextVar("_taken")


def _wrap_read(stream: Any) -> None:  # noqa: ANN401  it is of the network library that httpx has found
    read = stream.read

    async def heard(*arguments: Any, **options: Any) -> bytes:  # noqa: ANN401  those of the library
        data: bytes = await read(*arguments, **options)
        _active_guard.get().receive(data)
        return data

    stream.read = heard


def _describe_bytes(beginning: bytes) -> str:
    return "TLS (is it https://?)" if beginning.startswith(_TLS_ALERT) else f"something else: {excerpt(beginning)}"
