"""The clients over real sockets: nodes of ours, nodes of others, and what is no node at all."""

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
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import svcnode
from svcnode import (
    AsyncClient,
    BackingService,
    Client,
    ClientError,
    Health,
    Identity,
    NodeFailedError,
    ServiceNotFoundError,
    Status,
    UnexpectedResponseError,
    UnreachableError,
    VersionNotFoundError,
)
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.core.errors import InvalidValueError
from tests.support.backends import (
    Backend,
    HttpBackend,
    Peer,
    ProxyBackend,
    close,
    closed_port,
    full_backlog,
    http_response,
    open_file_count,
    reset,
    sending,
    server_tls,
    unresponsive,
)
from tests.support.certificates import make_certificate
from tests.support.http_server import becomes_true, running_server
from tests.support.node_cases import worked_example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode import Node

ODD_ID = "a/b ?%#é..;=+"
IDENTITY = b'{"node_name":"n","spec_version":"v0.0.1","node_version":"v1"}'


class AnyClient:
    """The asynchronous client, behind the face of the other one."""

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, **options)

    def __enter__(self) -> AnyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return (lambda *arguments: self._runner.run(found(*arguments))) if callable(found) else found


@pytest.fixture(params=[Client, AnyClient], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextmanager
def node_url(node: Node | None = None, **options: Any) -> Iterator[str]:
    with running_server(node or worked_example(), **options) as running:
        host, port = running.address
        yield f"{host}:{port}"


def refusal(client: Any) -> ClientError:
    with client, pytest.raises(ClientError) as refused:
        client.identity()
    return refused.value


# ---- a node of ours


def test_all_four_operations_have_typed_answers(kind: Any) -> None:
    with node_url() as url, kind(url) as client:
        assert client.identity() == Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1.4.2")
        assert client.health() is Health.PARTIAL
        services = client.services()
        assert services[0] == BackingService(
            id="db", name="Ledger database", description="Holds the ledger", status=Status.UP
        )
        assert [service.status for service in services] == [Status.UP, Status.DOWN, Status.INITIALIZING]
        healths = [client.service_health(service.id) for service in services]
        assert healths == [Health.HEALTHY, Health.UNHEALTHY, Health.PARTIAL]
        assert client.deviations == ()


@pytest.mark.parametrize("odd_id", [ODD_ID, "...", "%2e"])
def test_an_id_may_hold_anything(odd_id: str, kind: Any) -> None:
    node = worked_example()
    node.register(odd_id, name="Odd", description="").down("as told")
    with node_url(node) as url, kind(url) as client:
        assert client.services()[-1].id == odd_id
        assert client.service_health(odd_id) is Health.UNHEALTHY


@pytest.mark.parametrize(("dots", "segment"), [(".", "%2E"), ("..", "%2E%2E")])
def test_dots_that_somebody_else_took_for_an_id_are_not_tidied_away(dots: str, segment: str, kind: Any) -> None:
    with HttpBackend(http_response(503)) as backend, kind(f"http://{backend.address}") as client:
        assert client.service_health(dots) is Health.UNHEALTHY
        assert backend.last_request.target == f"/svc/node/services/{segment}/health"


def test_a_service_that_is_not_there_is_told(kind: Any) -> None:
    with node_url() as url, kind(url) as client, pytest.raises(ServiceNotFoundError, match="services/nope/health"):
        client.service_health("nope")


@pytest.mark.parametrize("version", ["v0.0.1", "0.0.1"])
def test_a_version_can_be_asked_for(version: str, kind: Any) -> None:
    with node_url() as url, kind(url, version=version) as client:
        assert client.health() is Health.PARTIAL


@pytest.mark.parametrize("version", ["v9", "a&b"])
def test_a_version_that_is_not_there_is_told_by_every_operation(version: str, kind: Any) -> None:
    with node_url() as url, kind(url, version=version) as client:
        for ask in (client.identity, client.health, client.services, lambda: client.service_health("db")):
            with pytest.raises(VersionNotFoundError):
                ask()


def test_a_prefix_can_be_chosen_and_a_wrong_one_is_told(kind: Any) -> None:
    with node_url(prefixes=("/eigen",)) as url:
        with kind(url, prefix="/eigen") as client:
            assert client.health() is Health.PARTIAL
        assert "/svc/node; is the prefix right?" in str(refusal(kind(url)))


def test_one_connection_is_kept_for_many_operations(kind: Any) -> None:
    with running_server(worked_example()) as running, kind("{}:{}".format(*running.address)) as client:
        for _ in range(5):
            client.identity()
            client.services()
        assert running.count() == 1


def test_nothing_is_left_open(kind: Any) -> None:
    with node_url() as url:
        before, threads = open_file_count(), threading.active_count()
        for _ in range(3):
            with kind(url) as client:
                client.health()
        assert becomes_true(lambda: (open_file_count(), threading.active_count()) == (before, threads))


def test_a_client_that_was_never_used_can_be_closed(kind: Any) -> None:
    with kind("127.0.0.1:1"):
        pass


# ---- TLS


def test_a_certificate_is_trusted_only_by_those_who_are_told_to(kind: Any, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with node_url(tls=server_tls(made)) as place:
        with kind(f"https://{place}", ca=made.certificate) as client:
            assert client.health() is Health.PARTIAL
        error = refusal(kind(f"https://{place}"))
        assert isinstance(error, UnreachableError)
        assert "its certificate is not trusted: self-signed certificate" in str(error)


def test_a_certificate_of_another_name_is_not_trusted(kind: Any, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with HttpBackend(http_response(), tls=server_tls(made), host="127.0.0.2") as other:
        client = kind(f"https://{other.address}", ca=made.certificate)
        assert "its certificate is not trusted: IP address mismatch" in str(refusal(client))


def test_tls_where_there_is_none_is_told(kind: Any) -> None:
    with node_url() as url:
        assert "it does not speak TLS; is it http://?" in str(refusal(kind(f"https://{url}")))


@pytest.mark.parametrize("text", [None, "not PEM"])
def test_a_ca_that_cannot_be_used_is_refused_at_once(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidValueError, match=r"ca: cannot use .*ca\.pem: (no such file|not a PEM)"):
        Client("http://127.0.0.1:1", ca=file)


# ---- nobody there, or somebody else


def test_a_port_that_refuses_is_unreachable(kind: Any) -> None:
    with closed_port() as port:
        error = refusal(kind(f"127.0.0.1:{port}"))
    assert isinstance(error, UnreachableError)
    assert str(error) == f"cannot reach http://127.0.0.1:{port}: connection refused"


def test_a_name_that_is_none_is_unreachable(kind: Any) -> None:
    error = refusal(kind("no-such-host.invalid"))
    assert isinstance(error, UnreachableError)
    assert "its name cannot be resolved: " in str(error)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (close, "the connection was closed without an answer; is it https://?"),
        (reset, "connection reset by peer"),
        (sending(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), "was closed before the answer was complete"),
    ],
)
def test_a_connection_that_ends_early_is_unreachable(script: Any, why: str, kind: Any) -> None:
    with Backend(script) as backend:
        error = refusal(kind(backend.address))
    assert isinstance(error, UnreachableError)
    assert why in str(error)


def greeting(peer: Peer) -> None:
    """As many servers do: it speaks first, and then waits for something that it understands."""
    peer.send(b"SSH-2.0-Something\r\n")
    peer.read_to_end()


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (greeting, "something else: SSH-2.0-Something"),
        (sending(b"SSH-2.0-Something\r\n"), "something else: SSH-2.0-Something"),
        (sending(b"-ERR unknown command\r\n\r\n"), "something else: -ERR unknown command"),
        (sending(b"\x00\x01\r\n\r\n"), r"something else: \x00\x01"),
        (sending(b"\x15\x03\x01\x00\x02\x02\x46"), "TLS (is it https://?)"),
    ],
)
def test_another_protocol_is_not_this_interface_and_is_told_at_once(script: Any, what: str, kind: Any) -> None:
    with Backend(script) as backend:
        error = refusal(kind(backend.address, timeout=60))
    assert isinstance(error, UnexpectedResponseError)
    assert str(error) == f"expected HTTP, got {what} at http://{backend.address}"


