"""The clients over real sockets: our nodes, other nodes, and servers that are not nodes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import svcnode
from svcnode import (
    AsyncClient,
    BackingService,
    Client,
    ClientError,
    Health,
    Identity,
    ServiceNotFoundError,
    Status,
    UnexpectedResponseError,
    UnreachableError,
    VersionIgnoredError,
)
from svcnode.client import parse
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from tests.support.backends import (
    Backend,
    HttpBackend,
    Peer,
    ProxyBackend,
    close,
    http_response,
    open_file_count,
    reset,
    sending,
    server_tls,
    unresponsive,
)
from tests.support.certificates import make_certificate
from tests.support.fake_nodes import FakeNode, FakeNodes
from tests.support.http_server import becomes_true, running_server
from tests.support.node_cases import worked_example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode import Node

ODD_ID = "a/b ?%#é..;=+"
IDENTITY = b'{"node_name":"n","spec_version":"v0.0.1","node_version":"v1"}'


@contextmanager
def node_url(node: Node | None = None, **options: Any) -> Iterator[str]:
    with running_server(node or worked_example(), **options) as running:
        host, port = running.address
        yield f"{host}:{port}"


def error_of(client: Any) -> ClientError:
    with client, pytest.raises(ClientError) as caught:
        client.identity()
    return caught.value


# ---- our node


def test_all_four_operations_return_typed_values() -> None:
    node = worked_example()
    node.register(ODD_ID, name="Odd", description="").down("no reason")
    with node_url(node) as url, Client(url) as client:
        assert client.identity() == Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
        assert client.health() is Health.PARTIAL
        services = client.services()
        assert services[0] == BackingService(
            id="db", name="Ledger database", description="Holds the ledger", status=Status.UP
        )
        assert [service.status for service in services] == [Status.UP, Status.DOWN, Status.INITIALIZING, Status.DOWN]
        healths = [client.service_health(service.id) for service in services]
        assert healths == [Health.HEALTHY, Health.UNHEALTHY, Health.PARTIAL, Health.UNHEALTHY]
        assert client.deviations == ()


def test_the_version_is_verified_once_and_a_node_that_ignores_it_is_an_error_of_every_operation() -> None:
    """The interface's health has no body: only the identity tells which version answered."""
    with FakeNodes({"n": FakeNode()}) as nodes:
        with Client(nodes.url("n"), version="0.0.1") as client:
            assert [client.health() for _ in range(3)] == [Health.HEALTHY] * 3
        assert nodes.response_count == 4
        for operation in ("health", "identity", "services"):
            with Client(nodes.url("n"), version="v9.9.9") as client, pytest.raises(VersionIgnoredError) as caught:
                getattr(client, operation)()
            assert caught.value.code is ReasonCode.NOT_SUPPORTED


def test_a_404_for_a_listed_id_is_about_the_service_whatever_its_body() -> None:
    """The fake node has no service health: its 404 says only "Not found"."""
    with FakeNodes({"n": FakeNode()}) as nodes, Client(nodes.url("n")) as client:
        with pytest.raises(UnexpectedResponseError):
            client.service_health("db")
        client.services()
        with pytest.raises(ServiceNotFoundError):
            client.service_health("db")


def test_the_prefix_can_be_set_and_a_wrong_one_is_an_error() -> None:
    with node_url(prefixes=("/eigen",)) as url:
        with Client(url, prefix="/eigen") as client:
            assert client.health() is Health.PARTIAL
        error = error_of(Client(url))
        assert (error.code, error.url) == (ReasonCode.NOT_FOUND, f"http://{url}/svc/node")


# ---- TLS


