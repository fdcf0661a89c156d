"""The node inside someone else's application: below a path, beside other routes, with that one's lifespan."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node, Status, asgi, wsgi
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.node_cases import worked_example
from tests.support.transports import AsgiTransport, Fetch, WsgiTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    Mount = Callable[..., Fetch]


def _asgi_mounted(path: str, node: Node, **words: Any) -> Fetch:
    return AsgiTransport(asgi(node, **words), root_path=path)


def _wsgi_mounted(path: str, node: Node, **words: Any) -> Fetch:
    return WsgiTransport(wsgi(node, start=False, **words), script_name=path)


def _raw_wsgi_mounted(path: str, node: Node, **words: Any) -> Fetch:
    return WsgiTransport(wsgi(node, start=False, **words), script_name=path, raw_name="RAW_URI")


each_gateway = pytest.mark.parametrize("below", [_asgi_mounted, _wsgi_mounted, _raw_wsgi_mounted])


# ---- below a path


@each_gateway
def test_a_mounted_node_answers_relative_to_its_mount(below: Mount) -> None:
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
    """As ASGI was once read, and as a proxy that strips its own prefix has it."""
    fetch = _asgi_mounted("/api", worked_example())
    assert fetch("GET", "/svc/node").code == 200
    assert fetch("GET", "/svc/node/services/indexer/health").code == 503


def test_a_gateway_may_keep_no_raw_path() -> None:
    async def without_raw_path(scope: Any, receive: Any, send: Any) -> None:
        del scope["raw_path"], scope["root_path"]
        await asgi(worked_example())(scope, receive, send)

    fetch = AsgiTransport(without_raw_path)
    assert fetch("GET", "/svc/node/services/storage/health").code == 206


# ---- beside other routes


async def _asgi_fallback(scope: Any, receive: Any, send: Any) -> None:
    body = f"the rest: {scope['method']} {scope['path']}".encode()
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": body})


def _wsgi_fallback(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("418 I'm a teapot", [("Content-Type", "text/plain")])
    return [f"the rest: {environ['REQUEST_METHOD']} {environ['SCRIPT_NAME']}{environ['PATH_INFO']}".encode()]


with_fallback = pytest.mark.parametrize(
    ("below", "rest"),
    [(_asgi_mounted, _asgi_fallback), (_wsgi_mounted, _wsgi_fallback), (_raw_wsgi_mounted, _wsgi_fallback)],
)


@with_fallback
@pytest.mark.parametrize("mount", ["", "/api"])
def test_what_is_not_under_the_prefix_is_handed_on(below: Mount, rest: Any, mount: str) -> None:
    fetch = below(mount, worked_example(), otherwise=rest)
    for path in ("/", "/login", "/svcx", "/livez", "/readyz", "/openapi.json", "/SVC/node", "//svc/node"):
        reply = fetch("POST", mount + path)
        assert (reply.code, reply.body) == (418, f"the rest: POST {mount}{path}".encode())


@with_fallback
@pytest.mark.parametrize("mount", ["", "/api"])
def test_what_is_under_the_prefix_is_answered_known_or_not(below: Mount, rest: Any, mount: str) -> None:
    fetch = below(mount, worked_example(), otherwise=rest, prefix=["/svc", "/eigen"])
    assert fetch("GET", f"{mount}/svc/node").code == 200
    assert fetch("GET", f"{mount}/eigen/node/health").code == 206
    assert fetch("POST", f"{mount}/svc/node").code == 405
    for path in ("/svc", "/svc/", "/svc/nowhere", "/eigen/node/"):
        reply = fetch("GET", mount + path)
        assert (reply.code, json.loads(reply.body)) == (404, {"message": "Not found"}), path


# ---- living with ASGI


class LifespanRunner:
    """A server's side of the lifespan of an application."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._to_it: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._from_it: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def __aenter__(self) -> LifespanRunner:
        self._running = asyncio.create_task(
            self._application({"type": "lifespan", "asgi": {"version": "3.0"}}, self._to_it.get, self._from_it.put)
        )
        assert await self._send("startup") == "lifespan.startup.complete"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert await self._send("shutdown") == "lifespan.shutdown.complete"
        await asyncio.wait_for(self._running, WAIT_TIMEOUT_S)

    async def _send(self, what: str) -> str:
        await self._to_it.put({"type": f"lifespan.{what}"})
        answer = await asyncio.wait_for(self._from_it.get(), WAIT_TIMEOUT_S)
        return answer["type"]


