"""What comes on the connection that a request takes, heard by way of the hook that httpx has for watching.

The errors of httpx say what did not come, not what came instead; and of interim answers (1xx), which may come before
the one that counts, it takes any number.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import NotThisInterfaceError
from svcnode.core.wording import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_HEAD_BYTES = 256 * 1024  # with all that may come before it, and the beginning of the body
_HTTP = b"HTTP/"
_BEGINS = ("connection.connect_tcp.started", "connection.connect_unix_socket.started")
_IS_MADE = (
    "connection.connect_tcp.complete",
    "connection.connect_unix_socket.complete",
    "connection.start_tls.complete",
)
_TLS = b"\x15\x03"  # so begins the complaint of a server that expects TLS


class Connection:
    """The one that a request takes; a kept one is heard by whoever takes it next."""

    def __init__(self, url: str) -> None:
        self.is_new = self.has_answered = False
        self._url = url
        self._beginning = b""
        self._heard_bytes = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        token = _taken.set(self)
        try:
            yield
        finally:
            _taken.reset(token)

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        self.is_new |= event in _BEGINS
        if event in _IS_MADE:
            _listen_to(info["return_value"])

    def hear(self, data: bytes) -> None:
        if self.has_answered:
            return
        self._heard_bytes += len(data)
        self._beginning = self._beginning or data
        if not _HTTP.startswith(self._beginning[: len(_HTTP)]):
            raise NotThisInterfaceError(f"expected HTTP, got {_described(self._beginning)} at {self._url}")
        if self._heard_bytes > MAX_HEAD_BYTES:
            size = f"{MAX_HEAD_BYTES // 1024} KiB"
            raise NotThisInterfaceError(f"expected HTTP, got {size} without an answer at {self._url}")


_taken: ContextVar[Connection] = ContextVar("_taken")


def _listen_to(stream: Any) -> None:  # noqa: ANN401  it is of the network library that httpx has found
    read = stream.read

    async def heard(*arguments: Any, **options: Any) -> bytes:  # noqa: ANN401  those of the library
        data: bytes = await read(*arguments, **options)
        _taken.get().hear(data)
        return data

    stream.read = heard


def _described(beginning: bytes) -> str:
    return "TLS (is it https://?)" if beginning.startswith(_TLS) else f"something else: {excerpt(beginning)}"
