"""`memcached://host:port`: a memcached server that returns its version, and has memory for new items.

ready      the server returns its version; with `write`, it stores an item
not ready  the server evicts nothing (`-M`) and refuses new items because its memory is full
failed     any other response; the write does not end in time or is refused for another reason; connection refused or
           closed, host unreachable
unknown    no file descriptors or ports left on this machine; the resolver does not answer

The probe needs no driver: requests and responses are lines.

A server that evicts nothing divides its memory into pages for classes of item sizes. When no page is left, it refuses
items of the classes that are full, and still stores others. So the probe tries to replace an item that does not exist,
of the size of a full class: the server first looks for memory, and then stores nothing.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.core.url import NO_PATH, UrlForm
from svcnode.net.streams import ConnectionStreams
from svcnode.net.trace import step
from svcnode.probes.base import CheckError
from svcnode.probes.options import WriteTarget
from svcnode.probes.session import SessionProbe, driver_error_text

_WRITE_TTL_S = 60
_MAX_KEY_BYTES = 250
_ITEM_OVERHEAD_BYTES = 59  # of an item beside its key and value
_MAX_TRIED_BYTES = 16 * 1024
_OUT_OF_MEMORY = b"SERVER_ERROR out of memory"
_ERRORS = (  # the protocol has no error numbers
    (b"ERROR Too many open connections", ReasonCode.TOO_MANY_CONNECTIONS),
    (b"CLIENT_ERROR unauthenticated", ReasonCode.AUTH_REQUIRED),
    (b"ERROR ", ReasonCode.SERVER_ERROR),
    (b"SERVER_ERROR ", ReasonCode.SERVER_ERROR),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemcachedProbe(SessionProbe[ConnectionStreams]):
    write: WriteTarget = ""  # a key

    default_port: ClassVar = 11211
    url_form: ClassVar = UrlForm(has_credentials=False, path=NO_PATH, query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        self.validate_connection()
        if len(self.write.encode()) > _MAX_KEY_BYTES or any(char <= " " or char == "\x7f" for char in self.write):
            text = f"must be a key of at most {_MAX_KEY_BYTES} bytes, without spaces and control characters"
            raise OptionError("write", text)

    async def open(self) -> ConnectionStreams:
        return await self.open_streams(limit_bytes=1024)

    async def check_connection(self, connection: ConnectionStreams) -> None:
        unread = connection.unread  # sent before this request, so not its response
        line = unread or await _request(connection, b"version\r\n")
        if unread or not line.startswith(b"VERSION "):
            raise _error(line, ReasonCode.PROTOCOL_ERROR)
        await _check_memory(connection)
        if self.write:
            await self._write(connection)

    async def _write(self, connection: ConnectionStreams) -> None:
        with step("write"):
            line = await _request(connection, b"set %b 0 %d 7\r\nsvcnode\r\n" % (self.write.encode(), _WRITE_TTL_S))
        if line != b"STORED\r\n":
            raise _error(line, ReasonCode.WRITE_FAILED)

    def reset_byte_count(self, connection: ConnectionStreams) -> None:
        connection.reset_byte_count()

    def transport(self, connection: ConnectionStreams) -> asyncio.BaseTransport:
        return connection.writer.transport

    def abort(self, connection: ConnectionStreams) -> None:
        connection.abort()


async def _check_memory(connection: ConnectionStreams) -> None:
    """Raise `CheckError` if the server refuses new items. It does so only if it evicts nothing, which is not usual."""
    try:
        settings = await _stats(connection, "settings")
    except (EOFError, ConnectionError):
        return  # a proxy that does not have this command
    if settings.get("evictions") != "off":
        return
    slabs = await _stats(connection, "slabs")
    try:
        size_bytes = _size_of_full_class(slabs, limit_bytes=int(settings["maxbytes"]))
    except (KeyError, ValueError) as exc:
        raise CheckError("the statistics are incomplete", ReasonCode.UNEXPECTED_RESPONSE) from exc
    if size_bytes is None:
        return
    key = f"svcnode_{os.urandom(8).hex()}".encode()
    value = bytes(max(size_bytes - _ITEM_OVERHEAD_BYTES - len(key), 0))
    line = await _request(connection, b"replace %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
    if line != b"NOT_STORED\r\n":
        raise _error(line, ReasonCode.UNEXPECTED_RESPONSE)


def _size_of_full_class(slabs: dict[str, str], *, limit_bytes: int) -> int | None:
    """The size of the items in the fullest class without free memory, if the server has no free page."""
    full = [
        (int(slabs[f"{number}:used_chunks"]), int(slabs[name]), int(slabs[f"{number}:chunks_per_page"]))
        for name in slabs
        for number, _, field_name in [name.partition(":")]
        if field_name == "chunk_size" and slabs[f"{number}:free_chunks"] == "0" and int(slabs[name]) <= _MAX_TRIED_BYTES
    ]
    if not full:
        return None
    _, size_bytes, items_per_page = max(full)
    return size_bytes if int(slabs["total_malloced"]) + size_bytes * items_per_page > limit_bytes else None


def _error(line: bytes, other: ReasonCode) -> CheckError:
    """`other` is the code of a line that is not a known error."""
    text = driver_error_text(line.decode(errors="replace"))
    if line.startswith(_OUT_OF_MEMORY):
        return CheckError(text, ReasonCode.OUT_OF_MEMORY, Outcome.NOT_READY)
    for beginning, code in _ERRORS:
        if line.startswith(beginning):
            return CheckError(text, code)
    return CheckError("the response is not memcached" if other is ReasonCode.PROTOCOL_ERROR else text, other)


async def _stats(connection: ConnectionStreams, group: str) -> dict[str, str]:
    """Empty if the server does not have this command."""
    found: dict[str, str] = {}
    line = await _request(connection, f"stats {group}\r\n".encode())
    while line.startswith(b"STAT "):
        name, _, value = line[len(b"STAT ") : -len(b"\r\n")].decode(errors="replace").partition(" ")
        found[name] = value
        line = await _read_line(connection.reader)
    if line != b"END\r\n" and not line.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
        raise CheckError("the response is not memcached", ReasonCode.PROTOCOL_ERROR)
    return found


async def _request(connection: ConnectionStreams, request: bytes) -> bytes:
    """The first line of the response."""
    connection.writer.write(request)
    return await _read_line(connection.reader)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        return b""  # memcached sends no line that long