def test_another_protocol_inside_tls_is_told_as_well(kind: Any, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with Backend(sending(b"SSH-2.0-Something\r\n"), tls=server_tls(made)) as backend:
        error = refusal(kind(f"https://{backend.address}", ca=made.certificate))
    assert "expected HTTP, got something else: SSH-2.0-Something at" in str(error)


def endless_interim(peer: Peer) -> None:
    """To the first request it answers; to the next, it goes on saying that an answer will come."""
    peer.read_until(b"\r\n\r\n")
    peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    peer.read_until(b"\r\n\r\n")
    while True:
        peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000)


def test_interim_answers_without_end_are_given_up_long_before_the_timeout(kind: Any) -> None:
    with Backend(endless_interim) as backend, kind(backend.address, timeout=60) as client:
        assert client.health() is Health.HEALTHY
        began_s = time.monotonic()
        with pytest.raises(UnexpectedResponseError, match="got 256 KiB without an answer"):
            client.health()
        assert time.monotonic() - began_s < 20
        assert backend.connection_count == 1


def test_a_redirect_is_not_followed(kind: Any) -> None:
    with HttpBackend(http_response(200, IDENTITY, Content_Type="application/json")) as other:
        elsewhere = f"http://{other.address}/"
        with HttpBackend(http_response(302, b"", Location=elsewhere)) as backend:
            error = refusal(kind(backend.address))
        assert not other.requests
    assert isinstance(error, UnexpectedResponseError)
    assert f"got 302, a redirect to {elsewhere} at" in str(error)


