"""systemd: over a real message bus, with a stand-in for systemd, and over broken buses."""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ProbeError
from svcnode.probes import make_probe
from svcnode.probes.systemd import RestartCount, escape_unit
from tests.support.backends import Backend, Peer
from tests.support.servers.base import module_server
from tests.support.servers.dbus import ClosedDbusServer, DbusServer, FakeSystemd
from tests.support.verdicts import READY, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.check_runner import CheckRunner

STARTING = not_ready(ReasonCode.STARTING)
NOT_RUNNING = failed(ReasonCode.NOT_RUNNING)
UNRELIABLE = not_ready(ReasonCode.UNRELIABLE)


bus = module_server(DbusServer)


@pytest.fixture
def systemd(bus: DbusServer) -> Iterator[FakeSystemd]:
    with FakeSystemd(bus.path) as running:
        yield running


# ---- states, as systemd(1) and "systemctl --state=help" list them


@pytest.mark.parametrize(
    ("active", "sub", "verdict"),
    [
        ("active", "running", READY),
        ("active", "exited", READY),  # a oneshot with RemainAfterExit
        ("reloading", "reload", STARTING),
        ("refreshing", "refresh", STARTING),
        ("activating", "start", STARTING),
        ("activating", "start-post", STARTING),
        ("activating", "auto-restart", NOT_RUNNING),
        ("activating", "auto-restart-queued", NOT_RUNNING),
        ("deactivating", "stop-sigterm", not_ready(ReasonCode.SHUTTING_DOWN)),
        ("failed", "failed", NOT_RUNNING),
        ("inactive", "dead", NOT_RUNNING),
        ("maintenance", "cleaning", NOT_RUNNING),
        ("", "", NOT_RUNNING),
    ],
)
def test_the_state_of_a_unit_decides(
    check: CheckRunner, bus: DbusServer, systemd: FakeSystemd, *, active: str, sub: str, verdict: object
) -> None:
    systemd.set_unit("validator.service", active, sub)
    assert check("systemd:validator", bus=str(bus.path)) == verdict
    systemd.set_unit("srv-data.mount", active, sub)
    assert check("systemd:srv-data.mount", bus=str(bus.path)) == verdict


def test_a_failed_unit_says_how_it_ended(check: CheckRunner, bus: DbusServer, systemd: FakeSystemd) -> None:
    systemd.set_unit("validator.service", "failed", "failed", Result="oom-kill")
    verdict = check("systemd:validator.service", bus=str(bus.path))
    assert verdict == NOT_RUNNING
    assert "oom-kill" in verdict.reason


@pytest.mark.parametrize(
    ("load", "active", "verdict"),
    [
        ("not-found", "inactive", failed(ReasonCode.NOT_FOUND)),
        ("masked", "inactive", NOT_RUNNING),
        ("bad-setting", "inactive", NOT_RUNNING),
        ("error", "inactive", NOT_RUNNING),
        ("masked", "active", READY),  # it was masked while it was running
        ("not-found", "active", READY),  # its file was removed while it was running
    ],
)
def test_a_unit_that_cannot_be_started_is_failed_unless_it_runs(
    check: CheckRunner, bus: DbusServer, systemd: FakeSystemd, *, load: str, active: str, verdict: object
) -> None:
    systemd.set_unit("validator.service", active, "running", LoadState=load)
    assert check("systemd:validator", bus=str(bus.path)) == verdict


def test_a_unit_that_does_not_exist_is_failed(check: CheckRunner, bus: DbusServer, systemd: FakeSystemd) -> None:
    systemd.set_unit("validator.service", "active", "running")
    assert check("systemd:validater", bus=str(bus.path)) == failed(ReasonCode.NOT_FOUND)
    assert check.leaks_nothing("systemd:validator", bus=str(bus.path)) == READY


def test_an_instance_is_found_by_its_escaped_name(check: CheckRunner, bus: DbusServer, systemd: FakeSystemd) -> None:
    systemd.set_unit("validator@main-7.service", "active", "running")
    assert check("systemd:validator@main-7", bus=str(bus.path)) == READY
    # The example of systemd's D-Bus documentation, and names with a digit first.
    assert escape_unit("avahi-daemon.service") == "avahi_2ddaemon_2eservice"
    assert escape_unit("7.service") == "_37_2eservice"


