"""The operator endpoints of an embedded node: access by the address of the client, and the loop that they run on."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode import Node, OperatorOptions, Verdict, asgi, operator
from svcnode.agent.embed import operator_app as app_module
from svcnode.agent.embed.operator_app import NOT_RUNNING, EmbeddedOperatorApp, make_operator_app
from svcnode.agent.embed.options import ConnectionInfo
from svcnode.agent.embed.stream import LoopStream
from svcnode.api.spec import Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOKEN = "a-token-of-some-length"
DOWN = Verdict.failed("out of disk")
LOOPBACK, UNKNOWN, ELSEWHERE = "127.0.0.1", "", "192.0.2.7"


@pytest.fixture
def node() -> Node:
    node = Node("validator-7", version="v1")
    node.register("indexer").up()
    return node


def app_of(node: Node, **options: Any) -> EmbeddedOperatorApp:
    return make_operator_app(node, OperatorOptions(**options), ("/svc",), has_fallback=False)


def request(path: str = "/details", method: str = "GET", **headers: str) -> Request:
    fields = {"host": "localhost:8000", **headers}
    encoded = {name.replace("_", "-").encode(): text.encode() for name, text in fields.items()}
    path, _, query = path.partition("?")
    return Request(method, path.encode(), query.encode(), encoded)


def code(app: EmbeddedOperatorApp, client_host: str, *, http_version: str = "1.1", **headers: str) -> int:
    """Of the rejection; 200 if the request is allowed."""
    connection = ConnectionInfo(client_host, uses_tls=False, server_port=8000, http_version=http_version)
    rejection = app.rejection(request(**headers), connection)
    return 200 if rejection is None else rejection.code


BEARER = f"Bearer {TOKEN}"
WITH_TOKEN, TRUSTING = {"token": TOKEN}, {"token": TOKEN, "trust_loopback": True}
ANY = [LOOPBACK, ELSEWHERE, UNKNOWN]
PROXIED = {"x_forwarded_for": "127.0.0.1"}


@pytest.mark.parametrize(
    ("options", "hosts", "headers", "expected"),
    [
        # Without a token, clients on this machine are allowed, and no others, known or unknown.
        ({}, [LOOPBACK, "127.1.2.3", "::1"], {}, 200),
        ({}, [ELSEWHERE, "10.0.0.1", "fe80::1", UNKNOWN, "unix:", "testclient"], {}, 403),
        ({}, [ELSEWHERE, UNKNOWN], {"authorization": BEARER}, 403),
        ({}, [LOOPBACK], PROXIED, 403),
        ({}, [LOOPBACK], {"http_version": "1.0"}, 403),  # as nginx sends it
        ({}, [LOOPBACK], {"http_version": "2"}, 200),
        # With a token, every client needs it, and not in the query: it would be in the access log of the server.
        (WITH_TOKEN, ANY, {}, 401),
        (WITH_TOKEN, ANY, {"authorization": "Bearer another-token-of-some-length"}, 401),
        (WITH_TOKEN, ANY, {"authorization": BEARER}, 200),
        (WITH_TOKEN, [LOOPBACK], {"authorization": BEARER, "http_version": "1.0"}, 200),
        (WITH_TOKEN, [ELSEWHERE], {"path": f"/details?token={TOKEN}"}, 401),
        (TRUSTING, [LOOPBACK], {}, 200),
        (TRUSTING, [LOOPBACK], PROXIED, 401),
        (TRUSTING, [ELSEWHERE, UNKNOWN], {}, 401),
        ({"unrestricted": True}, ANY, {"host": "node.example", "via": "1.1 proxy"}, 200),
        # Only GET and HEAD.
        ({"unrestricted": True}, [LOOPBACK], {"method": "POST"}, 405),
        ({}, [LOOPBACK], {"method": "POST"}, 405),
        ({}, [LOOPBACK], {"method": "HEAD"}, 200),
    ],
)
def test_access_depends_on_the_client_the_proxy_and_the_token(
    node: Node, options: dict[str, Any], hosts: list[str], headers: dict[str, str], expected: int
) -> None:
    app = app_of(node, **options)
    assert {host: code(app, host, **headers) for host in hosts} == dict.fromkeys(hosts, expected)


def test_a_proxy_before_a_trusting_surface_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(node)
    for _ in range(3):
        code(app, LOOPBACK, x_forwarded_for="192.0.2.1")
    assert [record.__dict__["event"] for record in caplog.records] == ["proxy_on_trusted_listener"]
    assert "OperatorOptions" in caplog.text


def test_the_page_is_below_its_path_and_other_paths_are_not(node: Node) -> None:
    app, below = app_of(node), app_of(node, path="/status")
    for path in ("/", "/details", "/details/a", "/static/page.css", "/events", "/badge/node.svg"):
        assert app.matches(path.encode())
        assert below.matches(f"/status{path}".encode())
        assert not below.matches(path.encode())
    for path in ("/svc/node", "/livez", "/statuses", "/other", "//"):
        assert not app.matches(path.encode())
        assert not below.matches(path.encode())


async def while_probing(node: Node, ask: Callable[[], Awaitable[object]]) -> object:
    async with node.probing():
        return await ask()


def test_it_answers_on_the_loop_of_the_checks_another_loop_and_a_thread(node: Node) -> None:
    app = app_of(node, path="/status")
    response = asyncio.run(while_probing(node, lambda: app.handle(request("/status/details"))))
    assert isinstance(response, Response)
    assert json.loads(response.body)["services"][0]["id"] == "indexer"
    node.start()
    try:
        from_loop = asyncio.run(app.handle(request("/status/badge/node.svg")))
        from_thread = app.handle_blocking(request("/status/badge/node.svg"), is_multithread=True)
    finally:
        node.stop()
    assert isinstance(from_loop, Response)
    assert from_loop.code == 200
    assert from_thread == from_loop


def test_without_checks_it_says_that_it_does_not_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "START_TIMEOUT_S", 0.0)
    app = app_of(node)
    assert asyncio.run(app.handle(request())) is NOT_RUNNING
    assert app.handle_blocking(request(), is_multithread=False) is NOT_RUNNING
    node.start()
    node.stop()
    assert app.handle_blocking(request(), is_multithread=False) is NOT_RUNNING


def test_a_request_during_the_start_waits_for_it(node: Node) -> None:
    app = app_of(node)
    starter = threading.Timer(0.05, node.start)
    starter.start()
    response = app.handle_blocking(request(), is_multithread=False)
    starter.join()
    node.stop()
    assert isinstance(response, Response)
    assert response.code == 200


def test_a_request_that_the_stop_interrupts_is_answered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun = threading.Event()

    async def never(*_: object) -> Response:
        has_begun.set()
        waiting: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        return await waiting

    monkeypatch.setattr(operator, "handle", never)
    app = app_of(node)
    node.start()

    async def ask_and_stop() -> object:
        asking = asyncio.create_task(app.handle(request()))
        await asyncio.to_thread(has_begun.wait)
        await asyncio.to_thread(node.stop)
        return await asking

    assert asyncio.run(ask_and_stop()) is NOT_RUNNING


def test_a_failure_inside_is_an_error_response_without_its_cause(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> Response:
        raise ValueError("the cause")

    monkeypatch.setattr(operator, "handle", fail)
    app = app_of(node)
    response = asyncio.run(while_probing(node, lambda: app.handle(request())))
    assert isinstance(response, Response)
    assert response.code == 500
    assert b"the cause" not in response.body
    assert "the cause" in caplog.text


def read_blocking(app: EmbeddedOperatorApp, *, is_multithread: bool) -> LoopStream:
    stream = app.handle_blocking(request("/events"), is_multithread=is_multithread)
    assert isinstance(stream, LoopStream)
    return stream


@pytest.mark.parametrize(("streams", "is_multithread"), [(0, True), (0, False), (2, False)])
def test_without_threads_to_spare_a_stream_ends_with_the_events_so_far(
    node: Node, streams: int, is_multithread: bool
) -> None:
    app = app_of(node, wsgi_streams=streams)
    node.start()
    try:
        body = b"".join(read_blocking(app, is_multithread=is_multithread).blocking_chunks())
    finally:
        node.stop()
    assert b"event: end" in body


def test_a_server_with_threads_keeps_the_allowed_number_of_streams_open(node: Node) -> None:
    app = app_of(node, wsgi_streams=1)
    node.start()
    try:
        first, second = (read_blocking(app, is_multithread=True) for _ in range(2))
        assert b"event: end" in b"".join(second.blocking_chunks())
        chunks = first.blocking_chunks()
        received = next(chunks)
        node.report("indexer", DOWN)
        while b'"after":"Down"' not in received:
            received += next(chunks)
        first.close()
        assert b"event: end" not in received
    finally:
        node.stop()


def test_a_stream_ends_when_the_checks_stop(node: Node) -> None:
    app = app_of(node)

    async def run() -> list[bytes]:
        async with node.probing():
            stream = await app.handle(request("/events"))
            assert isinstance(stream, LoopStream)
            reading = asyncio.create_task(collect(stream))
            await asyncio.sleep(0)
        return await reading

    async def collect(stream: LoopStream) -> list[bytes]:
        return [chunk async for chunk in stream.chunks()]

    assert asyncio.run(run())[0].startswith(b"retry:")


def test_on_a_server_without_asyncio_the_response_says_what_is_missing(node: Node) -> None:
    """As Hypercorn with trio. The coroutine is run by hand, without an event loop."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    application = asgi(node, operator=OperatorOptions(unrestricted=True), start=False)
    scope = {"type": "http", "method": "GET", "path": "/details", "headers": []}
    with pytest.raises(StopIteration):
        cast("Any", application(scope, cast("Any", None), send)).send(None)
    assert sent[0]["status"] == 503
