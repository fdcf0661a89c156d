"""The node inside another application: below a path, beside other routes, with that application's lifespan."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from svcnode import Node, ReasonCode, Status, Verdict, asgi, wsgi
from svcnode.agent.embed.node import internals_of
from svcnode.net.threads import ThreadRefusedError
from svcnode.node.checks import NOT_RUNNING_REASON
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.node_cases import worked_example
from tests.support.transports import NOT_FOUND, AsgiTransport, Fetch, WsgiTransport
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    Mount = Callable[..., Fetch]


def _asgi_mounted(path: str, node: Node, **options: Any) -> Fetch:
    return AsgiTransport(asgi(node, **options), root_path=path)


def _wsgi_mounted(path: str, node: Node, **options: Any) -> Fetch:
    return WsgiTransport(wsgi(node, **{"start": False, **options}), script_name=path)


def _raw_wsgi_mounted(path: str, node: Node, **options: Any) -> Fetch:
    return WsgiTransport(wsgi(node, start=False, **options), script_name=path, raw_name="RAW_URI")


each_gateway = pytest.mark.parametrize("below", [_asgi_mounted, _wsgi_mounted, _raw_wsgi_mounted])


@each_gateway
def test_paths_are_relative_to_the_mount(below: Mount) -> None:
    node = worked_example()
    for service_id in ("a/b", "%2F", "a/health"):
        node.register(service_id).down("broken")
    fetch = below("/v1 beta", node)
    for encoded in ("a%2Fb", "%252F", "a%2Fhealth"):
        assert fetch("GET", f"/v1%20beta/svc/node/services/{encoded}/health").code == 503, encoded
    fetch = below("/api/v1", node)
    assert json.loads(fetch("GET", "/api/v1/svc/node").body)["node_name"] == "validator-7"
    assert fetch("GET", "/api/v1/svc/node/services/indexer/health").code == 503
    assert fetch("GET", "/api/v1/livez").code == 200
    assert fetch("GET", "/api/v1/svc/node?version=v9").code == 404
    assert fetch("GET", "/api/v1/api/v1/svc/node").code == 404
    assert fetch("GET", "/api/v1").code == 404
    assert fetch("GET", "/api/v1/").code == 404


def test_a_gateway_may_leave_the_mount_out_of_the_path() -> None:
    """As in early ASGI, and behind a proxy that removes its prefix. It may pass no raw path, either."""
    fetch = _asgi_mounted("/api", worked_example())
    assert fetch("GET", "/svc/node").code == 200
    assert fetch("GET", "/svc/node/services/indexer/health").code == 503

    async def without_raw_path(scope: Any, receive: Any, send: Any) -> None:
        del scope["raw_path"], scope["root_path"]
        await asgi(worked_example())(scope, receive, send)

    assert AsgiTransport(without_raw_path)("GET", "/svc/node/services/storage/health").code == 206


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
def test_paths_outside_the_prefix_go_to_the_fallback_and_others_never(below: Mount, fallback: Any, mount: str) -> None:
    fetch = below(mount, worked_example(), fallback=fallback, prefix=["/svc", "/eigen"])
    for path in ("/", "/login", "/svcx", "/livez", "/readyz", "/openapi.json", "/SVC/node", "//svc/node"):
        response = fetch("POST", mount + path)
        assert (response.code, response.body) == (418, f"fallback: POST {mount}{path}".encode())
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
        return internals_of(self.node).checks.next_check_in_s("cache") is not None


async def _without_lifespan(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError("unsupported scope")


@pytest.mark.parametrize("fallback", [None, _without_lifespan])
def test_the_application_probes_during_its_lifespan_also_if_its_fallback_has_none(fallback: Any) -> None:
    async def run() -> None:
        checked = CheckedNode()
        app = asgi(checked.node, fallback=fallback)
        assert not checked.is_probing()
        async with LifespanRunner(app):
            assert checked.is_probing()
            assert await checked.is_checked()
            assert checked.node.state("cache").status is Status.UP
            await request_here(app)
            await asyncio.sleep(0)
            assert probing_task_count() == 0, "a request does not start it again"
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


# ---- without a lifespan


async def request_here(app: Any) -> int:
    """In the running event loop."""
    codes: list[int] = []

    async def send(message: Any) -> None:
        codes.extend([message["status"]] if "status" in message else [])

    path = "/svc/node/health"
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    await app(scope, None, send)
    return codes[0]


def probing_task_count() -> int:
    return [task.get_name() for task in asyncio.all_tasks()].count("svcnode probing")


def test_without_a_lifespan_the_first_requests_start_probing_once_in_their_event_loop() -> None:
    async def run() -> CheckedNode:
        checked = CheckedNode()
        app = asgi(checked.node)
        assert await asyncio.gather(*(request_here(app) for _ in range(9))) == [206] * 9
        assert probing_task_count() == 1
        assert await checked.is_checked()
        assert await request_here(app) == 200
        return checked

    assert not asyncio.run(run()).node.is_probing, "the end of the event loop ends it"


def test_checks_that_a_request_started_do_not_run_in_its_context() -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")
    node, seen = Node("validator-7", version="v1.4.2"), list[str]()
    checked = asyncio.Event()

    @node.check("cache", interval="1s")
    async def check() -> None:
        seen.append(user.get())
        checked.set()

    async def run() -> None:
        user.set("alice")
        await request_here(asgi(node))
        gc.collect()  # the application is dropped, and its checks go on
        await asyncio.wait_for(checked.wait(), WAIT_TIMEOUT_S)

    asyncio.run(run())
    assert seen == ["nobody"]


def test_a_request_in_another_event_loop_starts_probing_there() -> None:
    checked = CheckedNode()
    app = asgi(checked.node)
    first = asyncio.new_event_loop()
    first.run_until_complete(request_here(app))
    first.run_until_complete(asyncio.sleep(0))
    assert not checked.node.is_probing, "its loop does not run, and nothing has cancelled the task"

    async def run() -> None:
        await request_here(app)
        assert await checked.is_checked()

    asyncio.run(run())
    for task in asyncio.all_tasks(first):
        task.cancel()
        first.run_until_complete(asyncio.wait([task]))
    first.close()


def not_probing_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if vars(record).get("event") == "not_probing"]


def test_if_the_checks_cannot_run_the_log_and_the_reason_say_so(caplog: pytest.LogCaptureFixture) -> None:
    def failing(_: object) -> NoReturn:
        raise OSError("no disk")

    async def run() -> None:
        app = asgi(checked.node)
        await request_here(app)
        while not not_probing_warnings(caplog):  # noqa: ASYNC110  of a task that is not awaited
            await asyncio.sleep(0)

    checked = CheckedNode()
    internals_of(checked.node).checks.while_running = failing
    asyncio.run(run())
    [warning] = not_probing_warnings(caplog)
    assert "no disk" in warning
    assert checked.node.state("cache").reason == warning


@pytest.mark.parametrize("mounted", [_asgi_mounted, _wsgi_mounted])
def test_if_the_program_does_not_start_probing_the_log_and_the_reason_say_so(
    mounted: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    node = Node("validator-7", version="v1.4.2", clock=clock)
    node.check("cache", interval="1s", stale_after="2s")(lambda: None)
    node.register("indexer").up()
    fetch = mounted("", node, start=False)
    assert [fetch("GET", "/svc/node/health").code for _ in range(3)] == [206] * 3
    cache = node.state("cache")
    assert cache.code == ReasonCode.NOT_STARTED
    assert not_probing_warnings(caplog) == [cache.reason], "once"
    assert node.state("indexer").code == ReasonCode.REPORTED
    node.record("cache", Verdict.ready())
    assert fetch("GET", "/svc/node/health").code == 200
    assert internals_of(node).checks.next_check_in_s("cache") is None
    clock.advance(3.0)
    assert fetch("GET", "/svc/node/health").code == 206
    assert node.state("cache").code == ReasonCode.STALE
    assert node.state("cache").reason.endswith(NOT_RUNNING_REASON)


def test_without_threads_the_node_says_that_checks_do_not_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(has_threads=0))
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(lambda: None)
    fetch = WsgiTransport(wsgi(node))
    assert fetch("GET", "/svc/node/health").code == 206
    assert not node.is_probing
    assert node.state("cache").code == ReasonCode.NOT_STARTED
    assert "--enable-threads" in node.state("cache").reason
    assert not_probing_warnings(caplog) == [node.state("cache").reason]


def test_checks_that_are_started_before_uwsgi_forks_run_in_its_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    ids = dict.fromkeys(["worker_id", "mule_id", "i_am_the_spooler"], lambda: 0)
    uwsgi = SimpleNamespace(has_threads=1, post_fork_hook=lambda: calls.append("of the program"), **ids)
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(lambda: None)
    node.start()
    node.start()
    was_probing = node.is_probing
    uwsgi.worker_id = lambda: 1
    uwsgi.post_fork_hook()
    is_probing = node.is_probing
    node.stop()
    assert (was_probing, is_probing, calls) == (False, True, ["of the program"])


def test_a_thread_that_is_refused_stops_neither_the_request_nor_the_application(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: object) -> None:
        raise ThreadRefusedError

    monkeypatch.setattr("svcnode.node.scheduler.thread.start_thread", refuse)
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(lambda: None)
    fetch = WsgiTransport(wsgi(node, fallback=_wsgi_fallback))
    assert fetch("GET", "/login").code == 418
    assert fetch("GET", "/svc/node/health").code == 206
    assert not_probing_warnings(caplog) == [node.state("cache").reason]


def test_probing_starts_with_the_first_wsgi_request() -> None:
    checked = threading.Event()
    node = Node("validator-7", version="v1.4.2")
    node.check("cache", interval="1s")(checked.set)
    fetch = WsgiTransport(wsgi(node))
    assert internals_of(node).checks.next_check_in_s("cache") is None
    try:
        assert fetch("GET", "/svc/node/health").code in (200, 206)
        assert checked.wait(WAIT_TIMEOUT_S)
        assert becomes_true(lambda: fetch("GET", "/svc/node/health").code == 200)
    finally:
        node.stop()
