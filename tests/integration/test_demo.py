"""The servers of the demo with real probes, and the whole demo in a process of its own."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.demo.scenario import INITIAL_MODES, LOOP_STEPS, STARTUP_STEPS, FaultMode
from svcnode.demo.servers import MAX_REQUEST_BYTES, DemoServer
from svcnode.demo.services import SERVICES, DemoService
from svcnode.probes import make_probe
from tests.support.http_server import LOOPS, becomes_true
from tests.support.processes import is_listening, run_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from svcnode.core.model import Verdict

BY_ID = {service.id: service for service in SERVICES}
SPEED = 8
DEADLINE_S = 40.0
LISTENING = "0A"


# ---- the servers


def run(loop_name: str, scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(scenario)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  a condition of the system, without an event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running_demo(service: DemoService, mode: FaultMode) -> AsyncIterator[DemoServer]:
    server = service.server_class()
    try:
        await server.set_mode(mode)
        yield server
    finally:
        server.close()
        await until(lambda: not is_listening(server.port))


async def check(service: DemoService, server: DemoServer, timeout_s: float = DEADLINE_S) -> Verdict:
    return await asyncio.wait_for(make_probe(service.config_table(server.port, 1.0)["probe"]).check(), timeout_s)


FAULT_MODES = sorted(
    {(name, mode) for name, mode in INITIAL_MODES.items()}
    | {(step.server, step.mode) for step in (*STARTUP_STEPS, *LOOP_STEPS)},
    key=str,
)
OUTCOMES = {
    FaultMode.NONE: Outcome.READY,
    FaultMode.SLOW: Outcome.READY,
    FaultMode.NOT_READY: Outcome.NOT_READY,
    FaultMode.STOPPED: Outcome.FAILED,
}
CODES = {
    ("chain", FaultMode.NOT_READY): ReasonCode.SYNCING,
    ("indexer", FaultMode.NOT_READY): ReasonCode.STARTING,
    ("storage", FaultMode.NOT_READY): ReasonCode.TOO_FEW_PEERS,
}


@pytest.mark.parametrize(("name", "mode"), FAULT_MODES, ids=lambda value: getattr(value, "name", value))
def test_a_real_probe_reports_the_fault_mode_of_each_server(name: str, mode: FaultMode, loop_name: str) -> None:
    async def scenario() -> None:
        service = BY_ID[name]
        async with running_demo(service, mode) as server:
            started_s = time.monotonic()
            if mode is FaultMode.UNRESPONSIVE:
                with pytest.raises(TimeoutError):
                    await check(service, server, 0.5)
                return
            verdict = await check(service, server)
            assert verdict.outcome is OUTCOMES[mode], verdict
            if mode is FaultMode.STOPPED:
                assert verdict.code == ReasonCode.CONNECTION_REFUSED
            assert verdict.code == CODES.get((name, mode), verdict.code)
            assert mode is not FaultMode.SLOW or time.monotonic() - started_s >= 0.3

    run(loop_name, scenario())


def test_a_server_keeps_its_port_when_it_stops_and_starts(loop_name: str) -> None:
    async def scenario() -> None:
        service = BY_ID["indexer"]
        async with running_demo(service, FaultMode.NONE) as server:
            for mode in (FaultMode.STOPPED, FaultMode.NOT_READY, FaultMode.STOPPED, FaultMode.NONE, FaultMode.STOPPED):
                await server.set_mode(mode)
                await until(lambda: is_listening(server.port) is (mode is not FaultMode.STOPPED))  # noqa: B023
                assert (await check(service, server)).outcome is OUTCOMES[mode]

    run(loop_name, scenario())


def test_while_a_server_is_stopped_its_port_stays_reserved(loop_name: str) -> None:
    async def scenario() -> None:
        async with running_demo(BY_ID["indexer"], FaultMode.STOPPED) as server:
            with pytest.raises(OSError) as caught:
                socket.create_server(("127.0.0.1", server.port))
            assert caught.value.errno == errno.EADDRINUSE

    run(loop_name, scenario())


def test_a_server_that_stops_closes_its_connections(loop_name: str) -> None:
    async def scenario() -> None:
        async with running_demo(BY_ID["indexer"], FaultMode.UNRESPONSIVE) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /status HTTP/1.1\r\n\r\n")
            await until(lambda: bool(server._connections))
            await server.set_mode(FaultMode.STOPPED)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
            writer.close()

    run(loop_name, scenario())


@pytest.mark.parametrize("name", list(BY_ID))
@pytest.mark.parametrize(
    "request_bytes",
    [b"\r\n\r\n", b"x y z w\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"x" * (MAX_REQUEST_BYTES + 2)],
    ids=["empty", "no HTTP", "not ASCII", "too long"],
)
def test_an_invalid_request_does_not_affect_other_connections(name: str, request_bytes: bytes, loop_name: str) -> None:
    async def scenario() -> None:
        async with running_demo(BY_ID[name], FaultMode.NONE) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request_bytes)
            assert (await check(BY_ID[name], server)).outcome is Outcome.READY
            writer.close()

    run(loop_name, scenario())


# ---- the whole demo


class Demo:
    """`svcnode demo` during its `with` block; `lines` are the lines of stdout and stderr."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "svcnode", "demo", *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(self._temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_for_log(self, pattern: str, within_s: float = DEADLINE_S) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def has_match() -> bool:
            found.extend(match for line in tuple(self.lines) if (match := re.search(pattern, line)))
            return bool(found)

        assert becomes_true(has_match, within_s), "\n".join(self.lines)
        return found[0]

    @property
    def port(self) -> int:
        return int(self.wait_for_log(r"Open  http://.*?:(\d+)/")[1])

    def request(self, path: str) -> tuple[int, bytes]:
        self.wait_for_log("operator page: ")  # served from then on
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        connection.request("GET", path)
        response = connection.getresponse()
        code, body = response.status, response.read()
        connection.close()
        return code, body

    def ports(self) -> set[int]:
        """The ports that the process listens on, from the kernel."""
        files = map(_target, Path(f"/proc/{self.process.pid}/fd").iterdir())
        sockets = {file.removeprefix("socket:[").removesuffix("]") for file in files}
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == LISTENING and row[9] in sockets}

    def wait_for_exit(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._listener.join()
        return code

    def remaining_files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path != self._temporary]


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # closed in the meantime
        return ""


