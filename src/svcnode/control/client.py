"""Clients of the control socket: `ControlClient` blocks, `AsyncControlClient` awaits. They need no other package.

A connection is reused. Every request is idempotent, so it is repeated once if the node has closed the connection.

A call takes the connection out of the client, and puts it back when it has read the whole response. If something ends
the call earlier, such as a signal handler that raises, a cancellation or a timeout of gevent, the connection is closed
too: otherwise the next call would read the response to this one. A forked child opens its own connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, Unpack, cast, get_args
from urllib.parse import quote, urlencode

from svcnode.control.types import ReportedStatus
from svcnode.core.errors import ControlError, ControlUnreachableError, InvalidValueError
from svcnode.core.text import os_error_text, safe_reason
from svcnode.core.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from svcnode.control.types import (
        AckDocument,
        DrainDocument,
        IssueDocument,
        MaintenanceDocument,
        NodeDocument,
        NoteDocument,
        PlannedMaintenanceDocument,
        RegisteredOptions,
        ServiceDocument,
    )
    from svcnode.core.units import Duration

    _Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

D = TypeVar("D")

PATH_VARIABLE = "SVCNODE_CONTROL"
STATUSES = get_args(ReportedStatus)
DEFAULT_TIMEOUT = "10s"
MAX_HEAD_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 64 * 1024**2
_COUNTS = frozenset({"rise", "fall", "observers"})  # the options whose numbers are not seconds
_END_OF_HEAD = b"\r\n\r\n"


class ControlRequest(NamedTuple, Generic[D]):
    """A request whose response is a document of the type D."""

    method: str
    path: str
    value: Mapping[str, Any] | None = None
    revision: int | None = None  # for If-Match
    reason: str = ""  # why a document is deleted
    all_replicas: bool = False  # it is about a document of all replicas

    def encode(self, by: str) -> bytes:
        body = b"" if self.value is None else json.dumps(self.value).encode()
        texts = {"by": by if self.method != "GET" else "", "reason": self.reason}
        texts["all_replicas"] = "true" if self.all_replicas else ""
        query = urlencode({name: text for name, text in texts.items() if text}, quote_via=quote)
        target = f"{self.path}?{query}" if query else self.path
        lines = [f"{self.method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        if body:
            lines.append("Content-Type: application/json")
        if self.revision is not None:
            lines.append(f'If-Match: "{self.revision}"')
        return "\r\n".join([*lines, "", ""]).encode() + body


NODE: ControlRequest[NodeDocument] = ControlRequest("GET", "/v1")
_SERVICES: ControlRequest[dict[str, list[ServiceDocument]]] = ControlRequest("GET", "/v1/services")
_RELOAD: ControlRequest[dict[str, str]] = ControlRequest("PUT", "/v1/reload")


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
    if not isinstance(service_id, str):
        raise InvalidValueError(f"the id of a service must be a string, not {type(service_id).__name__}")
    return f"/v1/services/{quote(service_id, safe='', errors='surrogatepass')}{child}"


def _get_service(service_id: str) -> ControlRequest[ServiceDocument]:
    return ControlRequest("GET", _service(service_id))


def _deregister(service_id: str, revision: int | None, reason: object) -> ControlRequest[object]:
    return ControlRequest("DELETE", _service(service_id), revision=revision, reason=safe_reason(reason))


_DRAINED: ControlRequest[DrainDocument] = ControlRequest("GET", "/v1/drain")


def _drain(reason: object) -> ControlRequest[object]:
    return ControlRequest("PUT", "/v1/drain", _reason(reason))


def _undrain(reason: object) -> ControlRequest[object]:
    return ControlRequest("DELETE", "/v1/drain", reason=safe_reason(reason))


def _beat(service_id: str, status: str, reason: object, code: str | None) -> ControlRequest[object]:
    value = {
        "status": _plain(status).lower(),
        "reason": safe_reason(reason),
        "code": None if code is None else _plain(code),
    }
    return ControlRequest("PUT", _service(service_id, "/status"), {key: text for key, text in value.items() if text})


def _plain(text: object) -> str:
    """Whatever a program gives as a status or a code: a text, bytes, or a member of an enumeration."""
    return safe_reason(text.value if isinstance(text, Enum) else text)


def _issue(method: str, name: str, reason: object = "") -> ControlRequest[IssueDocument]:
    path = f"/v1/issues/{quote(name, safe='')}"
    if method == "DELETE":
        return ControlRequest(method, path, reason=safe_reason(reason))
    return ControlRequest(method, path, _reason(reason))


def _reason(reason: object) -> dict[str, str] | None:
    text = safe_reason(reason)
    return {"reason": text} if text else None


def _maintenance(
    method: str, service_id: str | None, value: Mapping[str, str] | None = None
) -> ControlRequest[MaintenanceDocument]:
    path = "/v1/maintenance" if service_id is None else _service(service_id, "/maintenance")
    return ControlRequest(method, path, None if value is None else {key: text for key, text in value.items() if text})


def _end_maintenance(service_id: str | None, reason: object) -> ControlRequest[MaintenanceDocument]:
    return _maintenance("DELETE", service_id)._replace(reason=safe_reason(reason))


def _maintain(
    service_id: str | None, duration: Duration, by: str, reason: object
) -> ControlRequest[MaintenanceDocument]:
    return _maintenance("PUT", service_id, {"duration": _text(duration), "by": by, "reason": safe_reason(reason)})


def _planned_maintenance(
    method: str, service_id: str | None, value: Mapping[str, str] | None = None
) -> ControlRequest[PlannedMaintenanceDocument]:
    path = "/v1/planned_maintenance" if service_id is None else _service(service_id, "/planned_maintenance")
    return ControlRequest(method, path, value)


def _cancel_maintenance(service_id: str | None, reason: object) -> ControlRequest[PlannedMaintenanceDocument]:
    return _planned_maintenance("DELETE", service_id)._replace(reason=safe_reason(reason))


def _plan_maintenance(
    service_id: str | None, begin: datetime | str, end: datetime | str, by: str, reason: object
) -> ControlRequest[PlannedMaintenanceDocument]:
    times = {"from": _time_text(begin), "until": _time_text(end)}
    texts = {"by": by, "reason": safe_reason(reason)}
    return _planned_maintenance("PUT", service_id, times | {key: text for key, text in texts.items() if text})


def _time_text(time: datetime | str) -> str:
    return time if isinstance(time, str) else time.isoformat()


def _ack(
    method: str, service_id: str | None, value: Mapping[str, str] | None = None, reason: object = ""
) -> ControlRequest[AckDocument]:
    path = "/v1/ack" if service_id is None else _service(service_id, "/ack")
    return ControlRequest(method, path, value, reason=safe_reason(reason))


def _make_ack(
    service_id: str | None, until: datetime | str | None, by: str, reason: object
) -> ControlRequest[AckDocument]:
    texts = {"until": "" if until is None else _time_text(until), "by": by, "reason": safe_reason(reason)}
    return _ack("PUT", service_id, {key: text for key, text in texts.items() if text})


def _note(text: object, service_id: str | None, by: str, name: str) -> ControlRequest[NoteDocument]:
    """The name is new, so that a request that is sent again is the same note."""
    value = {"text": safe_reason(text), "service": service_id, "by": by}
    path = f"/v1/notes/{quote(name or os.urandom(8).hex(), safe='')}"
    return ControlRequest("PUT", path, {key: part for key, part in value.items() if part})


def _register(service_id: str, options: RegisteredOptions, revision: int | None) -> ControlRequest[ServiceDocument]:
    value = {key: option if key in _COUNTS else _text(option) for key, option in options.items()}
    for key, option in value.items():
        try:
            json.dumps(option)
        except (TypeError, ValueError) as exc:
            raise InvalidValueError(f"{key} cannot be sent, because it is a {type(option).__name__}: {exc}") from exc
    return ControlRequest("PUT", _service(service_id), value, revision)


def _text(duration: object) -> Any:  # noqa: ANN401  what is not a number is as the program gave it
    """A number of seconds as the texts that documents have."""
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        return duration
    return f"{duration:.6f}".rstrip("0").rstrip(".") + "s"


def _socket_path(path: str | Path | None) -> Path:
    given = str(path or os.environ.get(PATH_VARIABLE, ""))
    if not given:
        raise ControlUnreachableError(f"name the control socket of the node, or set {PATH_VARIABLE}")
    return Path(given.removeprefix("unix:"))


class ControlClient:
    """Any number of threads can use one client: each call that runs at the same time has its own connection.

    Without a path, it uses the one in SVCNODE_CONTROL. It raises `ControlError` if the node refuses a request, and
    `ControlUnreachableError` if the node is unreachable.
    """

    def __init__(self, path: str | Path | None = None, *, timeout: Duration = DEFAULT_TIMEOUT, by: str = "") -> None:
        """`timeout` is for a whole call. `by` is who makes the changes, beside the user of this process."""
        self.path = _socket_path(path)
        self._by = by
        self._timeout_s = parse_duration_s(timeout)
        self._idle: list[tuple[int, socket.socket]] = []  # connections that no call uses, and the process of each

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(IndexError):  # another thread may take the last one
            while True:
                self._idle.pop()[1].close()

    def node(self) -> NodeDocument:
        """Name, health, issues and number of services of the node."""
        return self._send(NODE)

    def services(self) -> list[ServiceDocument]:
        return self._send(_SERVICES)["services"]

    def service(self, service_id: str) -> ServiceDocument:
        return self._send(_get_service(service_id))

    def register(
        self, service_id: str, *, revision: int | None = None, **options: Unpack[RegisteredOptions]
    ) -> ServiceDocument:
        """Register or replace a service, with a `probe` or a `ttl`. The options are those of a [[services]] table."""
        return self._send(_register(service_id, options, revision))

    def deregister(self, service_id: str, *, revision: int | None = None, reason: object = "") -> None:
        self._send(_deregister(service_id, revision, reason))

    def beat(
        self, service_id: str, status: ReportedStatus = "up", reason: object = "", *, code: str | None = None
    ) -> None:
        """Report a status ("up", "initializing" or "down"), which is valid for the `ttl` of the service."""
        self._send(_beat(service_id, status, reason, code))

    def set_issue(self, name: str, reason: object = "") -> None:
        """The health of the node is 503 until the issue is cleared."""
        self._send(_issue("PUT", name, reason))

    def issue(self, name: str) -> IssueDocument:
        """`ControlError` with status 404 if there is none."""
        return self._send(_issue("GET", name))

    def clear_issue(self, name: str, reason: object = "") -> None:
        self._send(_issue("DELETE", name, reason))

    def drain(self, reason: object = "", *, all_replicas: bool = False) -> None:
        """The health of the node is 503 until `undrain`; with `all_replicas`, on all replicas of the node."""
        self._send(_drain(reason)._replace(all_replicas=all_replicas))

    def undrain(self, reason: object = "", *, all_replicas: bool = False) -> None:
        self._send(_undrain(reason)._replace(all_replicas=all_replicas))

    def drained(self, *, all_replicas: bool = False) -> DrainDocument:
        """As set by `drain`; `ControlError` with status 404 if it is not."""
        return self._send(_DRAINED._replace(all_replicas=all_replicas))

    def maintain(
        self,
        service_id: str | None,
        duration: Duration,
        *,
        by: str = "",
        reason: object = "",
        all_replicas: bool = False,
    ) -> MaintenanceDocument:
        """From now on, for a duration such as "2h", hold the alerts of a service, or of the node (None).

        With `all_replicas`, all replicas of the node do, by their wall clocks.
        """
        request = _maintain(service_id, duration, by, reason)
        return self._send(request._replace(all_replicas=all_replicas))

    def maintenance(self, service_id: str | None = None, *, all_replicas: bool = False) -> MaintenanceDocument:
        """As set by `maintain`, not by a schedule; `ControlError` with status 404 if there is none."""
        return self._send(_maintenance("GET", service_id)._replace(all_replicas=all_replicas))

    def end_maintenance(
        self, service_id: str | None = None, *, reason: object = "", all_replicas: bool = False
    ) -> None:
        self._send(_end_maintenance(service_id, reason)._replace(all_replicas=all_replicas))

    def plan_maintenance(  # noqa: PLR0913  most have names and defaults
        self,
        service_id: str | None,
        begin: datetime | str,
        end: datetime | str,
        *,
        by: str = "",
        reason: object = "",
        all_replicas: bool = False,
    ) -> PlannedMaintenanceDocument:
        """As `maintain`, from one time to another, with their time zone; texts are such as "2026-12-01T22:00:00Z".

        It replaces the one that was planned before, also if that has begun.
        """
        request = _plan_maintenance(service_id, begin, end, by, reason)
        return self._send(request._replace(all_replicas=all_replicas))

    def planned_maintenance(
        self, service_id: str | None = None, *, all_replicas: bool = False
    ) -> PlannedMaintenanceDocument:
        """Until its end; `ControlError` with status 404 if there is none."""
        return self._send(_planned_maintenance("GET", service_id)._replace(all_replicas=all_replicas))

    def cancel_maintenance(
        self, service_id: str | None = None, *, reason: object = "", all_replicas: bool = False
    ) -> None:
        """What `plan_maintenance` has planned; if it has begun, it ends."""
        self._send(_cancel_maintenance(service_id, reason)._replace(all_replicas=all_replicas))

    def ack(
        self,
        service_id: str | None = None,
        *,
        until: datetime | str | None = None,
        by: str = "",
        reason: object = "",
    ) -> AckDocument:
        """Say that somebody takes care of a problem of a service, or of the node (None).

        There are no reminders and no escalation until the problem has cleared or got worse, or until this time, with
        its time zone. `ControlError` with status 409 if there is no problem.
        """
        return self._send(_make_ack(service_id, until, by, reason))

    def acknowledgement(self, service_id: str | None = None) -> AckDocument:
        """`ControlError` with status 404 if there is none."""
        return self._send(_ack("GET", service_id))

    def clear_ack(self, service_id: str | None = None, *, reason: object = "") -> None:
        """From now on, there are reminders again, and escalation."""
        self._send(_ack("DELETE", service_id, reason=reason))

    def note(self, text: object, *, service_id: str | None = None, by: str = "", name: str = "") -> NoteDocument:
        """Write down what has happened, such as a deployment: it is in the timeline of the node, or of a service.

        A note with the name of one that was written lately is not written again.
        """
        return self._send(_note(text, service_id, by, name))

    def reload(self) -> str:
        """Read the configuration again; returns what has changed."""
        return self._send(_RELOAD)["message"]

    def _send(self, request: ControlRequest[D]) -> D:
        deadline_s = time.monotonic() + self._timeout_s
        try:
            return cast("D", _result(*self._exchange(request.encode(self._by), deadline_s)))
        except (OSError, ValueError) as exc:
            self.close()
            raise _unreachable(self.path, exc) from exc

    def _exchange(self, data: bytes, deadline_s: float) -> tuple[int, bytes]:
        idle = self._take()
        if idle is not None:
            with suppress(ConnectionError):
                return self._exchange_on(idle, data, deadline_s)
            self.close()  # the node was restarted, or its limit for idle connections is over
        return self._exchange_on(socket.socket(socket.AF_UNIX), data, deadline_s, connects=True)

    def _take(self) -> socket.socket | None:
        with suppress(IndexError):
            while True:
                process_id, idle = self._idle.pop()
                if process_id == os.getpid():
                    return idle
                idle.close()  # the descriptor only: the connection is that of the parent process
        return None

    def _exchange_on(
        self, connection: socket.socket, data: bytes, deadline_s: float, *, connects: bool = False
    ) -> tuple[int, bytes]:
        is_reusable = False
        try:
            if connects:
                _wait_until(connection, deadline_s)
                connection.connect(str(self.path))
            _wait_until(connection, deadline_s)
            connection.sendall(data)  # its time limit is for all of the data
            head, body = _read_response(connection, deadline_s)
            is_reusable = head.keep_alive and len(body) == head.body_bytes
        finally:
            if is_reusable:
                self._idle.append((os.getpid(), connection))
            else:
                connection.close()
        return head.status, body


def _wait_until(connection: socket.socket, deadline_s: float) -> None:
    """For the next operation on the connection."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _read_response(connection: socket.socket, deadline_s: float) -> tuple[_Head, bytes]:
    received = bytearray()
    while (end := received.find(_END_OF_HEAD)) < 0:
        if len(received) > MAX_HEAD_BYTES:
            raise ValueError("the head of the response is too large")
        received += _receive(connection, deadline_s)
    head, body = _parse_head(bytes(received[:end])), received[end + len(_END_OF_HEAD) :]
    while len(body) < head.body_bytes:
        body += _receive(connection, deadline_s)
    return head, bytes(body)