def test_a_failure_inside_the_node_is_told(kind: Any) -> None:
    with HttpBackend(http_response(500, b'{"message":"Internal server error"}')) as backend:
        error = refusal(kind(backend.address))
    assert isinstance(error, NodeFailedError)


def test_a_body_without_an_end_is_not_read_to_it(kind: Any) -> None:
    def endless(peer: Peer) -> None:
        peer.read_until(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.send(b"x" * 65536)

    with Backend(endless) as backend:
        error = refusal(kind(backend.address))
    assert isinstance(error, UnexpectedResponseError)
    assert "got more than 1 MiB" in str(error)


def test_an_error_does_not_keep_the_body_that_was_too_large() -> None:
    """It keeps the frames that it came through, and whoever watches for days sees many errors."""

    async def ask() -> None:
        async with AsyncClient(backend.address) as client:
            await client.health()

    with HttpBackend(http_response(200, "x" * 2_000_000)) as backend, pytest.raises(UnexpectedResponseError) as raised:
        asyncio.run(ask())
    kept = [one for frame, _ in traceback.walk_tb(raised.tb) for one in frame.f_locals.values()]
    assert not any(len(one) for one in kept if isinstance(one, bytearray))


# ---- time


def drip(peer: Peer) -> None:
    """A head that goes on for ever, and never long without a sign of life."""
    peer.read_until(b"\r\n\r\n")
    peer.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.send(b"X: y\r\n")
        time.sleep(0.02)


@pytest.mark.parametrize("script", [unresponsive, drip])
def test_the_timeout_is_for_the_operation_as_a_whole(script: Any, kind: Any) -> None:
    with Backend(script) as backend:
        began_s = time.monotonic()
        error = refusal(kind(backend.address, timeout="300ms"))
        assert 0.3 <= time.monotonic() - began_s < 1.3
    assert isinstance(error, UnreachableError)
    assert str(error) == f"no whole answer from http://{backend.address}/svc/node within 0.3 s"


def test_the_timeout_holds_while_connecting(kind: Any) -> None:
    with full_backlog() as port:
        assert "no whole answer" in str(refusal(kind(f"127.0.0.1:{port}", timeout=0.2)))


def test_the_timeout_holds_while_a_name_is_resolved_and_others_are_not_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()
    resolved = socket.getaddrinfo

    def hang(host: Any, *arguments: Any, **options: Any) -> Any:
        if b"hangs" in (host if isinstance(host, bytes) else host.encode()):
            released.wait(10)
        return resolved(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def ask_all(url: str) -> list[object]:
        hung = [AsyncClient(f"hangs-{number}.invalid", timeout=1.0) for number in range(40)]
        async with AsyncClient(url) as client, contextlib.AsyncExitStack() as stack:
            for one in hung:
                await stack.enter_async_context(one)
            asked = [asyncio.ensure_future(one.health()) for one in hung]
            await asyncio.sleep(0)
            health = await asyncio.wait_for(client.health(), 0.9)
            return [health, *await asyncio.gather(*asked, return_exceptions=True)]

    with node_url() as url, asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
        first, *others = runner.run(ask_all(url.replace("127.0.0.1", "localhost")))
    released.set()
    assert first is Health.PARTIAL
    assert {type(one) for one in others} == {UnreachableError}


@pytest.mark.parametrize("timeout", [0, -1, "0s", "soon", None, [5]])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidValueError):
        Client("h", timeout=timeout)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": None}, "the URL of a node is a string, not NoneType"),
        ({"url": "http://ä..b"}, "its host is not a name as the network knows them"),
        ({"url": "xn--zz..example"}, "its host is not a name as the network knows them"),
        ({"version": ""}, "a version is not empty; without one, the latest answers"),
        ({"ca": ""}, "ca: names no file"),
        ({"prefix": 5}, "a prefix is a string, not int"),
        ({"version": 1}, "a version is a string, not int"),
        ({"version": "\ud800"}, "it cannot stand in a URL"),
        ({"retries": -1}, "retries are a whole number that is not negative, not -1"),
        ({"retries": "3"}, "retries are a whole number that is not negative, not '3'"),
        ({"retries": True}, "retries are a whole number that is not negative, not True"),
    ],
)
def test_what_can_never_be_right_is_refused_at_once(options: dict[str, Any], why: str) -> None:
    for client in (Client, AsyncClient):
        with pytest.raises(InvalidValueError, match=re.escape(why)):
            client(**{"url": "h", **options})