def test_a_unit_that_is_restarted_again_and_again_is_not_ready(
    check: CheckRunner, bus: DbusServer, systemd: FakeSystemd
) -> None:
    def restarted(times: int) -> Callable[[], None]:
        return lambda: systemd.set_unit("validator.service", "active", "running", NRestarts=times)

    restarted(90)()  # before the first check
    found = check.sequence("systemd:validator", restarted(93), restarted(94), bus=str(bus.path))
    assert [verdict for verdict, _ in found] == [READY, READY, UNRELIABLE]
    found = check.sequence("systemd:validator", restarted(95), bus=str(bus.path), max_restarts=0)
    assert [verdict for verdict, _ in found] == [READY, UNRELIABLE]


def test_restarts_are_counted_in_a_window() -> None:
    count = RestartCount()
    seen = [count.within(600, counter, now_s) for counter, now_s in [(5, 0), (6, 10), (8, 20), (8, 610), (8, 620)]]
    assert seen == [0, 1, 3, 2, 0]
    assert count.within(600, 1, 630) == 1  # started by hand, which counts from 0, and restarted once
    assert count.within(600, 0, 640) == 1


# ---- the bus


def test_a_bus_that_refuses_is_unknown(check: CheckRunner, bus: DbusServer, tmp_path: Path) -> None:
    assert check("systemd:validator", bus=str(bus.path)) == unknown(ReasonCode.NOT_SUPPORTED)  # no systemd on it
    with ClosedDbusServer(tmp_path) as closed, FakeSystemd(closed.path):
        assert check("systemd:validator", bus=str(closed.path)) == unknown(ReasonCode.PERMISSION_DENIED)


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder) / "bus"


def test_a_missing_bus_is_unknown(check: CheckRunner, path: Path) -> None:
    """As in a container: nothing is known about the unit."""
    assert check("systemd:validator", bus=str(path)) == unknown(ReasonCode.FILE_NOT_FOUND)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert check("systemd:validator", bus=str(path)) == unknown(ReasonCode.CONNECTION_REFUSED)


def log_in(peer: Peer) -> None:
    peer.read_until(b"\r\n")
    peer.send(b"OK 1234deadbeef\r\n")
    peer.read_until(b"BEGIN\r\n")


@pytest.mark.parametrize(
    ("logs_in", "answer", "code"),
    [
        (False, b"REJECTED EXTERNAL\r\n", ReasonCode.AUTH_FAILED),
        (False, b"SSH-2.0-OpenSSH\r\n", ReasonCode.AUTH_FAILED),
        (False, bytes(20_000), ReasonCode.AUTH_FAILED),
        (False, b"", ReasonCode.CONNECTION_CLOSED),
        (True, b"", ReasonCode.CONNECTION_CLOSED),
        (True, bytes(64), ReasonCode.PROTOCOL_ERROR),
        (True, b"l\2\1\1\xff\xff\xff\x7f" + bytes(100_000), ReasonCode.UNEXPECTED_RESPONSE),
    ],
)
def test_another_program_on_the_socket_is_unknown(
    check: CheckRunner, path: Path, logs_in: bool, answer: bytes, code: ReasonCode
) -> None:
    def script(peer: Peer) -> None:
        if logs_in:
            log_in(peer)
        peer.send(answer)
        peer.shutdown_write()

    with Backend(script, path=path):
        assert check("systemd:validator", bus=str(path)) == unknown(code)


def test_a_bus_that_does_not_answer_is_failed_at_the_deadline(check: CheckRunner, path: Path) -> None:
    with Backend(log_in, path=path):
        assert check.times_out("systemd:validator", "exchange", bus=str(path)) == failed(ReasonCode.TIMEOUT)


@pytest.mark.parametrize(
    "config",
    [
        "systemd:",
        "systemd:/validator",
        "systemd://validator",
        "systemd:a b",
        f"systemd:{'x' * 300}",
        {"url": "systemd:validator", "bus": "run/bus"},
        {"url": "systemd:validator", "max_restarts": -1},
        {"url": "systemd:validator", "restart_window": "0s"},
    ],
)
def test_an_invalid_configuration_is_rejected(config: Any) -> None:
    with pytest.raises(ProbeError):
        make_probe(config)
