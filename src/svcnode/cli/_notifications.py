"""What a program says of itself with sd_notify(3): the socket that receives it, and what it means for its service.

    message                 the service is
    READY=1                 Up; until then it is Initializing, with `--notify`
    RELOADING=1             as before: a reload is no outage, and `--watchdog` notices one that hangs
    STOPPING=1              Down, as after the end of the command
    WATCHDOG=1              alive for the time of `--watchdog`; without it, Down until the next one
    WATCHDOG=trigger        Down until READY=1: the watchdog of a program may well go on in another thread
    STATUS=…                as before, with this reason
    ERRNO=…, EXIT_STATUS=…  as before, with this in the reason until READY=1
    BARRIER=1               as before; its file descriptor is closed, for which sd_notify_barrier(3) waits

Everything else is ignored. In one message, the worst counts.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import sys
import threading
from array import array
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, Self

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.text import safe_reason
from svcnode.core.units import format_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.agent.systemd import ServiceManager
    from svcnode.control.types import ReportedStatus

MAX_MESSAGE_BYTES = 64 * 1024  # what is longer is cut
MAX_PASSED_FDS = 253  # the limit of Linux
_CREDENTIALS = struct.Struct("iII")  # process id, user id, group id
# For the service manager that has started `svcnode run`, which is its main process. Not MAINPID: that is another one.
_PASSED_ON = (
    *(b"READY", b"RELOADING", b"MONOTONIC_USEC", b"STOPPING", b"WATCHDOG", b"STATUS"),
    *(b"ERRNO", b"EXIT_STATUS", b"EXTEND_TIMEOUT_USEC"),
)
_SAID_ONCE = (b"READY=1", b"RELOADING=1", b"STOPPING=1")


class Phase(Enum):
    STARTING = auto()
    READY = auto()
    RELOADING = auto()
    STOPPING = auto()
    FAILED = auto()


class Report(NamedTuple):
    status: ReportedStatus
    reason: str = ""
    code: ReasonCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """What a program has said so far. Times are seconds of the monotonic clock."""

    phase: Phase = Phase.READY
    watchdog_s: float = math.inf
    alive_at_s: float = 0.0  # it started, became ready, or said WATCHDOG=1
    status: bytes = b""
    errno: int = 0
    exit_status: int = 0

    def after(self, message: bytes, now_s: float) -> Notified:
        """The state after a message; any message is allowed."""
        lines = message.removesuffix(b"\0").split(b"\n")
        new = replace(self, status=_last(lines, b"STATUS=", self.status))
        if b"READY=1" in lines:
            is_start = self.phase not in (Phase.READY, Phase.RELOADING)
            alive_at_s = now_s if is_start else self.alive_at_s
            new = replace(new, phase=Phase.READY, alive_at_s=alive_at_s, errno=0, exit_status=0)
        if b"WATCHDOG=1" in lines:
            new = replace(new, alive_at_s=now_s)
        if b"RELOADING=1" in lines and new.phase is Phase.READY:
            new = replace(new, phase=Phase.RELOADING)
        if b"STOPPING=1" in lines:
            new = replace(new, phase=Phase.STOPPING)
        if b"WATCHDOG=trigger" in lines:
            new = replace(new, phase=Phase.FAILED)
        errno, exit_status = _number(lines, b"ERRNO=", new.errno), _number(lines, b"EXIT_STATUS=", new.exit_status)
        return replace(new, errno=errno, exit_status=exit_status)

    @property
    def expires_at_s(self) -> float:
        """When the service becomes Down unless the program says something before."""
        return self.alive_at_s + self.watchdog_s

    def report(self, now_s: float) -> Report:
        match self.phase:
            case Phase.STARTING:
                return Report("initializing", self.text("starting"), ReasonCode.STARTING)
            case Phase.STOPPING:
                return Report("down", self.text("stopping"), ReasonCode.SHUTTING_DOWN)
            case Phase.FAILED:
                return Report("down", self.text("the program reported WATCHDOG=trigger"), ReasonCode.UNHEALTHY)
            case Phase.READY | Phase.RELOADING if now_s >= self.expires_at_s:
                silence = f"no WATCHDOG=1 for {format_limit(self.watchdog_s)}"
                return Report("down", self.text(silence), ReasonCode.TTL_EXPIRED)
            case Phase.READY | Phase.RELOADING:
                return Report("up", self.text("" if self.phase is Phase.READY else "reloading"))

    def text(self, about: str) -> str:
        """The reason, with what the program has said. The program's own text comes last, because a long one is cut."""
        parts = [about] if about else []
        if self.errno:
            parts.append(f"errno {self.errno} ({os.strerror(self.errno).lower()})")
        if self.exit_status:
            parts.append(f"exit status {self.exit_status}")
        status = safe_reason(self.status)
        said = "; ".join(parts)
        return safe_reason(f"{said}: {status}" if said and status else said or status)


