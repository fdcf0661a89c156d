"""Checks the bytes that a connection receives, through the trace hook of httpx.

The errors of httpx do not say which bytes arrived, and httpx accepts any number of interim responses (1xx).
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import UnexpectedResponseError
from svcnode.core.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_HEAD_BYTES = 256 * 1024  # with all interim responses, and the beginning of the body
_HTTP_PREFIX = b"HTTP/"
_CONNECT_STARTED_EVENTS = ("connection.connect_tcp.started", "connection.connect_unix_socket.started")
_CONNECTED_EVENTS = (
    "connection.connect_tcp.complete",
    "connection.connect_unix_socket.complete",
    "connection.start_tls.complete",
)
_TLS_ALERT = b"\x15\x03"  # the first bytes from a server that expects TLS


class ResponseGuard:
    """Guards one request. A reused connection is guarded by the request that uses it."""

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
        if self._first_bytes.startswith(_TLS_ALERT):
            raise self._error(
                "expected HTTP, got TLS", ReasonCode.TLS_REQUIRED, hint="if the server uses TLS, use https://"
            )
        if not _HTTP_PREFIX.startswith(self._first_bytes[: len(_HTTP_PREFIX)]):
            raise self._error(f"expected HTTP, got: {excerpt(self._first_bytes)}", ReasonCode.PROTOCOL_ERROR)
        if self._received_bytes > MAX_HEAD_BYTES:
            size = f"{MAX_HEAD_BYTES // 1024} KiB"
            raise self._error(f"received {size} without a final response", ReasonCode.PROTOCOL_ERROR)

    def _error(self, problem: str, code: ReasonCode, hint: str = "") -> UnexpectedResponseError:
        return UnexpectedResponseError(problem, url=self._url, code=code, hint=hint)


_active_guard: ContextVar[ResponseGuard] = ContextVar("_active_guard")


def _wrap_read(stream: Any) -> None:  # noqa: ANN401  its type depends on the network library that httpx uses
    read = stream.read

    async def guarded_read(*arguments: Any, **options: Any) -> bytes:  # noqa: ANN401
        data: bytes = await read(*arguments, **options)
        _active_guard.get().receive(data)
        return data

    stream.read = guarded_read
