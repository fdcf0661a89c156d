"""Clients of the control socket: `Client` blocks, `AsyncClient` awaits. Both use the standard library only.

A connection is reused. Every request is idempotent, so it is repeated once if the node has closed the connection.

A call takes the connection out of the client and puts it back after the whole response. Whatever ends the call before
that, such as a signal handler that raises, a cancellation or a timeout of gevent, also ends the connection: otherwise
the next call would read the response to this one. A forked child opens its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote

from svcnode.core.errors import ControlError, ControlUnreachableError
from svcnode.core.text import os_error_text, safe_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    _Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PATH_VARIABLE = "SVCNODE_CONTROL"
STATUSES = ("up", "initializing", "down")
DEFAULT_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 64 * 1024**2
_END_OF_HEAD = b"\r\n\r\n"


class _ControlRequest(NamedTuple):
    method: str
    path: str
    value: Mapping[str, Any] | None = None
    revision: int | None = None  # for If-Match

    def encode(self) -> bytes:
        body = b"" if self.value is None else json.dumps(self.value).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        if body:
            lines.append("Content-Type: application/json")
        if self.revision is not None:
            lines.append(f'If-Match: "{self.revision}"')
        return "\r\n".join([*lines, "", ""]).encode() + body


class _Head(NamedTuple):
    status: int
    body_bytes: int
    keep_alive: bool


def _parse_head(head: bytes) -> _Head:
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body_bytes = int(headers.get("content-length", 0))
    if body_bytes > MAX_RESPONSE_BYTES:
        raise ValueError("the response is too large")
    return _Head(int(status_line.partition(" ")[2][:3]), body_bytes, headers.get("connection", "").lower() != "close")


def _result(status: int, body: bytes) -> dict[str, Any]:
    fields = json.loads(body) if body else {}
    if not isinstance(fields, dict):
        raise ValueError("the response is not a JSON object")  # noqa: TRY004  as other invalid responses
    if status < 400:
        return fields
    text, pointer, others = (
        fields.get("message", f"HTTP status {status}"),
        fields.get("pointer"),
        fields.get("others", ()),
    )
    raise ControlError(status, text, pointer=pointer, others=tuple(map(str, others)))


def _service(service_id: str, child: str = "") -> str:
    return f"/v1/services/{quote(service_id, safe='')}{child}"


def _beat(service_id: str, status: str, reason: object, code: str | None) -> _ControlRequest:
    value = {"status": status, "reason": safe_reason(reason), "code": code}
    return _ControlRequest("PUT", _service(service_id, "/status"), {key: text for key, text in value.items() if text})


def _issue(method: str, name: str, reason: object = "") -> _ControlRequest:
    return _ControlRequest(method, f"/v1/issues/{quote(name, safe='')}", _reason(reason))


def _reason(reason: object) -> dict[str, str] | None:
    text = safe_reason(reason)
    return {"reason": text} if text else None


def _maintenance(method: str, service_id: str | None, value: Mapping[str, str] | None = None) -> _ControlRequest:
    path = "/v1/maintenance" if service_id is None else _service(service_id, "/maintenance")
    return _ControlRequest(method, path, None if value is None else {key: text for key, text in value.items() if text})


def _socket_path(path: str | Path | None) -> Path:
    given = str(path or os.environ.get(PATH_VARIABLE, ""))
    if not given:
        raise ControlUnreachableError(f"name the control socket of the node, or set {PATH_VARIABLE}")
    return Path(given.removeprefix("unix:"))


class Client:
    """Thread-safe: calls at the same time use a connection each. Without a path, it uses the one in SVCNODE_CONTROL.

    Raises `ControlError` if the node refuses a request, `ControlUnreachableError` if it is away.
    """

    def __init__(self, path: str | Path | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = _socket_path(path)
        self._timeout_s = timeout_s
        self._idle: list[tuple[int, socket.socket]] = []  # connections that no call uses, and the process of each

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(IndexError):  # another thread may take the last one
            while True:
                self._idle.pop()[1].close()

    def node(self) -> dict[str, Any]:
        """Name, health, issues and number of services of the node."""
        return self._send(_ControlRequest("GET", "/v1"))

    def services(self) -> list[dict[str, Any]]:
        return list(self._send(_ControlRequest("GET", "/v1/services"))["services"])

    def service(self, service_id: str) -> dict[str, Any]:
        return self._send(_ControlRequest("GET", _service(service_id)))

    def register(self, service_id: str, *, revision: int | None = None, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        """Register or replace a service, with a `probe` or a `ttl`. The options are those of a [[services]] table."""
        return self._send(_ControlRequest("PUT", _service(service_id), options, revision))

    def deregister(self, service_id: str, *, revision: int | None = None) -> None:
        self._send(_ControlRequest("DELETE", _service(service_id), revision=revision))

    def beat(self, service_id: str, status: str = "up", reason: object = "", *, code: str | None = None) -> None:
        """Report a status ("up", "initializing" or "down"), which is valid for the `ttl` of the service."""
        self._send(_beat(service_id, status, reason, code))

    def set_issue(self, name: str, reason: object = "") -> None:
        """The health of the node is 503 until the issue is cleared."""
        self._send(_issue("PUT", name, reason))

    def issue(self, name: str) -> dict[str, Any]:
        """`ControlError` with status 404 if there is none."""
        return self._send(_issue("GET", name))

    def clear_issue(self, name: str) -> None:
        self._send(_issue("DELETE", name))

    def drain(self, reason: object = "") -> None:
        """The health of the node is 503 until `undrain`."""
        self._send(_ControlRequest("PUT", "/v1/drain", _reason(reason)))

    def undrain(self) -> None:
        self._send(_ControlRequest("DELETE", "/v1/drain"))

    def maintain(self, service_id: str | None, duration: str, *, by: str = "", reason: str = "") -> dict[str, Any]:
        """From now on, for a duration such as "2h", hold the alerts of a service, or of the node (None)."""
        return self._send(_maintenance("PUT", service_id, {"duration": duration, "by": by, "reason": reason}))

    def maintenance(self, service_id: str | None = None) -> dict[str, Any]:
        """As set by `maintain`, not by a schedule; `ControlError` with status 404 if there is none."""
        return self._send(_maintenance("GET", service_id))

    def end_maintenance(self, service_id: str | None = None) -> None:
        self._send(_maintenance("DELETE", service_id))

    def reload(self) -> str:
        """Read the configuration again; returns what has changed."""
        return str(self._send(_ControlRequest("PUT", "/v1/reload"))["message"])

    def _send(self, request: _ControlRequest) -> dict[str, Any]:
        try:
            return _result(*self._exchange(request.encode()))
        except (OSError, ValueError) as exc:
            self.close()
            raise _unreachable(self.path, exc) from exc

    def _exchange(self, data: bytes) -> tuple[int, bytes]:
        idle = self._take()
        if idle is not None:
            with suppress(ConnectionError):
                return self._exchange_on(idle, data)
            self.close()  # the node was restarted, or its limit for idle connections is over
        return self._exchange_on(socket.socket(socket.AF_UNIX), data, connects=True)

    def _take(self) -> socket.socket | None:
        with suppress(IndexError):
            while True:
                process_id, idle = self._idle.pop()
                if process_id == os.getpid():
                    return idle
                idle.close()  # the descriptor only: the connection is that of the parent process
        return None

    def _exchange_on(self, connection: socket.socket, data: bytes, *, connects: bool = False) -> tuple[int, bytes]:
        is_reusable = False
        try:
            if connects:
                connection.settimeout(self._timeout_s)
                connection.connect(str(self.path))
            connection.sendall(data)
            head, body = _read_response(connection)
            is_reusable = head.keep_alive and len(body) == head.body_bytes
        finally:
            if is_reusable:
                self._idle.append((os.getpid(), connection))
            else:
                connection.close()
        return head.status, body


def _read_response(connection: socket.socket) -> tuple[_Head, bytes]:
    received = b""
    while _END_OF_HEAD not in received:
        if len(received) > MAX_HEAD_BYTES:
            raise ValueError("the head of the response is too large")
        received += _receive(connection)
    raw_head, _, body = received.partition(_END_OF_HEAD)
    head = _parse_head(raw_head)
    while len(body) < head.body_bytes:
        body += _receive(connection)
    return head, body


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(64 * 1024)
    if not data:
        raise ConnectionResetError("the node closed the connection")
    return data


class AsyncClient:
    """As `Client`, for one event loop."""

    def __init__(self, path: str | Path | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = _socket_path(path)
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._streams: _Streams | None = None  # of the connection, while no call uses it
        self._inherited: _Streams | None = None
        self._process_id = os.getpid()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def node(self) -> dict[str, Any]:
        return await self._send(_ControlRequest("GET", "/v1"))

    async def services(self) -> list[dict[str, Any]]:
        return list((await self._send(_ControlRequest("GET", "/v1/services")))["services"])

    async def service(self, service_id: str) -> dict[str, Any]:
        return await self._send(_ControlRequest("GET", _service(service_id)))

    async def register(self, service_id: str, *, revision: int | None = None, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        return await self._send(_ControlRequest("PUT", _service(service_id), options, revision))

    async def deregister(self, service_id: str, *, revision: int | None = None) -> None:
        await self._send(_ControlRequest("DELETE", _service(service_id), revision=revision))

    async def beat(self, service_id: str, status: str = "up", reason: object = "", *, code: str | None = None) -> None:
        await self._send(_beat(service_id, status, reason, code))

    async def set_issue(self, name: str, reason: object = "") -> None:
        await self._send(_issue("PUT", name, reason))

    async def issue(self, name: str) -> dict[str, Any]:
        return await self._send(_issue("GET", name))

    async def clear_issue(self, name: str) -> None:
        await self._send(_issue("DELETE", name))

    async def drain(self, reason: object = "") -> None:
        await self._send(_ControlRequest("PUT", "/v1/drain", _reason(reason)))

    async def undrain(self) -> None:
        await self._send(_ControlRequest("DELETE", "/v1/drain"))

    async def maintain(
        self, service_id: str | None, duration: str, *, by: str = "", reason: str = ""
    ) -> dict[str, Any]:
        return await self._send(_maintenance("PUT", service_id, {"duration": duration, "by": by, "reason": reason}))

    async def maintenance(self, service_id: str | None = None) -> dict[str, Any]:
        return await self._send(_maintenance("GET", service_id))

    async def end_maintenance(self, service_id: str | None = None) -> None:
        await self._send(_maintenance("DELETE", service_id))

    async def reload(self) -> str:
        return str((await self._send(_ControlRequest("PUT", "/v1/reload")))["message"])

    async def _send(self, request: _ControlRequest) -> dict[str, Any]:
        if self._process_id != os.getpid():
            self._after_fork()
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return _result(*await self._exchange(request.encode()))
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as exc:
                self.close()
                raise _unreachable(self.path, exc) from exc

    def _after_fork(self) -> None:
        """The connection is not closed: it belongs to the event loop of the parent process."""
        self._inherited, self._streams = self._streams, None
        self._lock, self._process_id = asyncio.Lock(), os.getpid()

    async def _exchange(self, data: bytes) -> tuple[int, bytes]:
        idle, self._streams = self._streams, None
        if idle is not None:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                return await self._exchange_on(idle, data)
        return await self._exchange_on(await asyncio.open_unix_connection(str(self.path)), data)

    async def _exchange_on(self, streams: _Streams, data: bytes) -> tuple[int, bytes]:
        reader, writer = streams
        is_reusable = False
        try:
            writer.write(data)
            await writer.drain()
            head = _parse_head((await reader.readuntil(_END_OF_HEAD)).removesuffix(_END_OF_HEAD))
            body = await reader.readexactly(head.body_bytes)
            is_reusable = head.keep_alive
        finally:
            if is_reusable:
                self._streams = streams
            else:
                writer.close()
        return head.status, body


def _unreachable(path: Path, exc: Exception) -> ControlUnreachableError:
    match exc:
        case FileNotFoundError() | ConnectionRefusedError():
            cause = "no node listens there; start it, or name its socket"
        case PermissionError():
            cause = "permission denied; run as the user of the node, or as a member of [control] group"
        case TimeoutError():
            cause = "no response in time"
        case OSError():
            cause = os_error_text(exc)
        case _:
            cause = "the response is not one of a node"
    return ControlUnreachableError(f"cannot use the control socket {path}: {cause}")
