"""The node inside another application: below a path, beside other routes, with that application's lifespan."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node, Status, asgi, wsgi
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.node_cases import worked_example
from tests.support.transports import NOT_FOUND, AsgiTransport, Fetch, WsgiTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    Mount = Callable[..., Fetch]


def _asgi_mounted(path: str, node: Node, **options: Any) -> Fetch:
    return AsgiTransport(asgi(node, **options), root_path=path)


def _wsgi_mounted(path: str, node: Node, **options: Any) -> Fetch:
    return WsgiTransport(wsgi(node, start=False, **options), script_name=path)


def _raw_wsgi_mounted(path: str, node: Node, **options: Any) -> Fetch:
    return WsgiTransport(wsgi(node, start=False, **options), script_name=path, raw_name="RAW_URI")


each_gateway = pytest.mark.parametrize("below", [_asgi_mounted, _wsgi_mounted, _raw_wsgi_mounted])


# ---- below a path


@each_gateway
def test_paths_are_relative_to_the_mount(below: Mount) -> None:
    fetch = below("/api/v1", worked_example())
    assert json.loads(fetch("GET", "/api/v1/svc/node").body)["node_name"] == "validator-7"
    assert fetch("GET", "/api/v1/svc/node/services/indexer/health").code == 503
    assert fetch("GET", "/api/v1/livez").code == 200
    assert fetch("GET", "/api/v1/svc/node?version=v9").code == 404
    assert fetch("GET", "/api/v1/api/v1/svc/node").code == 404
    assert fetch("GET", "/api/v1").code == 404
    assert fetch("GET", "/api/v1/").code == 404


@each_gateway
def test_ids_keep_their_slashes_below_a_mount(below: Mount) -> None:
    node = Node("validator-7", version="v1.4.2")
    for service_id in ("a/b", "ü", "%2F", "a/health"):
        node.register(service_id).down("broken")
    fetch = below("/api", node)
    for encoded in ("a%2Fb", "%C3%BC", "%252F", "a%2Fhealth"):
        assert fetch("GET", f"/api/svc/node/services/{encoded}/health").code == 503, encoded


@each_gateway
def test_a_mount_may_itself_be_encoded(below: Mount) -> None:
    fetch = below("/v1 beta", worked_example())
    assert fetch("GET", "/v1%20beta/svc/node/services/storage/health").code == 206


def test_a_gateway_may_leave_the_mount_out_of_the_path() -> None:
    """As in early ASGI, and behind a proxy that removes its prefix."""
    fetch = _asgi_mounted("/api", worked_example())
    assert fetch("GET", "/svc/node").code == 200
    assert fetch("GET", "/svc/node/services/indexer/health").code == 503


def test_a_gateway_may_pass_no_raw_path() -> None:
    async def without_raw_path(scope: Any, receive: Any, send: Any) -> None:
        del scope["raw_path"], scope["root_path"]
        await asgi(worked_example())(scope, receive, send)

    fetch = AsgiTransport(without_raw_path)
    assert fetch("GET", "/svc/node/services/storage/health").code == 206


# ---- beside other routes


async def _asgi_fallback(scope: Any, receive: Any, send: Any) -> None:
    body = f"fallback: {scope['method']} {scope['path']}".encode()
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": body})


def _wsgi_fallback(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("418 I'm a teapot", [("Content-Type", "text/plain")])
    return [f"fallback: {environ['REQUEST_METHOD']} {environ['SCRIPT_NAME']}{environ['PATH_INFO']}".encode()]


with_fallback = pytest.mark.parametrize(
    ("below", "fallback"),
    [(_asgi_mounted, _asgi_fallback), (_wsgi_mounted, _wsgi_fallback), (_raw_wsgi_mounted, _wsgi_fallback)],
)


@with_fallback
@pytest.mark.parametrize("mount", ["", "/api"])
def test_paths_outside_the_prefix_go_to_the_fallback(below: Mount, fallback: Any, mount: str) -> None:
    fetch = below(mount, worked_example(), fallback=fallback)
    for path in ("/", "/login", "/svcx", "/livez", "/readyz", "/openapi.json", "/SVC/node", "//svc/node"):
        response = fetch("POST", mount + path)
        assert (response.code, response.body) == (418, f"fallback: POST {mount}{path}".encode())


@with_fallback
@pytest.mark.parametrize("mount", ["", "/api"])
def test_paths_under_the_prefix_never_go_to_the_fallback(below: Mount, fallback: Any, mount: str) -> None:
    fetch = below(mount, worked_example(), fallback=fallback, prefix=["/svc", "/eigen"])
    assert fetch("GET", f"{mount}/svc/node").code == 200
    assert fetch("GET", f"{mount}/eigen/node/health").code == 206
    assert fetch("POST", f"{mount}/svc/node").code == 405
    for path in ("/svc", "/svc/", "/svc/nowhere", "/eigen/node/"):
        assert fetch("GET", mount + path).error == NOT_FOUND, path


# ---- the ASGI lifespan


class LifespanRunner:
    """The server side of the lifespan protocol."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def __aenter__(self) -> LifespanRunner:
        self._running = asyncio.create_task(
            self._application({"type": "lifespan", "asgi": {"version": "3.0"}}, self._to_app.get, self._from_app.put)
        )
        assert await self._send("startup") == "lifespan.startup.complete"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert await self._send("shutdown") == "lifespan.shutdown.complete"
        await asyncio.wait_for(self._running, WAIT_TIMEOUT_S)

    async def _send(self, phase: str) -> str:
        await self._to_app.put({"type": f"lifespan.{phase}"})
        message = await asyncio.wait_for(self._from_app.get(), WAIT_TIMEOUT_S)
        return message["type"]


