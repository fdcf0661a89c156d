"""Checks in a batch: the same verdicts as the same checks in tasks, from the same servers; and nothing stays open."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.url import Url
from svcnode.net.batch import BatchCheck, BatchPoller
from svcnode.net.connect import TcpEndpoint
from svcnode.net.http_response import MAX_HEAD_BYTES
from svcnode.node.scheduler import ProbeScheduler
from svcnode.probes import make_probe
from svcnode.probes.http import HttpProbe
from svcnode.probes.tcp import TcpProbe
from tests.support import nodes
from tests.support.backends import (
    CONTINUE,
    Backend,
    HttpBackend,
    Peer,
    ReceivedRequest,
    closed_port,
    http_response,
    open_file_count,
    reset_on_data,
    unresponsive,
)
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.network_namespace import SILENT_IPV4, UNROUTED_IPV4, UNROUTED_IPV6, run_in_namespace
from tests.support.probe_assertions import CHECK_TIMEOUT_S, becomes_true, no_free_descriptors, own_connection_count
from tests.support.verdicts import CONNECTION_REFUSED, NO_DESCRIPTORS, READY, failed, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from svcnode.core.model import Evidence, ServiceState, Verdict
    from svcnode.node.node_state import NodeState
    from svcnode.probes.base import Probe
    from tests.support.check_runner import CheckRunner

DISTANT_S = 3600.0


class TaskScheduler(ProbeScheduler):
    """Runs every check in a task."""

    async def __aenter__(self) -> TaskScheduler:
        await super().__aenter__()
        assert self._poller is not None
        self._poller.close()
        self._poller = None
        for runner in self._runners.values():
            runner._batch_check = None
        return self


class Recorder:
    """The verdicts of a node's checks."""

    def __init__(self, node: NodeState) -> None:
        self.verdicts: asyncio.Queue[Verdict] = asyncio.Queue()
        node.subscribe(on_evidence=self._on_evidence)

    def _on_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        self.verdicts.put_nowait(evidence.verdict)

    async def next_verdict(self) -> Verdict:
        return await asyncio.wait_for(self.verdicts.get(), 2 * WAIT_TIMEOUT_S)


def make_node(*probes: Probe, timeout_s: float = WAIT_TIMEOUT_S, **options: Any) -> NodeState:
    node = nodes.make_node()
    for number, probe in enumerate(probes):
        node.register(f"svc-{number}", probe=probe, interval=DISTANT_S, timeout=timeout_s, **options)
    return node


async def verdict_of(
    scheduler_class: type[ProbeScheduler], probe: Probe, *, timeout_s: float = WAIT_TIMEOUT_S, **options: Any
) -> Verdict:
    node = make_node(probe, timeout_s=timeout_s, **options)
    recorder = Recorder(node)
    async with scheduler_class(node):
        return await recorder.next_verdict()


def assert_same_verdict(
    check: CheckRunner,
    url: str,
    *,
    timeout_s: float = WAIT_TIMEOUT_S,
    service: dict[str, Any] | None = None,
    **options: Any,
) -> Verdict:
    """The verdict of the check in a batch, which is that of the check in a task, to the letter."""
    probe = make_probe({"url": url, **options})
    assert probe.batch_check() is not None

    async def main() -> tuple[Verdict, Verdict]:
        in_task = await verdict_of(TaskScheduler, probe, timeout_s=timeout_s, **(service or {}))
        in_batch = await verdict_of(ProbeScheduler, probe, timeout_s=timeout_s, **(service or {}))
        return in_task, in_batch

    in_task, in_batch = check.run(main())
    assert in_task == in_batch
    return in_batch


# ---- the same verdicts


def test_checks_without_a_connection_have_the_verdicts_of_tasks(check: CheckRunner, tmp_path: Path) -> None:
    def scenario(_: object) -> None:
        for address in (UNROUTED_IPV4, f"[{UNROUTED_IPV6}]"):
            verdict = assert_same_verdict(check, f"tcp://{address}:80")
            assert verdict == unknown(ReasonCode.NETWORK_UNREACHABLE)
        verdict = assert_same_verdict(check, f"http://{SILENT_IPV4}:80", timeout_s=CHECK_TIMEOUT_S)
        assert verdict == failed(ReasonCode.CONNECT_TIMEOUT)

    run_in_namespace(tmp_path / "hosts", scenario)
    with closed_port() as port, Backend(reset_on_data) as backend:
        for scheme in ("tcp", "http"):
            assert assert_same_verdict(check, f"{scheme}://127.0.0.1:{port}") == CONNECTION_REFUSED
        assert assert_same_verdict(check, f"http://{backend.address}") == failed(ReasonCode.CONNECTION_CLOSED)