def test_a_self_signed_certificate_is_trusted_only_with_ca(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with node_url(tls=server_tls(made)) as address:
        with Client(f"https://{address}", ca=made.certificate) as client:
            assert client.health() is Health.PARTIAL
        error = error_of(Client(f"https://{address}"))
        assert isinstance(error, UnreachableError)
        assert error.code is ReasonCode.TLS_UNTRUSTED


# ---- no server, or another one


@pytest.mark.parametrize(
    "script", [close, reset, sending(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")], ids=["close", "reset", "body"]
)
def test_a_connection_that_ends_early_is_unreachable(script: Any) -> None:
    with Backend(script) as backend:
        error = error_of(Client(backend.address))
    assert (type(error), error.code) == (UnreachableError, ReasonCode.CONNECTION_CLOSED)


def responding_once(peer: Peer) -> None:
    """Closes the connection at the second request, as a node that had found it idle."""
    peer.read_until(b"\r\n\r\n")
    peer.send(http_response(200))
    peer.read_until(b"\r\n\r\n")
    close(peer)


def test_an_idle_connection_that_the_node_has_closed_is_replaced() -> None:
    with Backend(responding_once) as backend, Client(backend.address) as client:
        assert [client.health(), client.health()] == [Health.HEALTHY] * 2
        assert backend.connection_count == 2


def greeting(peer: Peer) -> None:
    """Sends first, as many servers do, and then waits for a valid request."""
    peer.send(b"SSH-2.0-Something\r\n")
    peer.read_to_end()


def test_another_protocol_is_an_error_at_once() -> None:
    with Backend(greeting) as backend:
        error = error_of(Client(backend.address, timeout=60))
    assert isinstance(error, UnexpectedResponseError)
    assert (error.code, error.url) == (ReasonCode.PROTOCOL_ERROR, f"http://{backend.address}")


def endless_interim(peer: Peer) -> None:
    """Answers the first request; sends interim responses without end to the next one."""
    peer.read_until(b"\r\n\r\n")
    peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    peer.read_until(b"\r\n\r\n")
    while True:
        peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000)


def test_endless_interim_responses_are_an_error_before_the_timeout() -> None:
    with Backend(endless_interim) as backend, Client(backend.address, timeout=60) as client:
        assert client.health() is Health.HEALTHY
        with pytest.raises(UnexpectedResponseError, match="256 KiB"):
            client.health()
        assert backend.connection_count == 1


def test_a_redirect_is_not_followed() -> None:
    with HttpBackend(http_response(302, b"", Location="/svc/node/")) as backend:
        error = error_of(Client(backend.address))
        with Client(backend.address) as client, pytest.raises(UnexpectedResponseError):
            client.service_health("..")
    assert [request.target for request in backend.requests] == ["/svc/node", "/svc/node/services/%2E%2E/health"]
    assert (type(error), error.code) == (UnexpectedResponseError, ReasonCode.REDIRECTED)


def test_an_endless_body_is_an_error() -> None:
    def endless(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.send(b"x" * 65536)

    with Backend(endless) as backend:
        error = error_of(Client(backend.address))
    assert isinstance(error, UnexpectedResponseError)
    assert "8 MiB" in error.problem


def test_an_error_does_not_keep_the_body_in_memory() -> None:
    """The traceback keeps frames alive, and a watch collects errors for days."""

    async def request() -> None:
        async with AsyncClient(backend.address) as client:
            await client.health()

    with HttpBackend(http_response(200, "x" * 9_000_000)) as backend, pytest.raises(UnexpectedResponseError) as raised:
        asyncio.run(request())
    kept = [one for frame, _ in traceback.walk_tb(raised.tb) for one in frame.f_locals.values()]
    assert not any(len(one) for one in kept if isinstance(one, bytearray))


def services_response(services: list[dict[str, str]]) -> bytes:
    return http_response(200, json.dumps({"services": services}))


def test_the_limit_of_a_response_can_be_set() -> None:
    with HttpBackend(services_response([{"id": "x" * 2000}])) as backend:
        with Client(backend.address, max_response="4KiB") as client:
            assert [len(service.id) for service in client.services()] == [2000]
        with Client(backend.address, max_response="1KiB") as client, pytest.raises(UnexpectedResponseError):
            client.services()
    for size in ("0KiB", "much", 5):
        with pytest.raises(InvalidValueError):
            Client(backend.address, max_response=cast("Any", size))


def test_a_large_response_is_parsed_within_the_timeout_and_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end, parse_json = threading.Event(), parse._parse_json

    def hanging(response: parse.NodeResponse, *arguments: Any) -> object:
        may_end.wait(10.0)
        return parse_json(response, *arguments)

    async def request() -> None:
        async with AsyncClient(backend.address, timeout=0.5) as client:
            await client.services()

    monkeypatch.setattr(parse, "_parse_json", hanging)
    services = [{"id": f"{number}", "description": "x" * 1000} for number in range(100)]
    with HttpBackend(services_response(services)) as backend:
        try:
            with pytest.raises(UnreachableError) as raised:
                asyncio.run(request())
        finally:
            may_end.set()
    assert raised.value.code == ReasonCode.TIMEOUT


# ---- time


def drip(peer: Peer) -> None:
    """A head without end, with a few bytes every 20 ms."""
    peer.read_until(b"\r\n\r\n")
    peer.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.send(b"X: y\r\n")
        time.sleep(0.02)


@pytest.mark.parametrize("script", [unresponsive, drip])
def test_the_timeout_is_for_the_operation_as_a_whole(script: Any) -> None:
    with Backend(script) as backend:
        began_s = time.monotonic()
        error = error_of(Client(backend.address, timeout="300ms"))
        assert time.monotonic() - began_s >= 0.3
    assert isinstance(error, UnreachableError)
    assert (error.code, error.url) == (ReasonCode.TIMEOUT, f"http://{backend.address}/svc/node")


def test_names_that_hang_do_not_delay_other_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()
    resolve = socket.getaddrinfo

    def hang(host: Any, *arguments: Any, **options: Any) -> Any:
        if b"hangs" in (host if isinstance(host, bytes) else host.encode()):
            released.wait(60)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def request_all(url: str) -> list[object]:
        hanging = [AsyncClient(f"hangs-{number}.invalid", timeout=60) for number in range(40)]
        async with AsyncClient(url, timeout=60) as client, contextlib.AsyncExitStack() as stack:
            for one in hanging:
                await stack.enter_async_context(one)
            requests = [asyncio.ensure_future(one.health()) for one in hanging]
            await asyncio.sleep(0)
            health = await client.health()
            assert not any(request.done() for request in requests)
            released.set()
            return [health, *await asyncio.gather(*requests, return_exceptions=True)]

    with node_url() as url, asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
        first, *others = runner.run(request_all(url.replace("127.0.0.1", "localhost")))
    assert first is Health.PARTIAL
    assert {type(one) for one in others} == {UnreachableError}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"url": "xn--zz..example"}, "URL"),
        ({"prefix": 5}, "prefix"),
        ({"version": 1}, "version"),
        ({"retries": "3"}, "retries"),
        ({"retries": True}, "retries"),
    ],
)
def test_an_invalid_option_is_an_error_at_once(options: dict[str, Any], key: str) -> None:
    """tests/wording has the others."""
    for client in (Client, AsyncClient):
        with pytest.raises(InvalidValueError, match=key):
            client(**{"url": "h", **options})


