"""A node under systemd: what it reports, the sockets that it gets, and the files in deploy/systemd."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from svcnode.probes import KINDS
from tests.support import unit_sandbox
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent, run_command
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.provision import program, skip_or_fail
from tests.support.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
SERVICE = (UNITS / "svcnode.service").read_text()
KEYS = unit_sandbox.parse_unit(SERVICE)
INSTALLED = "/opt/svcnode/bin/svcnode"
COMMAND = f"{Path(sys.executable).parent}/svcnode"
SANDBOX = (sys.executable, str(ROOT / "tests" / "support" / "unit_sandbox.py"))
CONFIG = """
[node]
name = "validator-7"
[server]
listen = "127.0.0.1:{port}"
drain = "0s"
[[services]]
id = "ledger"
status = "Up"
[[services]]
id = "chain"
status = "{chain}"
"""


class NotifySocket:
    """Receives what a service sends to systemd."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.messages: list[list[str]] = []
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.path))
        self._thread.join()
        self._socket.close()

    def _receive(self) -> None:
        while message := self._socket.recv(4096):
            with self._changed:
                self.messages.append(message.decode().split("\n"))
                self._changed.notify_all()

    def wait_for(self, line: str, *, after: int = 0) -> int:
        """Wait for a message with this line, as a pattern; returns the number of messages up to it."""

        def found() -> int:
            matches = (any(re.fullmatch(line, each) for each in message) for message in self.messages[after:])
            return next((after + index for index, match in enumerate(matches, 1) if match), 0)

        with self._changed:
            assert self._changed.wait_for(found, DEADLINE_S), f"no {line} in {self.messages[after:]}"
            return found()

    def states(self) -> list[str]:
        return [message[0] for message in self.messages if message[0].partition("=")[0] not in ("STATUS", "WATCHDOG")]


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(tmp_path) as receiver:
        yield receiver


# ---- notifications


def test_a_node_reports_start_status_reload_and_stop(tmp_path: Path, notified: NotifySocket) -> None:
    config = CONFIG.format(port=0, chain="Down")
    environ = {"NOTIFY_SOCKET": str(notified.path), "WATCHDOG_USEC": "2000000"}
    with Agent(tmp_path, config=config, environ=environ) as agent:
        seen = notified.wait_for("READY=1")
        assert agent.request("/livez").code == 200
        notified.wait_for("WATCHDOG=1", after=seen)
        seen = notified.wait_for("STATUS=node health is 206: 1 Up, 0 Initializing, 1 Down", after=seen)
        agent.reload(CONFIG.format(port=0, chain="Up"))
        seen = notified.wait_for(r"MONOTONIC_USEC=\d+", after=seen)
        seen = notified.wait_for("STATUS=node health is 200: 2 Up, 0 Initializing, 0 Down", after=seen)
        agent.reload("listen = ")
        notified.wait_for("STATUS=.*; the last reload failed", after=seen)
        agent.reload(CONFIG.format(port=0, chain="Up").replace("0s", "50m"))
        agent.signal(signal.SIGTERM)
        notified.wait_for(r"EXTEND_TIMEOUT_USEC=30\d{8}", after=seen)
        notified.wait_for("STATUS=node health is 503: .*; draining", after=seen)
    assert notified.states() == ["READY=1", *["RELOADING=1", "READY=1"] * 3, "STOPPING=1"]


def test_svcnode_run_passes_on_what_its_command_says(tmp_path: Path, notified: NotifySocket) -> None:
    """As Type=notify: `systemd-notify` waits for its barrier, so it ends only if its messages are received."""
    config = f'{CONFIG.format(port=0, chain="Up")}[control]\nlisten = "unix:{tmp_path}/c.sock"\n'
    say = f"{program('systemd-notify', 'systemd')} --ready --status=serving; exec sleep 600"
    command = [COMMAND, "run", "--socket", f"{tmp_path}/c.sock", "--service", "job", "--notify", "--", "sh", "-c", say]
    environ = os.environ | {"NOTIFY_SOCKET": str(notified.path), "WATCHDOG_USEC": "60000000"}
    with Agent(tmp_path, config=config) as agent, subprocess.Popen(command, env=environ) as process:
        try:
            notified.wait_for("READY=1")
            notified.wait_for("STATUS=serving")
            agent.wait_until(lambda: agent.statuses().get("job") == "Up")
            assert agent.request("/details/job").json["reason"] == "serving"
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert b"WATCHDOG_USEC=60000000" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        finally:
            process.terminate()


# ---- socket activation