def _receive(connection: socket.socket, deadline_s: float) -> bytes:
    _wait_until(connection, deadline_s)
    data = connection.recv(64 * 1024)
    if not data:
        raise ConnectionResetError("the node closed the connection")
    return data


class AsyncControlClient:
    """Like `ControlClient`, but awaits. A client works on one event loop at a time."""

    def __init__(self, path: str | Path | None = None, *, timeout: Duration = DEFAULT_TIMEOUT, by: str = "") -> None:
        self.path = _socket_path(path)
        self._by = by
        self._timeout_s = parse_duration_s(timeout)
        self._lock = asyncio.Lock()
        self._streams: _Streams | None = None  # of the connection, while no call uses it
        self._inherited: _Streams | None = None
        self._process_id = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the last call

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def node(self) -> NodeDocument:
        return await self._send(NODE)

    async def services(self) -> list[ServiceDocument]:
        return (await self._send(_SERVICES))["services"]

    async def service(self, service_id: str) -> ServiceDocument:
        return await self._send(_get_service(service_id))

    async def register(
        self, service_id: str, *, revision: int | None = None, **options: Unpack[RegisteredOptions]
    ) -> ServiceDocument:
        return await self._send(_register(service_id, options, revision))

    async def deregister(self, service_id: str, *, revision: int | None = None, reason: object = "") -> None:
        await self._send(_deregister(service_id, revision, reason))

    async def beat(
        self, service_id: str, status: ReportedStatus = "up", reason: object = "", *, code: str | None = None
    ) -> None:
        await self._send(_beat(service_id, status, reason, code))

    async def set_issue(self, name: str, reason: object = "") -> None:
        await self._send(_issue("PUT", name, reason))

    async def issue(self, name: str) -> IssueDocument:
        return await self._send(_issue("GET", name))

    async def clear_issue(self, name: str, reason: object = "") -> None:
        await self._send(_issue("DELETE", name, reason))

    async def drain(self, reason: object = "", *, all_replicas: bool = False) -> None:
        await self._send(_drain(reason)._replace(all_replicas=all_replicas))

    async def undrain(self, reason: object = "", *, all_replicas: bool = False) -> None:
        await self._send(_undrain(reason)._replace(all_replicas=all_replicas))

    async def drained(self, *, all_replicas: bool = False) -> DrainDocument:
        return await self._send(_DRAINED._replace(all_replicas=all_replicas))

    async def maintain(
        self,
        service_id: str | None,
        duration: Duration,
        *,
        by: str = "",
        reason: object = "",
        all_replicas: bool = False,
    ) -> MaintenanceDocument:
        request = _maintain(service_id, duration, by, reason)
        return await self._send(request._replace(all_replicas=all_replicas))

    async def maintenance(self, service_id: str | None = None, *, all_replicas: bool = False) -> MaintenanceDocument:
        return await self._send(_maintenance("GET", service_id)._replace(all_replicas=all_replicas))

    async def end_maintenance(
        self, service_id: str | None = None, *, reason: object = "", all_replicas: bool = False
    ) -> None:
        await self._send(_end_maintenance(service_id, reason)._replace(all_replicas=all_replicas))

    async def plan_maintenance(  # noqa: PLR0913  most have names and defaults
        self,
        service_id: str | None,
        begin: datetime | str,
        end: datetime | str,
        *,
        by: str = "",
        reason: object = "",
        all_replicas: bool = False,
    ) -> PlannedMaintenanceDocument:
        request = _plan_maintenance(service_id, begin, end, by, reason)
        return await self._send(request._replace(all_replicas=all_replicas))

    async def planned_maintenance(
        self, service_id: str | None = None, *, all_replicas: bool = False
    ) -> PlannedMaintenanceDocument:
        return await self._send(_planned_maintenance("GET", service_id)._replace(all_replicas=all_replicas))

    async def cancel_maintenance(
        self, service_id: str | None = None, *, reason: object = "", all_replicas: bool = False
    ) -> None:
        await self._send(_cancel_maintenance(service_id, reason)._replace(all_replicas=all_replicas))

    async def ack(
        self,
        service_id: str | None = None,
        *,
        until: datetime | str | None = None,
        by: str = "",
        reason: object = "",
    ) -> AckDocument:
        return await self._send(_make_ack(service_id, until, by, reason))

    async def acknowledgement(self, service_id: str | None = None) -> AckDocument:
        return await self._send(_ack("GET", service_id))

    async def clear_ack(self, service_id: str | None = None, *, reason: object = "") -> None:
        await self._send(_ack("DELETE", service_id, reason=reason))

    async def note(self, text: object, *, service_id: str | None = None, by: str = "", name: str = "") -> NoteDocument:
        return await self._send(_note(text, service_id, by, name))

    async def reload(self) -> str:
        return (await self._send(_RELOAD))["message"]

    async def _send(self, request: ControlRequest[D]) -> D:
        if self._process_id != os.getpid() or self._loop is not asyncio.get_running_loop():
            self._start_again()
        try:
            async with asyncio.timeout(self._timeout_s), self._lock:
                try:
                    return cast("D", _result(*await self._exchange(request.encode(self._by))))
                except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
                    self.close()
                    raise
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as exc:
            raise _unreachable(self.path, exc) from exc

    def _start_again(self) -> None:
        """In another process or event loop. The connection is not closed: it belongs to the old one."""
        self._inherited, self._streams = self._streams, None
        self._lock, self._process_id, self._loop = asyncio.Lock(), os.getpid(), asyncio.get_running_loop()

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
            cause = "what answers there is not a node"
    return ControlUnreachableError(f"cannot use the control socket {path}: {cause}")