def test_the_demo_shows_every_status_and_leaves_no_files_or_listeners(tmp_path: Path) -> None:
    with Demo(tmp_path, "--listen", "127.0.0.1:0", "--speed", str(SPEED)) as demo:
        demo.wait_for_log("started: node demo, services: 5")
        statuses: dict[str, list[str]] = {name: [] for name in BY_ID}
        healths: list[int] = []

        def has_shown_all() -> bool:
            code, _ = demo.request("/svc/node/health")
            _, body = demo.request("/svc/node/services")
            _append_change(healths, code)
            for service in json.loads(body)["services"]:
                _append_change(statuses[service["id"]], service["status"])
            return (
                {*healths} == {200, 206, 503}
                and healths[-1] == 200
                and all(
                    _has_sequence(statuses[name], "Initializing", "Up", "Down", "Initializing", "Up")
                    for name in ("chain", "indexer")
                )
                and all(_has_sequence(statuses[name], "Up", "Initializing", "Up") for name in ("storage", "cache"))
                and _has_sequence(statuses["peer"], "Up", "Down", "Up")
            )

        assert becomes_true(has_shown_all, DEADLINE_S), (statuses, healths, demo.lines)
        for step in (*STARTUP_STEPS, *LOOP_STEPS):
            assert re.search(rf"^\d\d:\d\d:\d\d demo    {re.escape(step.text)}$", "\n".join(demo.lines), re.MULTILINE)
        used = demo.ports()
        assert len(used) >= 5, "the node and its servers, of which one may be stopped"
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait_for_exit() == 0
    assert not any(map(is_listening, used))
    assert demo.remaining_files() == []
    assert not any("Traceback" in line or "error" in line for line in demo.lines)


def _append_change(values: list[Any], value: object) -> None:
    if not values or values[-1] != value:
        values.append(value)


def _has_sequence(values: list[str], *wanted: str) -> bool:
    """Whether the values contain these in this order, with any others between them."""
    rest = iter(values)
    return all(status in rest for status in wanted)


def test_the_printed_commands_work(tmp_path: Path) -> None:
    with Demo(tmp_path, "--listen", "127.0.0.1:0", "--speed", "2") as demo:
        code, page = demo.request("/")
        assert code == 200
        assert b"<html" in page
        demo.wait_for_log("service cache is Up")
        assert demo.request("/svc/node/health")[0] in (200, 206)
        (explain,) = (line.split() for line in tuple(demo.lines) if "svcnode explain" in line)
        ended = run_command([sys.executable, "-m", *explain], tmp_path)
        assert ended.returncode in (0, 1, 3), ended.stderr
        assert "indexer" in ended.stdout.lower()


def test_a_given_port_in_use_is_an_error_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with Demo(tmp_path, "--listen", f"127.0.0.1:{port}") as demo:
            assert demo.wait_for_exit() == 1
            (line,) = demo.lines
            assert f"http://127.0.0.1:{port}: " in line


def test_beyond_loopback_the_demo_prints_a_random_token(tmp_path: Path) -> None:
    with Demo(tmp_path, "--listen", "0.0.0.0:0") as demo:
        token = demo.wait_for_log(r" ([0-9a-f]{32})\)")[1]
        demo.wait_for_log("started: node demo")
        assert demo.request("/")[0] == 401
        connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=DEADLINE_S)
        connection.request("GET", "/details", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == 200
        connection.close()
        assert demo.request("/svc/node/health")[0] in (200, 206)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_stops_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    with Demo(tmp_path, "--listen", "127.0.0.1:0") as demo:
        demo.wait_for_log("started: node demo")
        demo.process.send_signal(number)
        assert demo.wait_for_exit() == 0
        assert demo.remaining_files() == []


def test_the_demo_stops_when_the_reader_of_its_output_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "svcnode", "demo", "--listen", "127.0.0.1:0", "--speed", "20"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(DEADLINE_S) in (0, 1)


def test_the_demo_stops_when_its_output_cannot_be_written(tmp_path: Path) -> None:
    # Enough for the introduction and a few lines of the scenario.
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)); "
        "from svcnode.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    with (tmp_path / "output").open("wb") as output:
        ended = subprocess.run(
            [sys.executable, "-B", "-c", script, "demo", "--listen", "127.0.0.1:0", "--speed", "20"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.endswith(f": {os.strerror(errno.EFBIG).lower()}\n")
    assert "Traceback" not in ended.stderr
    assert b" demo    " in (tmp_path / "output").read_bytes()
