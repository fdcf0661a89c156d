"""systemd, if it has started this process: its notifications, its watchdog, and the sockets that it passes.

The protocols are sd_notify(3) and sd_listen_fds(3), which other service managers also use. Both pass their values in
environment variables. These are read once and then removed, because the programs of exec: probes must not use them.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import ListenError
from svcnode.core.model import Status
from svcnode.core.text import excerpt, os_error_text
from svcnode.core.url import join_host_port
from svcnode.net.clock import next_tick_s
from svcnode.server.sockets import is_bound_to

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Iterator, MutableMapping

    from svcnode.core.address import Address
    from svcnode.node.node_state import NodeState
    from svcnode.operator.context import ProcessStats

FIRST_PASSED_FD = 3
# For messages that are sent once. The others are sent again, so they are dropped while the receiver does not read.
SEND_TIMEOUT_S = 1.0

log = logging.getLogger("svcnode")


class ServiceManager:
    """Receives the state of this process. Without systemd, the methods do nothing."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = _notify_address(environ.pop("NOTIFY_SOCKET", ""))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        self.watchdog_s = _watchdog_s(environ)  # how often `alive` must be called; None: no watchdog

    def ready(self) -> None:
        """The start or a reload is complete."""
        self._send("READY=1", timeout_s=SEND_TIMEOUT_S)

    def reloading(self) -> None:
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", timeout_s=SEND_TIMEOUT_S)

    def stopping(self, within_s: float) -> None:
        """The drain may be longer than TimeoutStopSec=."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1_000_000)}", timeout_s=SEND_TIMEOUT_S)

    def alive(self) -> None:
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def pass_on(self, message: bytes, is_sent_once: bool) -> None:
        """What a child says to this process is what this process says."""
        if message:
            self._send_bytes(message, timeout_s=SEND_TIMEOUT_S if is_sent_once else 0.0)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    @contextmanager
    def showing_status(
        self, node: NodeState, process_stats: ProcessStats, loop: asyncio.AbstractEventLoop
    ) -> Iterator[None]:
        """Send the status line of the node when it changes, at most once a second."""
        if self._socket is None:
            yield
            return
        timer: asyncio.TimerHandle
        sent: tuple[object, ...] = ()

        def send_if_changed() -> None:
            nonlocal timer, sent
            timer = loop.call_at(next_tick_s(loop.time()), send_if_changed)
            current = node.revision, process_stats.last_reload_ok
            if current != sent and self._send(f"STATUS={status_text(node, process_stats)}"):
                sent = current

        send_if_changed()
        try:
            yield
        finally:
            timer.cancel()

    def _send(self, *lines: str, timeout_s: float = 0.0) -> bool:
        """Whether it was sent."""
        return self._send_bytes("\n".join(lines).encode(), timeout_s)

    def _send_bytes(self, message: bytes, timeout_s: float) -> bool:
        if self._socket is None:
            return False
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendto(message, self._address)
        except BlockingIOError:
            return False
        except OSError as exc:
            first, extra = excerpt(message.partition(b"\n")[0]), {"event": "systemd_failed"}
            log.warning("cannot notify systemd of %s: %s", first, os_error_text(exc), extra=extra)
            return False
        return True


def status_text(node: NodeState, process_stats: ProcessStats) -> str:
    """One line for `systemctl status`. It has no reasons, which may be long."""
    health = node.health
    counts = Counter(state.status for _, state in node)
    text = f"node health is {health:d}: " + ", ".join(f"{counts[status]} {status.value}" for status in Status)
    if node.condition.draining:
        text += "; draining"
    if not process_stats.last_reload_ok:
        text += "; the last reload failed"
    return text


def _notify_address(text: str) -> str | bytes:
    """The path of a socket, or an abstract address, which begins with a null byte; empty if there is none."""
    if text.startswith("@"):
        return b"\0" + os.fsencode(text[1:])
    return text if text.startswith("/") else ""


def _watchdog_s(environ: MutableMapping[str, str]) -> float | None:
    duration_us, process_id = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not duration_us.isdecimal() or process_id not in ("", str(os.getpid())):
        return None
    return int(duration_us) / 1_000_000 or None


# ---- socket activation


class PassedSockets:
    """The sockets of a .socket unit. systemd keeps them while the node restarts, and clients wait for the new process.

    So each of them must be an address in the configuration: on any other address, nothing would answer the clients.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Raises `ListenError`."""
        count, process_id = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
        names = environ.pop("LISTEN_FDNAMES", "").split(":")
        is_ours = count.isdecimal() and process_id == str(os.getpid())
        self._sockets: list[socket.socket] = []
        for index in range(int(count) if is_ours else 0):
            name = names[index] if index < len(names) else ""
            self._sockets.append(_listening_socket(FIRST_PASSED_FD + index, name))

    def get(self, address: Address) -> socket.socket | None:
        """A copy of the socket that is bound to the address; None if there is none."""
        return next((sock.dup() for sock in self._sockets if is_bound_to(sock, address)), None)

    def require_configured(self, addresses: Collection[Address]) -> None:
        """Raises `ListenError` if a socket has none of the addresses."""
        for sock in self._sockets:
            if not any(is_bound_to(sock, address) for address in addresses):
                raise ListenError(
                    f"systemd passes a socket for {_name_text(sock.getsockname())}, which is not in [server] listen; "
                    "add it there, or remove it from the .socket unit"
                )

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


def _listening_socket(fd: int, name: str) -> socket.socket:
    label = f"file descriptor {fd}" + (f" ({name})" if name else "")
    try:
        sock = socket.socket(fileno=fd)
    except OSError as exc:
        raise ListenError(f"systemd passes {label}, which is not a socket: {os_error_text(exc)}") from exc
    if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        raise ListenError(f"systemd passes {label}, which is not a listening socket: use ListenStream= and Accept=no")
    sock.set_inheritable(False)
    return sock


def _name_text(name: Any) -> str:  # noqa: ANN401  of a socket of any family
    return join_host_port(*name[:2]) if isinstance(name, tuple) else f"unix:{os.fsdecode(name)}"