HEADS = [
    http_response(204),
    http_response(301, Location="/elsewhere"),
    http_response(302, Location="https://user:pass@example.com/a?key=1"),
    http_response(308, Location="http://["),
    http_response(401),
    http_response(500, "x" * 100_000),
    CONTINUE + http_response(301, Location="/elsewhere"),
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nbody",
    b"HTTP/1.1 302 Found\nLocation: /elsewhere\n\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nbad",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Trailer: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok",
    b"HTTP/1.1 200 OK\nContent-Length: 20\n\nok",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 20\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 200_000,
    b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 200_000,
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nBad Header: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEAD_BYTES // 6 + 10) + b"\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",  # more than is received at once
    b"HTTP/1.1 200 OK\r\n",
    b"\0\0\0\x04\0\0\0\0\0",  # HTTP/2: SETTINGS
    b"HTTP/1.1 999 What\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"",
]


@pytest.mark.parametrize("response", [HEADS[1], HEADS[6], HEADS[9], HEADS[10]], ids=range(4))
def test_a_response_that_arrives_byte_by_byte_has_the_verdict_of_a_task(check: CheckRunner, response: bytes) -> None:
    def send_byte_by_byte(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in response:
            peer.send(bytes([byte]))

    with Backend(send_byte_by_byte) as backend:
        assert_same_verdict(check, f"http://{backend.address}")


@pytest.mark.parametrize("response", HEADS, ids=range(len(HEADS)))
def test_an_http_check_has_the_verdict_of_a_task(check: CheckRunner, response: bytes) -> None:
    with HttpBackend(response) as backend:
        assert_same_verdict(check, f"http://{backend.address}/health?deep=1")
        first, second = (request.headers for request in backend.requests)
        assert first == second


@pytest.mark.parametrize(
    "options",
    [
        {"status": 503},
        {"status": ["2xx", 301]},
        {"starting_status": 503},
        {"method": "HEAD"},
        {"bearer": "secret-token"},
    ],
    ids=["status", "redirect", "starting", "method", "bearer"],
)
def test_options_have_the_verdict_of_a_task(check: CheckRunner, options: dict[str, Any]) -> None:
    for status in (200, 301, 401, 503):
        with HttpBackend(http_response(status, Location="/new")) as backend:
            assert_same_verdict(check, f"http://{backend.address}", **options)
            assert backend.requests[0] == backend.requests[1]


def test_a_request_that_is_larger_than_a_send_buffer_has_the_verdict_of_a_task(check: CheckRunner) -> None:
    options: dict[str, Any] = {"method": "PUT", "body": "x" * 4_000_000, "headers": {"X-Api-Key": "k1"}}
    with HttpBackend(http_response(200)) as backend:
        assert assert_same_verdict(check, f"http://{backend.address}", **options) == READY
        assert backend.requests[0] == backend.requests[1]


@contextmanager
def listener() -> Iterator[str]:
    """An open port without a thread that accepts: it would need a descriptor too."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"tcp://127.0.0.1:{sock.getsockname()[1]}"


def test_a_check_without_free_descriptors_is_unknown(check: CheckRunner) -> None:
    async def main(probe: Probe) -> Verdict:
        node = make_node(probe)
        recorder = Recorder(node)
        async with ProbeScheduler(node):
            with no_free_descriptors():
                return await recorder.next_verdict()

    with listener() as url:
        # A thread of an earlier test may close a descriptor at the same time.
        assert any(check.run(main(make_probe(url))) == NO_DESCRIPTORS for _ in range(5))


def test_a_scheduler_that_starts_without_free_descriptors_runs_checks_in_tasks(check: CheckRunner) -> None:
    async def main(probe: Probe) -> Verdict:
        node = make_node(probe)
        recorder = Recorder(node)
        with no_free_descriptors():
            scheduler = await ProbeScheduler(node).__aenter__()
        try:
            assert scheduler._poller is None
            return await recorder.next_verdict()
        finally:
            await scheduler.__aexit__(None, None, None)

    with listener() as url:
        assert check.run(main(make_probe(url))) == READY


def test_a_socket_that_is_connected_to_itself_is_refused(check: CheckRunner) -> None:
    async def main(port: int) -> None:
        batch_check = make_probe(f"tcp://127.0.0.1:{port}").batch_check()
        assert batch_check is not None
        with socket.socket() as batch_check.sock:
            batch_check.sock.bind(batch_check.address)
            batch_check.sock.setblocking(False)
            batch_check.sock.connect_ex(batch_check.address)  # from the port that it connects to
            with pytest.raises(ConnectionRefusedError):
                batch_check.connect()

    with closed_port() as port:
        pass
    check.run(main(port))


# ---- nothing stays open


@pytest.mark.parametrize(
    ("url", "all_options"),
    [
        ("tcp://localhost:80", [{}]),
        ("tls://127.0.0.1:443", [{}]),
        ("http://localhost", [{}]),
        ("https://127.0.0.1", [{}]),
        ("tcp://127.0.0.1:80", [{"expect": "x"}, {"send": "x"}]),
        ("http://127.0.0.1", [{"contains": "x"}, {"matches": "x"}, {"json": {"/a": 1}}, {"starting_json": {"/a": 1}}]),
        ("http://127.0.0.1", [{"redirects": 1}, {"fresh": True}, {"http2": True}, {"reuse": True}, {"proxy": "p:1"}]),
    ],
)
def test_a_check_that_needs_more_runs_in_a_task(url: str, all_options: list[dict[str, Any]]) -> None:
    for options in all_options:
        assert make_probe({"url": url, **options}).batch_check() is None


@pytest.mark.parametrize("base", [TcpProbe, HttpProbe])
def test_a_derived_class_is_checked_by_its_own_method(base: type[TcpProbe | HttpProbe]) -> None:
    own = type("OwnProbe", (base,), {})
    url = Url.parse("tcp://127.0.0.1:80" if base is TcpProbe else "http://127.0.0.1:80")
    assert base(url=url).batch_check() is not None
    assert own(url=url).batch_check() is None


@contextmanager
def hanging(count: int) -> Iterator[tuple[Backend, list[Probe]]]:
    with Backend(unresponsive) as backend:
        yield backend, [make_probe(f"http://{backend.address}/{number}") for number in range(count)]


def test_connections_are_closed_when_probing_stops(check: CheckRunner) -> None:
    async def main(backend: Backend, probes: Sequence[Probe]) -> None:
        await asyncio.to_thread(open_file_count)
        files = open_file_count()
        tasks = asyncio.all_tasks()
        async with ProbeScheduler(make_node(*probes)):
            assert await becomes_true(lambda: own_connection_count(backend.port) == len(probes))
            assert asyncio.all_tasks() == tasks
        assert await becomes_true(lambda: open_file_count() <= files)

    with hanging(5) as (backend, probes):
        check.run(main(backend, probes))


def test_checks_that_hang_end_at_their_deadline_and_free_their_slot(check: CheckRunner) -> None:
    async def main(probes: Sequence[Probe]) -> list[Verdict]:
        node = make_node(*probes, timeout_s=0.2)
        recorder = Recorder(node)
        async with ProbeScheduler(node, max_concurrent_checks=1):
            return [await recorder.next_verdict() for _ in probes]

    with hanging(3) as (backend, probes):
        assert check.run(main(probes)) == [failed(ReasonCode.TIMEOUT)] * 3
    assert backend.connection_count == 3


def test_a_copy_of_a_closed_socket_does_not_wake_the_loop_forever(check: CheckRunner) -> None:
    """A process that forked during the check holds such a copy."""

    async def main(backend: Backend, probe: Probe) -> int:
        poller = BatchPoller(asyncio.get_running_loop())
        batch_check = probe.batch_check()
        assert batch_check is not None
        assert poller.start(batch_check, lambda _: None) is None
        assert batch_check.sock is not None
        copy = socket.socket(fileno=os.dup(batch_check.sock.fileno()))
        poller.cancel(batch_check)
        wakeups, poll = 0, poller._epoll.poll
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal wakeups
            wakeups += len(poll(0))

        loop.add_reader(poller._epoll.fileno(), count)
        copy.shutdown(socket.SHUT_RDWR)
        for _ in range(100):
            await asyncio.sleep(0)
        copy.close()
        poller.close()
        return wakeups

    with hanging(1) as (backend, (probe,)):
        assert check.run(main(backend, probe)) <= 2


class BrokenCheck(BatchCheck):
    def on_connected(self) -> None:
        raise LookupError

    def on_data(self, data: bytes) -> None: ...

    def on_closed(self) -> Verdict:
        raise NotImplementedError  # `on_connected` has ended the check

    def on_error(self, exc: OSError) -> Verdict:
        raise NotImplementedError  # the error of `on_connected` is not one of the connection


def test_an_error_in_a_check_is_unknown_and_does_not_end_the_others(
    check: CheckRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(backend: Backend) -> list[Verdict]:
        good = make_probe(f"tcp://{backend.address}")
        broken = make_probe(f"http://{backend.address}")
        endpoint = TcpEndpoint.of("127.0.0.1", backend.port)
        monkeypatch.setattr(HttpProbe, "batch_check", lambda _: BrokenCheck(endpoint))
        node = make_node(broken, good)
        recorder = Recorder(node)
        async with ProbeScheduler(node):
            return [await recorder.next_verdict() for _ in range(2)]

    with Backend(unresponsive) as backend:
        verdicts = check.run(main(backend))
    assert {verdict.code for verdict in verdicts} == {ReasonCode.OK, ReasonCode.PROBE_ERROR}
    assert "probe_error" in [vars(record).get("event") for record in caplog.records]
