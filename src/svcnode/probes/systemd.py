"""`systemd:unit`: systemd says that a unit is active, and does not restart it again and again.

ready      the unit is active
not ready  it is starting, reloading or stopping; it was restarted more than `max_restarts` times in `restart_window`
failed     it is inactive, has failed, waits to be restarted after a failure, is masked, has an invalid file, or does
           not exist
unknown    systemd cannot be asked: the bus is missing or refuses this user

The properties of a unit are read over D-Bus, as `systemctl show` does, without starting a program. jeepney has the
protocol; the connection is ours, with its limits. systemd loads a unit whose properties are read, so that also one that
is not running has them.
"""

from __future__ import annotations

import os
import re
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import unquote

import jeepney
from jeepney.auth import AuthenticationError, Authenticator
from jeepney.bus_messages import message_bus

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import option_type, public_text
from svcnode.core.text import excerpt, one_line
from svcnode.core.url import MAX_SOCKET_BYTES, UrlError, UrlForm
from svcnode.net.clock import monotonic_s
from svcnode.net.connect import UnixEndpoint
from svcnode.net.os_errors import InconclusiveError, code_for_os_error, connection_error_text, verdict_for_os_error
from svcnode.net.streams import ConnectionStreams, open_streams
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, UrlProbe
from svcnode.probes.options import Count, PositiveSeconds

if TYPE_CHECKING:
    from collections.abc import Iterator

READY = Verdict.ready()
SYSTEM_BUS = "/run/dbus/system_bus_socket"
_SYSTEMD = "org.freedesktop.systemd1"
_UNIT, _SERVICE = f"{_SYSTEMD}.Unit", f"{_SYSTEMD}.Service"
_TYPES = ("service", "socket", "device", "mount", "automount", "swap", "target", "path", "timer", "slice", "scope")
_UNIT_NAME = re.compile(rf"[A-Za-z0-9:_.@\\-]{{1,255}}\.({'|'.join(_TYPES)})")
# systemd.unit(5) and the states of "systemctl --state=help"; every other state is failed.
_STARTING = {"activating", "reloading", "refreshing"}
_RESTARTS_AFTER_A_FAILURE = {"auto-restart", "auto-restart-queued"}  # substates of "activating"
_LOAD_STATES = {
    "not-found": ("there is no such unit", ReasonCode.NOT_FOUND),
    "masked": ("the unit is masked", ReasonCode.NOT_RUNNING),
    "bad-setting": ("the file of the unit is invalid", ReasonCode.NOT_RUNNING),
    "error": ("the file of the unit cannot be loaded", ReasonCode.NOT_RUNNING),
}
_ERROR_CODES = {
    "org.freedesktop.DBus.Error.AccessDenied": ReasonCode.PERMISSION_DENIED,
    "org.freedesktop.DBus.Error.ServiceUnknown": ReasonCode.NOT_SUPPORTED,  # no systemd on this bus
    "org.freedesktop.DBus.Error.NameHasNoOwner": ReasonCode.NOT_SUPPORTED,
}