class Clients:
    """Send requests on new connections, all the time, and count those without a complete response."""

    def __init__(self, port: int, count: int = 4) -> None:
        self._port = port
        self.answered = 0
        self.dropped: list[str] = []
        self._is_ending = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), DEADLINE_S) as sock:
                    sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    answer = b"".join(iter(lambda: sock.recv(4096), b""))
                    assert answer.startswith(b"HTTP/1.1 200 "), answer
                    self.answered += 1
            except (OSError, AssertionError) as exc:
                self.dropped.append(repr(exc))


def test_a_restart_drops_no_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        port = listener.getsockname()[1]
        config = CONFIG.format(port=port, chain="Up")
        clients = Clients(port)
        try:
            for _ in range(3):
                with Agent(tmp_path, config=config, passed=listener) as agent:
                    agent.wait_for_event("started")
                    before = clients.answered
                    agent.wait_until(lambda before=before: clients.answered > before + 50)  # type: ignore[misc]
                    assert agent.stop() == 0
            with Agent(tmp_path, config=config, passed=listener) as agent:  # for those that wait
                agent.reload(CONFIG.format(port=0, chain="Up"))
                agent.wait_for_event("reload_failed")  # without the address of the passed socket
                clients.end()
        finally:
            clients.end()
        assert clients.dropped == []


def test_a_socket_of_systemd_is_used(tmp_path: Path) -> None:
    """With systemd's own tool, which starts the node for the first connection."""
    port = free_port()
    activate = (program("systemd-socket-activate", "systemd"), "--listen", f"127.0.0.1:{port}")
    with Agent(tmp_path, config=CONFIG.format(port=port, chain="Up"), prefix=activate) as agent:
        agent.wait_for_log("Listening on")
        assert agent.request("/svc/node/health", port).code == 200
        agent.wait_for_log("started: node")


# ---- the unit: its text


def unit_file(folder: Path, text: str) -> str:
    file = folder / "svcnode.service"
    file.write_text(text.replace(INSTALLED, COMMAND))
    return str(file)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [program("systemd-analyze", "systemd"), "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def problems(folder: Path, text: str = SERVICE) -> list[str]:
    """Of the service and of the socket, not of other units on this machine."""
    (folder / "svcnode.socket").write_text((UNITS / "svcnode.socket").read_text())
    ended = analyze("verify", "--man=no", unit_file(folder, text), str(folder / "svcnode.socket"))
    return [line for line in ended.stderr.splitlines() if "svcnode" in line]


def test_systemd_accepts_the_units_also_with_a_credential(tmp_path: Path) -> None:
    assert problems(tmp_path) == []
    with_credential = SERVICE.replace("#LoadCredential=", "LoadCredential=")
    assert with_credential != SERVICE
    assert problems(tmp_path, with_credential) == []
    assert problems(tmp_path, SERVICE.replace("ProtectHostname=yes", "ProtectTheHostname=yes")) != [], (
        "a mistake is noticed"
    )
    assert "\n[Install]\nWantedBy=multi-user.target\n" in SERVICE
    assert "\n[Install]\nWantedBy=sockets.target\n" in (UNITS / "svcnode.socket").read_text()
    assert KEYS["Restart"] == ["on-failure"]
    assert "\nStartLimitIntervalSec=0\n" in SERVICE.partition("[Service]")[0]


def test_the_unit_of_several_nodes_is_the_same_with_a_file_and_folders_for_each(tmp_path: Path) -> None:
    template = (UNITS / "svcnode@.service").read_text()
    one = template.replace("svcnode/%i.toml", "svcnode/svcnode.toml").replace("svcnode@%i", "svcnode")
    one = one.replace("node (%i)", "node").replace("credentials/%i/", "credentials/")

    def settings(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("# ")]

    assert settings(one) == settings(SERVICE)
    keys = unit_sandbox.parse_unit(template)
    assert (keys["StateDirectory"], keys["RuntimeDirectory"]) == (["svcnode@%i"], ["svcnode@%i"])
    file = tmp_path / "svcnode@validator-8.service"
    file.write_text(template.replace(INSTALLED, COMMAND))
    ended = analyze("verify", "--man=no", str(file))
    assert [line for line in ended.stderr.splitlines() if "svcnode" in line] == []


def exposure(folder: Path, text: str = SERVICE) -> float:
    printed = analyze("security", "--offline=true", unit_file(folder, text)).stdout
    found = re.search(r"exposure level for svcnode\.service: (\d+\.\d)", printed)
    assert found, printed
    return float(found[1])


def test_the_unit_is_hardened(tmp_path: Path) -> None:
    assert exposure(tmp_path) <= 1.5
    assert exposure(tmp_path, SERVICE.replace("CapabilityBoundingSet=\n", "")) > 1.5


# ---- the unit: probes in its sandbox


@pytest.fixture
def _sandbox() -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    program("systemd-analyze", "systemd")


# Prints the verdict of each probe, given as JSON.
CHECK_ALL = """
import asyncio, json, sys
from svcnode.probes import make_probe
from svcnode.probes.run import run_check

async def check(probe):
    verdict, _ = await run_check(probe, 30.0)
    return verdict.outcome.value, str(verdict.code)

async def main():
    probes = [make_probe(config) for config in json.loads(sys.argv[1])]  # loads the drivers
    print(json.dumps(await asyncio.gather(*map(check, probes))))

asyncio.run(main())
"""
NOT_CHECKED = {"exec", "heartbeat"}
HOST_KINDS = {"disk", "file", "sqlite"}
# Whose result depends on the machine of the tests, but not on the sandbox.
OTHER_PROBES = {
    "clock": "clock:",
    "icmp": "icmp:127.0.0.1",
    "systemd": "systemd:svcnode",
    "http+unix": "http+unix:///run/missing.sock",
    "ethereum+unix": "ethereum+unix:///run/missing.sock",
    "jsonrpc+unix": {"url": "jsonrpc+unix:///run/missing.sock", "method": "eth_chainId"},
}


def _sandboxed(unit: Path = UNITS / "svcnode.service") -> list[str]:
    return [*SANDBOX, str(unit)]


def verdicts(probes: Sequence[Any], folder: Path, prefix: Sequence[str] = ()) -> list[list[str]]:
    ended = run_command([*prefix, sys.executable, "-c", CHECK_ALL, json.dumps(probes)], folder)
    assert ended.returncode == 0, ended.stderr
    checked: list[list[str]] = json.loads(ended.stdout)
    return checked


def unreachable_probes() -> list[dict[str, Any]]:
    """One for each kind that connects: to a port without a server, by name."""
    logins = dict.fromkeys(("mysql", "mariadb", "amqp", "amqps"), "me:password@")
    paths = {"redis+sentinel": "/mymaster", "dns": "/example.org"}
    schemes = [scheme for scheme in KINDS if scheme not in NOT_CHECKED | HOST_KINDS | OTHER_PROBES.keys()]
    urls = {scheme: f"{scheme}://{logins.get(scheme, '')}localhost:1{paths.get(scheme, '')}" for scheme in schemes}
    required: dict[str, dict[str, Any]] = {"jsonrpc": {"method": "eth_chainId"}, "metrics": {"require": ["up == 1"]}}
    return [{"url": url, **required.get(scheme.partition("+")[0], {})} for scheme, url in urls.items()]


def host_probes(folder: Path) -> list[Any]:
    database = folder / "app.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE blocks (number INTEGER)")
    connection.close()
    return [f"file:{ROOT}/README.md", "disk:/", {"url": f"disk:{folder}", "write": True}, f"sqlite:{database}"]