class CheckedNode:
    """A node with one service that is Up only if it is probed."""

    def __init__(self) -> None:
        self.node = Node("validator-7", version="v1.4.2")
        self.check_count = 0
        self.node.check("cache", interval="40ms")(self._check)

    async def _check(self) -> None:
        self.check_count += 1

    async def is_checked(self) -> bool:
        count_before = self.check_count
        return await asyncio.to_thread(becomes_true, lambda: self.check_count > count_before + 1)

    def is_probing(self) -> bool:
        return self.node.next_check_in_s("cache") is not None


def test_the_application_probes_during_its_lifespan() -> None:
    async def run() -> None:
        checked = CheckedNode()
        assert not checked.is_probing()
        async with LifespanRunner(asgi(checked.node)):
            assert checked.is_probing()
            assert await checked.is_checked()
            assert checked.node.status("cache") is Status.UP
        assert not checked.is_probing()

    asyncio.run(run())


def test_the_lifespan_of_the_fallback_is_inside_that_of_the_node() -> None:
    received: list[str] = []

    async def fallback(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        for phase in ("startup", "shutdown"):
            received.append((await receive())["type"])
            await send({"type": f"lifespan.{phase}.complete"})

    async def run() -> None:
        checked = CheckedNode()
        async with LifespanRunner(asgi(checked.node, fallback=fallback)):
            assert received == ["lifespan.startup"]
            assert checked.is_probing()
            assert await checked.is_checked()
        assert received == ["lifespan.startup", "lifespan.shutdown"]
        assert not checked.is_probing()

    asyncio.run(run())


def test_the_application_probes_if_the_fallback_has_no_lifespan() -> None:
    async def fallback(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("unsupported scope")

    async def run() -> None:
        checked = CheckedNode()
        async with LifespanRunner(asgi(checked.node, fallback=fallback)):
            assert checked.is_probing()
            assert await checked.is_checked()
        assert not checked.is_probing()

    asyncio.run(run())


def test_a_fallback_that_fails_to_start_fails_the_lifespan() -> None:
    async def fallback(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "failed"})

    async def run() -> None:
        checked = CheckedNode()
        runner = LifespanRunner(asgi(checked.node, fallback=fallback))
        with pytest.raises(AssertionError, match=r"lifespan\.startup\.failed"):
            await runner.__aenter__()
        await asyncio.wait_for(runner._running, WAIT_TIMEOUT_S)
        assert not checked.is_probing()

    asyncio.run(run())


def test_a_websocket_under_the_prefix_is_closed_and_another_goes_to_the_fallback() -> None:
    async def fallback(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def messages_for(path: str) -> list[str]:
        sent: list[str] = []

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
        await asgi(worked_example(), fallback=fallback)(scope, receive, send)
        return sent

    assert asyncio.run(messages_for("/svc/node")) == ["websocket.close"]
    assert asyncio.run(messages_for("/chat")) == ["websocket.accept"]


# ---- probing under WSGI


def test_probing_starts_with_the_first_wsgi_request() -> None:
    checked = threading.Event()
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(checked.set)
    fetch = WsgiTransport(wsgi(node))
    assert node.next_check_in_s("cache") is None
    try:
        assert fetch("GET", "/svc/node/health").code in (200, 206)
        assert checked.wait(WAIT_TIMEOUT_S)
        assert becomes_true(lambda: fetch("GET", "/svc/node/health").code == 200)
    finally:
        node.stop()


def test_the_program_can_start_probing_itself() -> None:
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(lambda: None)
    fetch = WsgiTransport(wsgi(node, start=False))
    assert fetch("GET", "/svc/node/health").code == 206
    assert node.next_check_in_s("cache") is None