def test_an_id_that_is_no_text_is_refused(kind: Any) -> None:
    with kind("h") as client, pytest.raises(InvalidValueError, match="a service id is a string, not int"):
        client.service_health(5)


def test_a_connection_is_tried_once_unless_told_otherwise(kind: Any) -> None:
    """A node that begins to listen a little later is found by the one who tries again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        place = "{}:{}".format(*listener.getsockname())
        assert isinstance(refusal(kind(place)), UnreachableError)
        later = threading.Timer(0.15, listener.listen)
        later.start()
        answering = threading.Thread(target=_answer_once, args=(listener,))
        answering.start()
        with kind(place, retries=5) as client:
            assert client.health() is Health.HEALTHY
        later.join()
        answering.join()


def _answer_once(listener: socket.socket) -> None:
    def is_listening() -> bool:
        return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    assert becomes_true(is_listening)
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(http_response(200))
        connection.recv(65536)


def test_a_reused_connection_that_the_node_has_closed_is_no_fault(kind: Any) -> None:
    """It answers once, and closes without having said that it would."""
    with HttpBackend(http_response(200)) as backend, kind(backend.address) as client:
        for _ in range(20):
            assert client.health() is Health.HEALTHY
        assert backend.connection_count == 20


def test_an_answer_is_never_asked_for_twice(kind: Any) -> None:
    with Backend(close) as backend:
        assert isinstance(refusal(kind(backend.address, retries=5)), UnreachableError)
        assert backend.connection_count == 1


# ---- what is sent, and what is not shown


def test_a_request_says_who_asks_and_carries_no_body(kind: Any) -> None:
    with (
        HttpBackend(http_response(200, IDENTITY, Content_Type="application/json")) as backend,
        kind(backend.address) as client,
    ):
        client.identity()
    assert (backend.last_request.method, backend.last_request.target, backend.last_request.body) == (
        "GET",
        "/svc/node",
        b"",
    )
    assert backend.last_request.headers["user-agent"] == f"svcnode/{svcnode.__version__}"
    assert "authorization" not in backend.last_request.headers
    assert "cookie" not in backend.last_request.headers


def test_a_login_is_sent_and_never_shown(kind: Any) -> None:
    with HttpBackend(lambda received: http_response(200, json.dumps(received.headers))) as backend:
        client = kind(f"bob:s3cr3t-word@{backend.address}")
        error = refusal(client)
    assert backend.last_request.headers["authorization"] == "Basic Ym9iOnMzY3IzdC13b3Jk"
    for text in (str(error), repr(error), repr(client), client.url):
        assert "s3cr3t" not in text
        assert "Ym9iOnMzY3IzdC13b3Jk" not in text


def test_cookies_are_not_kept(kind: Any) -> None:
    with HttpBackend(http_response(200, Set_Cookie="a=b")) as backend, kind(backend.address) as client:
        client.health()
        client.health()
    assert "cookie" not in backend.last_request.headers


def test_proxies_of_the_environment_are_heeded_only_when_asked(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpBackend(http_response(206)) as node, ProxyBackend() as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
        monkeypatch.delenv("no_proxy", raising=False)
        with kind(node.address) as client:
            assert client.health() is Health.PARTIAL
        assert proxy.requests == []
        with kind(node.address, trust_env=True) as client:
            assert client.health() is Health.PARTIAL
        assert len(proxy.requests) == 1


# ---- what is understood nevertheless


def test_what_was_tolerated_is_told_once_in_order(kind: Any) -> None:
    answers = {
        "/svc/node": http_response(200, IDENTITY, Content_Type="text/plain"),
        "/svc/node/health": http_response(503, b"{}"),
        "/svc/node/services": http_response(
            200, b'[{"id":"a","name":"A","description":""}]', Content_Type="application/json"
        ),
    }
    with HttpBackend(lambda received: answers[received.target]) as backend, kind(backend.address) as client:
        for _ in range(2):
            client.identity()
            assert client.health() is Health.UNHEALTHY
            assert client.services()[0].status is None
        assert client.deviations == (
            "JSON comes as text/plain instead of application/json",
            "a health answer has a body",
            "the list of services is a bare array",
            "a service has no status",
        )


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_comes_encoded_unasked_is_read_and_told(encoding: str, kind: Any) -> None:
    body = gzip.compress(IDENTITY) if encoding == "gzip" else zlib.compress(IDENTITY)
    answer = http_response(200, body, Content_Type="application/json", Content_Encoding=encoding)
    with HttpBackend(answer) as backend, kind(backend.address) as client:
        assert client.identity().node_name == "n"
        assert client.deviations == (f"JSON comes encoded as {encoding}, which was not asked for",)
    assert backend.last_request.headers["accept-encoding"] == "identity"


def test_a_body_that_is_not_encoded_as_it_says_is_refused(kind: Any) -> None:
    with HttpBackend(http_response(200, IDENTITY, Content_Type="application/json", Content_Encoding="gzip")) as backend:
        error = refusal(kind(backend.address))
    assert isinstance(error, UnexpectedResponseError)
    assert "got a body that is not encoded as its Content-Encoding says" in str(error)


# ---- the client without a loop


def test_it_works_inside_a_running_loop_and_from_many_threads() -> None:
    async def ask(client: Client) -> list[Health]:
        client.health()
        return await asyncio.gather(*(asyncio.to_thread(client.health) for _ in range(20)))

    with node_url() as url, Client(url) as client:
        assert asyncio.run(ask(client)) == [Health.PARTIAL] * 20


def test_closed_it_asks_no_more() -> None:
    with node_url() as url:
        with Client(url) as client:
            client.health()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.health()
        client.close()


def test_forgotten_it_ends() -> None:
    with node_url() as url:
        before = threading.active_count()
        client = Client(url)
        client.health()
        assert threading.active_count() == before + 1
        del client
        gc.collect()
        assert becomes_true(lambda: threading.active_count() == before)


def test_closed_by_another_thread_it_ends_what_is_under_way() -> None:
    with Backend(unresponsive) as backend:
        client = Client(backend.address)
        threading.Timer(0.1, client.close).start()
        began_s = time.monotonic()
        with pytest.raises(RuntimeError, match="the client was closed"):
            client.health()
        assert time.monotonic() - began_s < 5


def error_text(program: str) -> str:
    """What it prints. It may fork beside its threads, of which newer Pythons warn; a child that hangs ends."""
    prelude = "import os, signal; os.register_at_fork(after_in_child=lambda: signal.alarm(15))\n"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", prelude + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    return ended.stdout


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
for free in (0, {free}):
    for _ in range(free):
        os.close(taken.pop())
    try:
        client.health()
    except UnreachableError as error:
        print(error)
client.close()
"""