def test_connecting_is_retried_only_with_retries_and_a_request_is_never_sent_twice() -> None:
    """A node that starts to listen later is found by a client with retries."""
    with Backend(close) as backend:
        assert isinstance(error_of(Client(backend.address, retries=5)), UnreachableError)
        assert backend.connection_count == 1
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*listener.getsockname())
        assert isinstance(error_of(Client(address)), UnreachableError)
        timer = threading.Timer(0.15, listener.listen)
        timer.start()
        server = threading.Thread(target=_respond_once, args=(listener,))
        server.start()
        with Client(address, retries=8, timeout=60) as client:
            assert client.health() is Health.HEALTHY
        timer.join()
        server.join()


def _respond_once(listener: socket.socket) -> None:
    def is_listening() -> bool:
        return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    assert becomes_true(is_listening)
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(http_response(200))
        connection.recv(65536)


# ---- requests and secrets


def test_a_request_has_a_user_agent_no_body_and_no_cookie_and_an_encoding_it_does_not_accept_is_a_deviation() -> None:
    encoded = {"Content_Type": "application/json", "Content_Encoding": "gzip"}
    answer = http_response(200, gzip.compress(IDENTITY), Set_Cookie="a=b", **encoded)
    with HttpBackend(answer) as backend, Client(backend.address) as client:
        assert client.identity().node_name == "n"
        assert client.identity().node_name == "n"
        (deviation,) = client.deviations  # once
        assert " gzip, " in deviation
    last = backend.last_request
    assert (last.method, last.target, last.body) == ("GET", "/svc/node", b"")
    assert last.headers["user-agent"] == f"svcnode/{svcnode.__version__}"
    assert last.headers["accept-encoding"] == "identity"
    assert last.headers.keys().isdisjoint({"authorization", "cookie"})