class RestartCount:
    """How often a unit was restarted lately, by systemd's counter. A start by hand sets the counter to 0."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._restarts: deque[tuple[float, int]] = deque()  # when they were seen, and how many

    def within(self, window_s: float, counter: int, now_s: float) -> int:
        if self._last is not None and counter != self._last:
            self._restarts.append((now_s, counter - self._last if counter > self._last else counter))
        self._last = counter
        while self._restarts and self._restarts[0][0] <= now_s - window_s:
            self._restarts.popleft()
        return sum(count for _, count in self._restarts)


@option_type({"type": "string", "pattern": "^/[^\\x00]"}, show=str)
def socket_path(value: object) -> str:
    text = public_text(value)
    if not text.startswith("/") or "\0" in text or len(os.fsencode(text)) > MAX_SOCKET_BYTES:
        raise InvalidValueError(f'must be the absolute path of a socket, such as "{SYSTEM_BUS}", not "{text}"')
    return text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SystemdProbe(UrlProbe):
    bus: Annotated[str, socket_path] = SYSTEM_BUS
    max_restarts: Count = 3
    restart_window: PositiveSeconds = 600.0
    _restarts: RestartCount = field(init=False, compare=False, default_factory=RestartCount)
    url_form: ClassVar = UrlForm(host="none", path="[^/?#]+")

    def __post_init__(self) -> None:
        if self.url.host or not _UNIT_NAME.fullmatch(self.unit):
            raise UrlError("path", 'the URL has no valid name of a unit; write "systemd:validator.service"')

    @property
    def unit(self) -> str:
        name = unquote(self.url.path)
        return name if name.rpartition(".")[2] in _TYPES else f"{name}.service"

    async def check(self) -> Verdict:
        try:
            with _inconclusive(self.bus):
                streams = await open_streams(UnixEndpoint(self.bus))
            try:
                with step("exchange"), _inconclusive(self.bus):
                    properties = await self._read(BusConnection(streams))
            finally:
                streams.abort()
        except CheckError as exc:
            return exc.verdict(self.url)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))
        return self._verdict(properties)

    async def _read(self, bus: BusConnection) -> dict[str, Any]:
        await bus.log_in()
        path = f"/org/freedesktop/systemd1/unit/{escape_unit(self.unit)}"
        wanted = [(_UNIT, "LoadState"), (_UNIT, "ActiveState"), (_UNIT, "SubState")]
        if self.unit.endswith(".service"):
            wanted += [(_SERVICE, "Result"), (_SERVICE, "NRestarts")]
        return {name: await bus.read_property(path, interface, name) for interface, name in wanted}

    def _verdict(self, properties: dict[str, Any]) -> Verdict:
        load, active, sub = (str(properties[name]) for name in ("LoadState", "ActiveState", "SubState"))
        if load in _LOAD_STATES and active != "active":
            text, code = _LOAD_STATES[load]
            return self.failed(text, code)
        shown = one_line(f"{active} ({sub})")
        if active == "active":
            return self._restarts_verdict(properties.get("NRestarts")) or READY
        if active in _STARTING and sub not in _RESTARTS_AFTER_A_FAILURE:
            return self.not_ready(f"the unit is {shown}", ReasonCode.STARTING)
        if active == "deactivating":
            return self.not_ready(f"the unit is {shown}", ReasonCode.SHUTTING_DOWN)
        result = properties.get("Result", "success")
        cause = f", result {one_line(str(result))}" if result != "success" else ""
        return self.failed(f"the unit is {shown}{cause}", ReasonCode.NOT_RUNNING)

    def _restarts_verdict(self, counter: object) -> Verdict | None:
        if not isinstance(counter, int):
            return None  # units of other types are not restarted
        count = self._restarts.within(self.restart_window, counter, monotonic_s())
        if count <= self.max_restarts:
            return None
        text = (
            f"the unit was restarted {count} times in {self.restart_window:g} s, but max_restarts is "
            f"{self.max_restarts}"
        )
        return self.not_ready(text, ReasonCode.UNRELIABLE)


def escape_unit(name: str) -> str:
    """The name as a part of an object path: other characters than letters and digits as _ and two hex digits."""
    escaped = re.sub(rb"[^A-Za-z0-9]", lambda found: b"_%02x" % found[0][0], name.encode()).decode()
    return f"_{ord(escaped[0]):02x}{escaped[1:]}" if escaped[:1].isdigit() else escaped


# ---- D-Bus


@contextmanager
def _inconclusive(bus: str) -> Iterator[None]:
    """The bus is not the service: what fails there says nothing about the unit."""
    try:
        yield
    except OSError as exc:
        if isinstance(exc, InconclusiveError) or code_for_os_error(exc) is ReasonCode.RESOURCE_EXHAUSTED:
            raise
        raise InconclusiveError(f"bus {bus}: {connection_error_text(exc)}", code_for_os_error(exc)) from exc
    except EOFError as exc:
        raise InconclusiveError(f"bus {bus}: connection closed", ReasonCode.CONNECTION_CLOSED) from exc


class BusConnection:
    """Calls methods one after the other."""

    def __init__(self, streams: ConnectionStreams) -> None:
        self._streams = streams
        self._parser = jeepney.Parser()
        self._serial = 0

    async def log_in(self) -> None:
        authenticator = Authenticator()
        try:
            for request in authenticator:
                self._streams.writer.write(request)
                authenticator.feed(await self._receive())
        except AuthenticationError as exc:
            raise CheckError(f"the bus refuses user {os.geteuid()}", ReasonCode.AUTH_FAILED, Outcome.UNKNOWN) from exc
        self._streams.writer.write(b"BEGIN\r\n")
        await self._call(message_bus.Hello())

    async def read_property(self, path: str, interface: str, name: str) -> Any:  # noqa: ANN401  any D-Bus value
        address = jeepney.DBusAddress(path, bus_name=_SYSTEMD, interface="org.freedesktop.DBus.Properties")
        body = await self._call(jeepney.new_method_call(address, "Get", "ss", (interface, name)))
        match body:
            case ((str(), value),):
                return value
            case _:
                raise CheckError(f"systemd returned no value of {name}", ReasonCode.PROTOCOL_ERROR, Outcome.UNKNOWN)

    async def _call(self, message: jeepney.Message) -> tuple[Any, ...]:
        self._serial += 1
        self._streams.writer.write(message.serialise(self._serial))
        while True:
            reply = await self._next_message()
            fields = reply.header.fields
            if fields.get(jeepney.HeaderFields.reply_serial) != self._serial:
                continue  # a signal
            if reply.header.message_type is jeepney.MessageType.error:
                name = str(fields.get(jeepney.HeaderFields.error_name, ""))
                text = excerpt(f"{name}: {reply.body[0] if reply.body else ''}")
                raise CheckError(text, _ERROR_CODES.get(name, ReasonCode.SERVER_ERROR), Outcome.UNKNOWN)
            return tuple(reply.body)

    async def _next_message(self) -> jeepney.Message:
        while True:
            try:
                message = self._parser.get_next_message()
            except Exception as exc:  # the parser raises any type for bytes that are not D-Bus
                raise CheckError("the answer is not D-Bus", ReasonCode.PROTOCOL_ERROR, Outcome.UNKNOWN) from exc
            if message is not None:
                return message
            self._parser.add_data(await self._receive())

    async def _receive(self) -> bytes:
        data = await self._streams.reader.read(4096)
        if not data:
            raise EOFError
        return data