@pytest.mark.parametrize(
    ("free", "then"), [(1, "too many open files"), (2, "too many open files"), (10, "connection refused")]
)
def test_without_files_to_open_it_says_so_and_can_be_asked_again(free: int, then: str) -> None:
    told = error_text(NO_DESCRIPTORS.format(free=free)).splitlines()
    assert told == [f"cannot reach http://127.0.0.1:1: {why}" for why in ("too many open files", then)]


def test_without_threads_to_start_it_says_so_and_can_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Client("127.0.0.1:1") as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(UnreachableError, match="can't start new thread"):
                client.health()
        with pytest.raises(UnreachableError, match="connection refused"):
            client.health()


# ---- other processes and other loops


def answering(peer: Peer) -> None:
    """On one connection, for as long as somebody asks."""
    while True:
        peer.read_until(b"\r\n\r\n")
        peer.send(http_response(200))


FORKING = """
import gc, sys, threading
from concurrent.futures import ThreadPoolExecutor
from svcnode import Client

client = Client({url!r}, timeout=5, ca={ca!r})
client.health()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    print("parent:", client.health().name)
    client.close()
    sys.exit()
"""
MANY_THREADS = """
with ThreadPoolExecutor(8) as pool:
    print(*set(pool.map(lambda _: client.health().name, range(8))))
assert [one.name for one in threading.enumerate()].count("svcnode client") == 1
client.close()
"""


