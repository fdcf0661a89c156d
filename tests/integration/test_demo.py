"""The servers of the demo with real probes, and the whole demo in a process of its own."""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

import pytest

from svcnode.cli.demo.checks import SERVICES, DemoService
from svcnode.cli.demo.scenario import INITIAL_MODES, LOOP_STEPS, STARTUP_STEPS, FaultMode
from svcnode.cli.demo.servers import MAX_REQUEST_BYTES, DemoServer
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from tests.support.commands import svcnode
from tests.support.http_server import becomes_true
from tests.support.processes import is_listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from svcnode.core.model import Verdict

BY_ID = {service.id: service for service in SERVICES}
DEADLINE_S = 60.0


# ---- the servers


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
def test_a_real_probe_reports_the_fault_mode_of_each_server(name: str, mode: FaultMode) -> None:
    async def scenario() -> None:
        service = BY_ID[name]
        async with running_demo(service, mode) as server:
            if mode is FaultMode.UNRESPONSIVE:
                with pytest.raises(TimeoutError):
                    await check(service, server, 0.5)
                return
            started_s = time.monotonic()
            verdict = await check(service, server)
            assert verdict.outcome is OUTCOMES[mode], verdict
            if mode is FaultMode.STOPPED:
                assert verdict.code == ReasonCode.CONNECTION_REFUSED
            assert verdict.code == CODES.get((name, mode), verdict.code)
            assert mode is not FaultMode.SLOW or time.monotonic() - started_s >= 0.3

    asyncio.run(scenario())


def test_a_server_that_stops_closes_its_connections_and_keeps_its_port() -> None:
    async def scenario() -> None:
        service = BY_ID["indexer"]
        async with running_demo(service, FaultMode.UNRESPONSIVE) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /status HTTP/1.1\r\n\r\n")
            await until(lambda: bool(server._connections))
            await server.set_mode(FaultMode.STOPPED)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
            writer.close()
            with pytest.raises(OSError) as caught:
                socket.create_server(("127.0.0.1", server.port))
            assert caught.value.errno == errno.EADDRINUSE, "reserved"
            for mode in (FaultMode.NOT_READY, FaultMode.STOPPED, FaultMode.NONE):
                await server.set_mode(mode)
                await until(lambda: is_listening(server.port) is (mode is not FaultMode.STOPPED))  # noqa: B023
                assert (await check(service, server)).outcome is OUTCOMES[mode]

    asyncio.run(scenario())


@pytest.mark.parametrize("name", list(BY_ID))
def test_an_invalid_request_does_not_affect_other_connections(name: str) -> None:
    requests = [b"\r\n\r\n", b"x y z w\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"x" * (MAX_REQUEST_BYTES + 2)]

    async def scenario() -> None:
        async with running_demo(BY_ID[name], FaultMode.NONE) as server:
            for request in requests:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(request)
                assert (await check(BY_ID[name], server)).outcome is Outcome.READY
                writer.close()

    asyncio.run(scenario())


# ---- the whole demo


class Demo:
    """`svcnode demo` during its `with` block; `lines` are the lines of stdout and stderr."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "svcnode", "demo", *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(self._temporary), **environ},
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

    def request(self, path: str, **headers: str) -> tuple[int, bytes]:
        self.wait_for_log("operator page: ")  # served from then on
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        code, body = response.status, response.read()
        connection.close()
        return code, body

    def wait_for_exit(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._listener.join()
        return code

    def remaining_files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path != self._temporary]


def test_the_demo_changes_and_leaves_no_files(tmp_path: Path) -> None:
    """tests/unit/demo has the whole scenario, in virtual time."""
    with Demo(tmp_path, "--listen", "127.0.0.1:0", "--speed", "8") as demo:
        demo.wait_for_log("started: node demo, services: 5")
        code, page = demo.request("/")
        assert (code, b"<html" in page) == (200, True)
        for step in STARTUP_STEPS:
            demo.wait_for_log(rf"^\d\d:\d\d:\d\d UTC demo    {re.escape(step.text)}$")
        demo.wait_for_log("service cache is Up")
        assert demo.request("/svc/node/health")[0] in (200, 206, 503)
        (explain,) = (line.split()[1:] for line in tuple(demo.lines) if "svcnode explain" in line)
        ended = svcnode(*explain, folder=tmp_path)
        assert ended.returncode in (0, 1, 3), ended.stderr
        assert "indexer" in ended.stdout.lower()
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait_for_exit() == 0
    assert demo.remaining_files() == []
    assert not any("Traceback" in line or "error" in line for line in demo.lines)


def test_beyond_loopback_the_demo_prints_a_random_token(tmp_path: Path) -> None:
    variables = {"SVCNODE_SERVER_LISTEN": "0.0.0.0:0", "SVCNODE_NODE_NAME": "validator-8"}
    with Demo(tmp_path, **variables) as demo:
        token = demo.wait_for_log(r" ([0-9a-f]{32})\)")[1]
        demo.wait_for_log("started: node validator-8")
        assert demo.request("/")[0] == 401
        assert demo.request("/details", Authorization=f"Bearer {token}")[0] == 200
        assert demo.request("/svc/node/health")[0] in (200, 206)
        demo.process.send_signal(signal.SIGTERM)
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
