"""Runs many simple checks over TCP in one callback of the event loop, without a task, transport or future per check.

The sockets are in an epoll object of their own, and the event loop watches its descriptor. So the loop is woken once
for all sockets that are ready, and the work per check is little more than its system calls. A check is a small state
machine: connect, send, receive. The caller sets the deadline and cancels.

Linux only; elsewhere, and for every other check, the caller awaits `Probe.check`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from svcnode.net.connect import address_family, raise_if_own_network, reject_self_connected_socket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from svcnode.net.connect import TcpEndpoint

    OnVerdict = Callable[[Verdict | Exception], None]

# Edge-triggered: a process that forked during a check holds a copy of the socket, which keeps it in the epoll object
# after it was closed here. Its events cannot be stopped then, but each of them comes only once.
_READABLE = getattr(select, "EPOLLIN", 0) | getattr(select, "EPOLLET", 0)
_WRITABLE = getattr(select, "EPOLLOUT", 0)
_RECV_BYTES = 16 * 1024
_MAX_EVENTS = 256  # per callback; the loop calls again if there are more
_IN_PROGRESS_ERRNOS = {errno.EINPROGRESS, errno.EALREADY}


class BatchCheck(ABC):
    """The checks of one probe, one at a time, each over its own connection. The endpoint is an IP address."""

    __slots__ = ("_unsent", "address", "family", "is_connected", "on_verdict", "sock")

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self.address = (endpoint.host, endpoint.port)
        self.family = address_family(endpoint.host)
        self.sock: socket.SocketType | None = None
        self.is_connected = False
        self._unsent: bytes | memoryview = b""
        self.on_verdict: OnVerdict | None = None  # while it is running

    @property
    def step(self) -> str:
        """The step that is running, as in `net.trace`."""
        return "exchange" if self.is_connected else "connect"

    @property
    def waits_to_write(self) -> bool:
        return bool(self._unsent) or not self.is_connected

    @abstractmethod
    def on_connected(self) -> Verdict | None:
        """A verdict ends the check, here and below."""

    @abstractmethod
    def on_data(self, data: bytes) -> Verdict | None: ...

    @abstractmethod
    def on_closed(self) -> Verdict:
        """The server has closed the connection, or its sending side."""

    @abstractmethod
    def on_error(self, exc: OSError) -> Verdict: ...

    def send(self, data: bytes | memoryview) -> None:
        assert self.sock is not None
        try:
            while data:
                sent = self.sock.send(data)
                data = memoryview(data)[sent:] if sent < len(data) else b""
        except BlockingIOError:
            pass
        self._unsent = data

    def connect(self) -> Verdict | None:
        """Call it again when the socket is ready. Raises `OSError`, as `advance`."""
        assert self.sock is not None
        error = self.sock.connect_ex(self.address)
        if error in _IN_PROGRESS_ERRNOS:
            return None
        if error and error != errno.EISCONN:
            raise OSError(error, os.strerror(error))
        reject_self_connected_socket(self.sock, self.address)
        self.is_connected = True
        return self.on_connected()

    def advance(self) -> Verdict | None:
        """Do everything that is possible without waiting: there is one event for all that has arrived."""
        if not self.is_connected:
            verdict = self.connect()
            if verdict is not None or not self.is_connected:
                return verdict
        elif self._unsent:
            self.send(self._unsent)
        return self._receive()

    def _receive(self) -> Verdict | None:
        assert self.sock is not None
        verdict = None
        while verdict is None:
            try:
                data = self.sock.recv(_RECV_BYTES)
            except BlockingIOError:
                return None
            verdict = self.on_data(data) if data else self.on_closed()
        return verdict


class BatchPoller:
    """Runs the checks, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises `OSError` if no descriptor is left, and `NotImplementedError` on other systems than Linux."""
        if not hasattr(select, "epoll"):
            raise NotImplementedError  # the scheduler then runs every check in a task
        self._loop = loop
        self._checks: dict[int, BatchCheck] = {}  # the running ones, by descriptor
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def close(self) -> None:
        for check in list(self._checks.values()):
            self.cancel(check)
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def start(self, check: BatchCheck, on_verdict: OnVerdict) -> Verdict | Exception | None:
        """The verdict, if there is one at once. Otherwise `on_verdict` is called with it, unless cancelled.

        An exception is a fault of the check, as one of `Probe.check`.
        """
        try:
            check.sock = sock = socket.SocketType(check.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as exc:
            return check.on_error(exc)
        check.is_connected = False
        check._unsent = b""
        check.on_verdict = on_verdict
        sock.connect_ex(check.address)  # the next call has the result: of this machine, it is usually known by then
        result = _run(check, check.connect)
        if result is None:
            try:
                self._epoll.register(sock.fileno(), _READABLE | (_WRITABLE if check.waits_to_write else 0))
            except OSError as exc:
                _close(check)
                return check.on_error(exc)
            self._checks[sock.fileno()] = check
        else:
            _close(check)
        return result

    def cancel(self, check: BatchCheck) -> None:
        if check.sock is not None:
            del self._checks[check.sock.fileno()]
            _close(check)

    def _on_ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0, _MAX_EVENTS):
            check = self._checks.get(descriptor)  # None: see `_READABLE`, or an earlier verdict cancelled this check
            if check is None:
                continue
            result = _run(check, check.advance)
            if result is not None:
                on_verdict = check.on_verdict
                assert on_verdict is not None
                self.cancel(check)
                on_verdict(result)


def _run(check: BatchCheck, step: Callable[[], Verdict | None]) -> Verdict | Exception | None:
    try:
        try:
            return step()
        except OSError as exc:
            if not check.is_connected:
                raise_if_own_network(exc, check.address[0])
            raise
    except OSError as exc:
        return check.on_error(exc)
    except Exception as exc:  # noqa: BLE001  one check must not end the others
        return exc


def _close(check: BatchCheck) -> None:
    assert check.sock is not None
    check.sock.close()
    check.sock = check.on_verdict = None