class CheckedNode:
    """A node with one service that somebody must look at to see it Up."""

    def __init__(self) -> None:
        self.node = Node("validator-7", version="v1.4.2")
        self.check_count = 0
        self.node.check("cache", interval="40ms")(self._check)

    async def _check(self) -> None:
        self.check_count += 1

    async def is_checked(self) -> bool:
        looks_before = self.check_count
        return await asyncio.to_thread(becomes_true, lambda: self.check_count > looks_before + 1, 1.0)

    async def is_idle(self) -> bool:
        looks_before = self.check_count
        await asyncio.sleep(0.1)
        return self.check_count == looks_before


def test_a_node_run_by_itself_checks_for_as_long_as_it_is_served() -> None:
    async def run() -> None:
        watched = CheckedNode()
        assert await watched.is_idle()
        async with LifespanRunner(asgi(watched.node)):
            assert await watched.is_checked()
            assert watched.node.status("cache") is Status.UP
        assert await watched.is_idle()

    asyncio.run(run())


def test_the_lifespan_of_the_rest_is_lived_inside_that_of_the_node() -> None:
    heard: list[str] = []

    async def rest(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        for what in ("startup", "shutdown"):
            heard.append((await receive())["type"])
            await send({"type": f"lifespan.{what}.complete"})

    async def run() -> None:
        watched = CheckedNode()
        async with LifespanRunner(asgi(watched.node, fallback=rest)):
            assert heard == ["lifespan.startup"]
            assert await watched.is_checked()
        assert heard == ["lifespan.startup", "lifespan.shutdown"]
        assert await watched.is_idle()

    asyncio.run(run())


def test_a_node_checks_although_the_rest_knows_no_lifespan() -> None:
    async def rest(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("only HTTP here")

    async def run() -> None:
        watched = CheckedNode()
        async with LifespanRunner(asgi(watched.node, fallback=rest)):
            assert await watched.is_checked()
        assert await watched.is_idle()

    asyncio.run(run())


def test_a_rest_that_fails_to_start_is_not_passed_over() -> None:
    async def rest(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    async def run() -> None:
        watched = CheckedNode()
        with pytest.raises(AssertionError, match=r"lifespan\.startup\.failed"):
            await LifespanRunner(asgi(watched.node, fallback=rest)).__aenter__()
        await asyncio.sleep(0.01)
        assert await watched.is_idle()

    asyncio.run(run())


def test_a_websocket_under_the_prefix_is_declined_and_another_handed_on() -> None:
    async def rest(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def told(path: str) -> list[str]:
        sent: list[str] = []

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
        await asgi(worked_example(), fallback=rest)(scope, receive, send)
        return sent

    assert asyncio.run(told("/svc/node")) == ["websocket.close"]
    assert asyncio.run(told("/chat")) == ["websocket.accept"]


# ---- living with WSGI


def test_probing_starts_with_the_first_request_of_a_wsgi_process() -> None:
    looked = threading.Event()
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(looked.set)
    fetch = WsgiTransport(wsgi(node))
    assert not looked.wait(0.05)
    try:
        assert fetch("GET", "/svc/node/health").code in (200, 206)
        assert looked.wait(WAIT_TIMEOUT_S)
        assert becomes_true(lambda: fetch("GET", "/svc/node/health").code == 200)
    finally:
        node.stop()


def test_probing_can_be_left_to_the_program() -> None:
    looked = threading.Event()
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(looked.set)
    fetch = WsgiTransport(wsgi(node, start=False))
    assert fetch("GET", "/svc/node/health").code == 206
    assert not looked.wait(0.05)