@pytest.mark.parametrize(
    ("in_child", "told", "connections"),
    [
        ("print(client.health().name)", "HEALTHY\n", 2),
        ("print(client.health().name); client.close()", "HEALTHY\n", 2),
        ("print(client.health().name); del client; gc.collect()", "HEALTHY\n", 2),
        ("print(client.health().name, flush=True); os._exit(0)", "HEALTHY\n", 2),
        ("client.health(); os.fork() and os.wait(); print(client.health().name)", "HEALTHY\nHEALTHY\n", 3),
        ("client.close()", "", 1),
        ("pass", "", 1),
        pytest.param(MANY_THREADS, "HEALTHY\n", None, id="from many threads"),
    ],
)
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_forked_process_asks_for_itself_and_leaves_its_parent_alone(
    in_child: str, told: str, connections: int | None, *, is_tls: bool, tmp_path: Path
) -> None:
    made = make_certificate(tmp_path)
    with Backend(answering, tls=server_tls(made) if is_tls else None) as backend:
        url = f"{'https' if is_tls else 'http'}://{backend.address}"
        assert error_text(FORKING.format(url=url, ca=str(made.certificate)) + in_child) == f"{told}parent: HEALTHY\n"
        assert connections in {None, backend.connection_count}


def test_the_timeout_holds_in_a_forked_process() -> None:
    def answering_the_first(peer: Peer) -> None:
        (answering if backend.connection_count == 1 else unresponsive)(peer)

    in_child = """
try:
    client.health()
except Exception as error:
    print(error)
"""
    with Backend(answering_the_first) as backend:
        told = error_text(FORKING.format(url=backend.address, ca=None).replace("timeout=5", "timeout=0.5") + in_child)
    assert told == f"no whole answer from http://{backend.address}/svc/node/health within 0.5 s\nparent: HEALTHY\n"