@pytest.mark.usefixtures("_sandbox")
def test_every_kind_of_probe_but_exec_works_in_the_sandbox(tmp_path: Path) -> None:
    """PostgreSQL's driver loads a library, rediss has TLS; the other kinds get as far as they do outside of it."""
    certificate = make_certificate(tmp_path)
    with ExitStack() as stack:
        postgresql = stack.enter_context(PostgresServer(tmp_path / "postgresql"))
        redis = stack.enter_context(RedisServer(tmp_path / "redis", certificate=certificate))
        working = [*host_probes(tmp_path), postgresql.url, {"url": redis.url, "ca": str(certificate.certificate)}]
        unreachable = unreachable_probes()
        probes = [*working, *unreachable, *OTHER_PROBES.values()]
        outside, inside = verdicts(probes, tmp_path), verdicts(probes, tmp_path, _sandboxed())
    assert inside == outside
    assert [outcome for outcome, _ in outside[: len(working)]] == ["ready"] * len(working)
    assert len(set(map(tuple, outside[len(working) : -len(OTHER_PROBES)]))) == 1, "all are refused"
    assert inside[len(working) + len(unreachable)][0] != "unknown", "the state of the clock can be read"


@pytest.mark.usefixtures("_sandbox")
def test_the_stand_in_for_the_sandbox_restricts(tmp_path: Path) -> None:
    """Otherwise the test before would prove nothing."""
    tightened_unit = tmp_path / "tightened.service"
    for line, tightened, probe in (
        ("ProtectSystem=full", "ProtectSystem=strict", "disk:/"),
        ("SystemCallFilter=adjtimex", "#SystemCallFilter=adjtimex", "clock:"),
        ("SystemCallFilter=~@privileged", "SystemCallFilter=~connect @privileged", "tcp://127.0.0.1:1"),
    ):
        assert line in SERVICE
        tightened_unit.write_text(SERVICE.replace(line, tightened))
        assert verdicts([probe], tmp_path, _sandboxed(tightened_unit)) != verdicts([probe], tmp_path)