def test_a_login_is_sent_and_redacted() -> None:
    with HttpBackend(lambda received: http_response(200, json.dumps(received.headers))) as backend:
        client = Client(f"bob:s3cr3t-word@{backend.address}")
        error = error_of(client)
    assert backend.last_request.headers["authorization"] == "Basic Ym9iOnMzY3IzdC13b3Jk"
    for text in (str(error), repr(error), repr(client), client.url):
        assert "s3cr3t" not in text
        assert "Ym9iOnMzY3IzdC13b3Jk" not in text


def test_proxies_in_the_environment_are_used_only_with_trust_env(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpBackend(http_response(206)) as node, ProxyBackend() as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
        monkeypatch.delenv("no_proxy", raising=False)
        with Client(node.address) as client:
            assert client.health() is Health.PARTIAL
        assert proxy.requests == []
        with Client(node.address, trust_env=True) as client:
            assert client.health() is Health.PARTIAL
        assert len(proxy.requests) == 1


# ---- the synchronous client


def test_the_client_reuses_its_connection_and_works_inside_a_running_loop_and_from_many_threads() -> None:
    async def request(client: Client) -> list[Health]:
        client.health()
        return await asyncio.gather(*(asyncio.to_thread(client.health) for _ in range(20)))

    with running_server(worked_example()) as running, Client("{}:{}".format(*running.address)) as client:
        for _ in range(5):
            client.identity()
            client.services()
        assert running.count() == 1
        assert asyncio.run(request(client)) == [Health.PARTIAL] * 20


def test_a_closed_client_raises_and_one_without_references_ends_its_thread() -> None:
    with node_url() as url:
        with Client(url) as client:
            client.health()
        with pytest.raises(RuntimeError):
            client.health()
        client.close()
        before = threading.active_count()
        client = Client(url)
        client.health()
        assert threading.active_count() == before + 1
        del client
        gc.collect()
        assert becomes_true(lambda: threading.active_count() == before)


def test_closing_from_another_thread_ends_a_running_operation() -> None:
    with Backend(unresponsive) as backend:
        client = Client(backend.address, timeout=60)

        def close_when_connected() -> None:
            assert becomes_true(lambda: backend.connection_count == 1)
            client.close()

        closer = threading.Thread(target=close_when_connected)
        closer.start()
        with pytest.raises(RuntimeError):
            client.health()
        closer.join()


def run_program(program: str) -> str:
    """The output of a program. Newer Pythons warn about a fork beside threads; a child that hangs is ended."""
    prelude = "import os, signal; os.register_at_fork(after_in_child=lambda: signal.alarm(50))\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", prelude + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


NO_DESCRIPTORS = """
import resource
from svcnode import Client, UnreachableError

client, taken = Client("127.0.0.1:1"), []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for free in (0, 1, 9):
    for _ in range(free):
        os.close(taken.pop())
    try:
        client.health()
    except UnreachableError as error:
        print(error.code)
client.close()
"""


def test_without_file_descriptors_an_operation_fails_and_can_be_repeated() -> None:
    exhausted = ReasonCode.RESOURCE_EXHAUSTED
    assert run_program(NO_DESCRIPTORS).split() == [exhausted, exhausted, ReasonCode.CONNECTION_REFUSED]


def test_without_threads_an_operation_fails_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Client("127.0.0.1:1") as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(UnreachableError) as first:
                client.health()
        with pytest.raises(UnreachableError) as second:
            client.health()
    assert (first.value.code, second.value.code) == (ReasonCode.RESOURCE_EXHAUSTED, ReasonCode.CONNECTION_REFUSED)


# ---- other processes and other loops


def responding(peer: Peer) -> None:
    """Answers every request on one connection."""
    while True:
        peer.read_until(b"\r\n\r\n")
        peer.send(http_response(200))


FORKING = """
import gc, sys, threading
from concurrent.futures import ThreadPoolExecutor
from svcnode import Client

client, closed = Client({url!r}, timeout=50, ca={ca!r}), Client({url!r})
closed.close()
client.health()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    print("parent:", client.health().name)
    client.close()
    sys.exit()
"""
CLOSED = """
try:
    closed.health()
except RuntimeError as error:
    print(type(error).__name__)
"""
MANY_THREADS = """
with ThreadPoolExecutor(8) as pool:
    print(*set(pool.map(lambda _: client.health().name, range(8))))
assert [one.name for one in threading.enumerate()].count("svcnode client") == 1
client.close()
"""


@pytest.mark.parametrize(
    ("in_child", "expected", "connections", "is_tls"),
    [
        ("client.health(); os.fork() and os.wait(); print(client.health().name)", "HEALTHY\nHEALTHY\n", 3, False),
        ("print(client.health().name); del client; gc.collect()", "HEALTHY\n", 2, True),
        ("client.close()", "", 1, False),
        pytest.param(CLOSED, "RuntimeError\n", 1, False, id="closed before"),
        pytest.param(MANY_THREADS, "HEALTHY\n", None, False, id="from many threads"),
    ],
)
def test_a_forked_process_uses_its_own_connections(
    in_child: str, expected: str, connections: int | None, is_tls: bool, tmp_path: Path
) -> None:
    made = make_certificate(tmp_path)
    with Backend(responding, tls=server_tls(made) if is_tls else None) as backend:
        url = f"{'https' if is_tls else 'http'}://{backend.address}"
        program = FORKING.format(url=url, ca=str(made.certificate)) + in_child
        assert run_program(program) == f"{expected}parent: HEALTHY\n"
        assert connections in {None, backend.connection_count}


def test_a_loop_on_both_sides_of_a_fork_shares_no_connection() -> None:
    program = """
import asyncio
from svcnode import AsyncClient

client, runner = AsyncClient({address!r}), asyncio.Runner()
runner.run(client.health())
is_parent = bool(os.fork())
assert not is_parent or os.wait()[1] == 0
print(runner.run(client.health()).name, flush=True)
if not is_parent:
    os._exit(0)
runner.run(client.aclose())
runner.close()
"""
    with Backend(responding) as backend:
        assert run_program(program.format(address=backend.address)) == "HEALTHY\nHEALTHY\n"
        assert backend.connection_count == 2


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the loops end before the client is closed
def test_consecutive_loops_can_use_a_client_without_leaks() -> None:
    def leaked() -> int:
        gc.collect()
        return open_file_count() - before

    with Backend(responding) as backend:
        before = open_file_count()
        client = AsyncClient(backend.address)
        for count in (1, 2, 3):
            assert asyncio.run(client.health()) is Health.HEALTHY
            assert backend.connection_count == count
            assert becomes_true(lambda: leaked() == 2)  # both ends of one connection
        asyncio.run(client.aclose())
        assert becomes_true(lambda: leaked() == 0)


def test_alternating_loops_reuse_their_connections_until_the_client_is_closed() -> None:
    with Backend(responding) as backend, asyncio.Runner() as one, asyncio.Runner() as other:
        client = AsyncClient(backend.address)
        for runner in (one, other, one, other):
            assert runner.run(client.health()) is Health.HEALTHY
        assert backend.connection_count == 2
        for runner in (one, other):
            runner.run(client.aclose())
        with pytest.raises(RuntimeError):
            asyncio.run(client.health())


# ---- documentation


def test_the_program_in_the_documentation_works() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ask.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    output = "validator-7\nPARTIAL\ndb Status.UP 200\nindexer Status.DOWN 503\nstorage Status.INITIALIZING 206\n"
    with node_url() as url:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.replace("127.0.0.1:8420", url)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.stdout, done.stderr) == (output, "")