@pytest.mark.parametrize("before", ["client.health()", "pass"])
def test_closed_before_a_fork_it_is_closed_after_it(before: str) -> None:
    program = """
from svcnode import Client

client = Client({place!r})
{before}
client.close()
if os.fork():
    assert os.wait()[1] == 0
else:
    try:
        client.health()
    except RuntimeError as error:
        print(error)
"""
    with Backend(answering) as backend:
        assert error_text(program.format(place=backend.address, before=before)) == "the client is closed\n"


def test_a_loop_that_is_used_on_both_sides_of_a_fork_shares_no_connection() -> None:
    program = """
import asyncio
from svcnode import AsyncClient

client, runner = AsyncClient({place!r}), asyncio.Runner()
runner.run(client.health())
is_parent = bool(os.fork())
assert not is_parent or os.wait()[1] == 0
print(runner.run(client.health()).name, flush=True)
if not is_parent:
    os._exit(0)
runner.run(client.aclose())
runner.close()
"""
    with Backend(answering) as backend:
        assert error_text(program.format(place=backend.address)) == "HEALTHY\nHEALTHY\n"
        assert backend.connection_count == 2


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # true: the loops end before the client is closed
def test_one_loop_after_another_can_use_it_and_what_they_left_open_does_not_add_up() -> None:
    def left() -> int:
        gc.collect()
        return open_file_count() - before

    with Backend(answering) as backend:
        before = open_file_count()
        client = AsyncClient(backend.address)
        for count in (1, 2, 3):
            assert asyncio.run(client.health()) is Health.HEALTHY
            assert backend.connection_count == count
            assert becomes_true(lambda: left() == 2)  # both ends of one connection
        asyncio.run(client.aclose())
        assert becomes_true(lambda: left() == 0)


def test_loops_that_take_turns_keep_their_connections() -> None:
    with Backend(answering) as backend, asyncio.Runner() as one, asyncio.Runner() as other:
        client = AsyncClient(backend.address)
        for runner in (one, other, one, other):
            assert runner.run(client.health()) is Health.HEALTHY
        assert backend.connection_count == 2
        for runner in (one, other):
            runner.run(client.aclose())


def test_closed_in_a_loop_it_asks_no_more_in_any() -> None:
    with node_url() as url:
        client = AsyncClient(url)

        async def ask_and_close() -> None:
            async with client:
                await client.health()

        asyncio.run(ask_and_close())
        with pytest.raises(RuntimeError, match="the client is closed"):
            asyncio.run(client.health())


# ---- as the documentation shows it


def shown_programs() -> list[str]:
    page = (Path(__file__).parents[2] / "docs" / "ask.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("program", "output"),
    list(
        zip(
            shown_programs(),
            [
                "validator-7\nPARTIAL\ndb Status.UP 200\nindexer Status.DOWN 503\nstorage Status.INITIALIZING 206\n",
                "['PARTIAL', 'cannot reach http://127.0.0.1:1: connection refused']\n",
                "",
            ],
            strict=True,
        )
    ),
)
def test_every_program_that_is_shown_works(program: str, output: str) -> None:
    with node_url() as url:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", program.replace("127.0.0.1:8420", url)],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    assert (ended.stdout, ended.stderr) == (output, "")