def _last(lines: list[bytes], prefix: bytes, default: bytes) -> bytes:
    return next((line.removeprefix(prefix) for line in reversed(lines) if line.startswith(prefix)), default)


def _number(lines: list[bytes], prefix: bytes, default: int) -> int:
    digits = _last(lines, prefix, b"")
    return int(digits) if len(digits) <= 3 and digits.isdigit() else default


def trusted_users() -> set[int]:
    """Root, and the user of this process."""
    return {0, os.getuid()}


class NotificationSocket:
    """Passes the messages of the processes of this user, and of root, to `on_message`, in a thread."""

    def __init__(self, path: str, on_message: Callable[[bytes], None], on_stranger: Callable[[int], None]) -> None:
        """`on_stranger` is called with the user id of the first message that is refused."""
        self._on_message = on_message
        self._on_stranger: Callable[[int], None] | None = on_stranger
        self._users = trusted_users()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._receive_all, name="notifications", daemon=True)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(path)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Handles the messages that were sent before, then closes the socket."""
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def _receive_all(self) -> None:
        while self._receive():
            pass

    def _receive(self) -> bool:
        """Whether there may be more."""
        fds = array("i")
        user_id = None
        space = socket.CMSG_SPACE(MAX_PASSED_FDS * fds.itemsize) + socket.CMSG_SPACE(_CREDENTIALS.size)
        message, ancillary, _, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, space)
        for _, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            elif len(data) == _CREDENTIALS.size:
                _, user_id, _ = _CREDENTIALS.unpack(data)
        try:
            if user_id in self._users:
                self._on_message(message)
            elif user_id is not None and self._on_stranger is not None:
                self._on_stranger(user_id)
                self._on_stranger = None
        finally:
            for fd in fds:
                os.close(fd)
        return user_id is not None  # every message has credentials; without them, the socket is shut down


def passed_on(message: bytes) -> tuple[bytes, bool]:
    """The part of a message that is meant for the service manager, and whether it is passed on only once."""
    lines = [line for line in message.removesuffix(b"\0").split(b"\n") if line.partition(b"=")[0] in _PASSED_ON]
    return b"\n".join(lines), any(line in _SAID_ONCE for line in lines)


@contextmanager
def notification_socket(
    manager: ServiceManager, on_message: Callable[[bytes], None], on_stranger: Callable[[int], None]
) -> Iterator[str]:
    """The path of the socket, in a folder of this user. Raises `OSError`."""
    if not hasattr(socket, "SO_PASSCRED"):
        raise InvalidValueError(f"--notify and --watchdog: {sys.platform} does not say which user has sent a message")
    import tempfile  # loaded late: most commands say nothing

    def receive(message: bytes) -> None:
        on_message(message)
        manager.pass_on(*passed_on(message))

    with tempfile.TemporaryDirectory(prefix="svcnode-run-") as folder:
        path = os.path.join(folder, "notify")  # noqa: PTH118  the text is all that is needed
        with NotificationSocket(path, receive, on_stranger):
            yield path
