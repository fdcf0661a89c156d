"""What systemd passes in the environment, and what it is sent."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from svcnode.agent.systemd import PassedSockets, ServiceManager, status_text
from svcnode.core.address import parse_address
from svcnode.core.errors import ListenError
from svcnode.operator.context import ProcessStats
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Managed = Callable[..., ServiceManager]

PID = str(os.getpid())


@pytest.fixture
def managed() -> Iterator[Callable[..., ServiceManager]]:
    with ExitStack() as stack:
        yield lambda **environ: stack.enter_context(closing(ServiceManager(environ)))


@pytest.fixture(params=["path", "abstract"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify") if request.param == "path" else f"\0svcnode-test-{PID}")
        sock.settimeout(10)
        yield sock


def address_of(receiver: socket.socket) -> str:
    name = receiver.getsockname()
    return f"@{name[1:].decode()}" if isinstance(name, bytes) else str(name)


def lines(receiver: socket.socket) -> list[str]:
    return receiver.recv(4096).decode().split("\n")


def test_the_states_of_the_process_are_sent(managed: Managed, receiver: socket.socket) -> None:
    manager = managed(NOTIFY_SOCKET=address_of(receiver), WATCHDOG_USEC="60000000")
    manager.ready()
    manager.alive()
    manager.stopping(within_s=35.5)
    sent = [lines(receiver) for _ in range(3)]
    assert sent == [["READY=1"], ["WATCHDOG=1"], ["STOPPING=1", "EXTEND_TIMEOUT_USEC=35500000"]]
    before_us = time.monotonic_ns() // 1000
    manager.reloading()
    state, began = lines(receiver)
    assert state == "RELOADING=1"
    assert before_us <= int(began.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"NOTIFY_SOCKET": "notify"}])
def test_without_a_socket_of_systemd_nothing_is_sent(managed: Managed, environ: dict[str, str]) -> None:
    manager = managed(**environ)
    manager.ready()
    manager.stopping(5.0)


def test_a_socket_that_does_not_exist_is_logged(
    managed: Managed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    managed(NOTIFY_SOCKET=str(tmp_path / "gone"), WATCHDOG_USEC="60000000").ready()
    assert [vars(record)["event"] for record in caplog.records] == ["systemd_failed"]


def test_what_is_sent_again_does_not_wait_for_a_receiver_that_does_not_read(managed: Managed, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        manager = managed(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="60000000")
        for _ in range(5000):  # more than the queue has; each would wait for a second
            manager.alive()


@pytest.mark.parametrize(
    ("environ", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": PID}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_that_of_this_process(environ: dict[str, str], watchdog_s: float | None) -> None:
    assert ServiceManager(environ).watchdog_s == watchdog_s


def test_the_variables_are_not_passed_on_to_other_programs() -> None:
    environ = {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/nowhere"}
    environ |= {"LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "a"}
    ServiceManager(environ)
    PassedSockets(environ)
    assert environ == {"HOME": "/nowhere"}


def test_the_status_line_has_the_health_and_the_counts_of_each_status() -> None:
    node, process_stats = make_node("validator-7", version="v1.0.0"), ProcessStats(0.0, 0.0)
    for number in range(3):
        node.register(f"up-{number}").up()
    node.register("ledger").down("password geheim-4711 is wrong")
    assert status_text(node, process_stats) == "node health is 206: 3 Up, 0 Initializing, 1 Down"
    node.overrides.drain()
    process_stats.record_reload("services.ledger.probe: password geheim-4711")
    assert status_text(node, process_stats) == (
        "node health is 503: 3 Up, 0 Initializing, 1 Down; draining; the last reload failed"
    )


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PassedSockets]]:
    """Makes `PassedSockets` of the given sockets, whose descriptors follow each other."""
    first_fd = 200
    made: list[PassedSockets] = []

    def make(*sockets: socket.socket, names: str = "") -> PassedSockets:
        monkeypatch.setattr("svcnode.agent.systemd.FIRST_PASSED_FD", first_fd)
        for index, sock in enumerate(sockets):
            os.dup2(sock.fileno(), first_fd + index)
        made.append(PassedSockets({"LISTEN_FDS": str(len(sockets)), "LISTEN_PID": PID, "LISTEN_FDNAMES": names}))
        return made[-1]

    yield make
    for sockets in made:
        sockets.close()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_a_socket_is_used_for_its_own_address_only(passed: Callable[..., PassedSockets], tmp_path: Path) -> None:
    with listening() as sock, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "node.sock"))
        unix.listen()
        port = sock.getsockname()[1]
        sockets = passed(sock, unix)
        found = sockets.get(parse_address(f"127.0.0.1:{port}", has_tls=False))
        assert found is not None
        with found:
            assert found.getsockname() == sock.getsockname()
            assert not found.get_inheritable()
        for other in (f"127.0.0.2:{port}", f"127.0.0.1:{port ^ 1}", f"[::1]:{port}", "unix:/run/a.sock"):
            assert sockets.get(parse_address(other, has_tls=False)) is None
        of_path = sockets.get(parse_address(f"unix:{tmp_path}/node.sock", has_tls=False))
        assert of_path is not None
        of_path.close()


def test_a_socket_without_an_address_in_the_configuration_is_an_error(passed: Callable[..., PassedSockets]) -> None:
    with listening() as configured, listening() as other:
        sockets = passed(configured, other)
        address = parse_address(f"127.0.0.1:{configured.getsockname()[1]}", has_tls=False)
        with pytest.raises(ListenError, match=str(other.getsockname()[1])):
            sockets.require_configured([address])
        address_of_other = parse_address(f"127.0.0.1:{other.getsockname()[1]}", has_tls=False)
        sockets.require_configured([address, address_of_other])


def test_a_descriptor_that_is_not_a_socket_that_accepts_connections_is_an_error(
    passed: Callable[..., PassedSockets], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram, pytest.raises(ListenError, match="metrics"):
        passed(datagram, names="metrics")
    with listening() as sock, socket.create_connection(sock.getsockname()) as connection, pytest.raises(ListenError):
        passed(connection)
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr("svcnode.agent.systemd.FIRST_PASSED_FD", file.fileno())
        with pytest.raises(ListenError):
            PassedSockets({"LISTEN_FDS": "1", "LISTEN_PID": PID})
