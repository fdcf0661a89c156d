"""Routing of the operator endpoints, and the requests rejected before a handler runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest

from svcnode import operator
from svcnode.api.app import StreamingResponse
from svcnode.api.spec import METHOD_NOT_ALLOWED, NOT_FOUND, Request, Response
from svcnode.core.address import Address
from svcnode.operator import ROUTES, OperatorApp
from svcnode.operator.auth import TOKEN_NOT_CONFIGURED, TOKEN_REQUIRED, OperatorAuth
from tests.support.nodes import make_node
from tests.support.operator_context import operator_context
from tests.support.real_time import in_real_time

HERE = Address(scheme="http", host="127.0.0.1", port=8420)
ELSEWHERE = Address(scheme="http", host="0.0.0.0", port=8420)
CONTEXT: Any = object()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Path and name of every handler call; the handlers are fakes."""
    calls: list[tuple[str, str]] = []

    def handler_of(path: str) -> Any:
        async def handler(context: object, request: Request, name: str) -> Response:
            assert context is CONTEXT
            calls.append((path, name))
            return Response(200)

        return handler

    monkeypatch.setattr(operator, "_handlers", {path: handler_of(path) for path in ROUTES})
    return calls


def app(address: Address = HERE, token: str | None = None) -> OperatorApp:
    return OperatorApp(CONTEXT, OperatorAuth(address, token, trusts_loopback=True))


def same_origin(response: Response) -> Response:
    """The response with the header that the app adds to every response."""
    return replace(response, headers=(*response.headers, ("Cross-Origin-Resource-Policy", "same-origin")))


def get(path: str | bytes) -> Response:
    raw = path.encode() if isinstance(path, str) else path
    return cast("Response", asyncio.run(cast("Any", app().handle(Request("GET", raw)))))


@pytest.mark.parametrize("path", [*ROUTES, "/?", "/%65vents", "/details/", "/details/a/b", "/static/no", "/badge"])
def test_the_app_takes_its_paths_and_everything_below_them(path: str) -> None:
    assert app().matches(path.partition("?")[0].encode())


@pytest.mark.parametrize(
    "path",
    [
        *("/svc/node", "/svc", "/livez", "/readyz", "/openapi.json", "/node"),
        *("//", "//x", "//svc/node/health", "//details"),
        *("/Events", "/event", "/eventss", "/favicon.ico", "events", "", "*", "/%ff", "/%ff/events", "x/events"),
    ],
)
def test_other_paths_are_left_to_the_interface(path: str) -> None:
    assert not app().matches(path.encode())


@pytest.mark.parametrize(
    ("path", "route", "name"),
    [
        ("/", "/", ""),
        ("/details", "/details", ""),
        ("/%64etails", "/details", ""),
        ("/details/db", "/details/{name}", "db"),
        ("/details/details", "/details/{name}", "details"),
        ("/details/%7Bname%7D", "/details/{name}", "{name}"),
        ("/details/a%2Fb%25c", "/details/{name}", "a/b%c"),
        ("/details/a%252Fb", "/details/{name}", "a%2Fb"),
        ("/details/%C3%BC+x", "/details/{name}", "ü+x"),
        ("/details/..", "/details/{name}", ".."),
        ("/static/..%2F..%2Fetc%2Fpasswd", "/static/{name}", "../../etc/passwd"),
        ("/badge/node.svg", "/badge/{name}", "node.svg"),
        ("/history", "/history", ""),
    ],
)
def test_a_handler_gets_the_name_decoded_once(path: str, route: str, name: str, calls: list[tuple[str, str]]) -> None:
    assert get(path).code == 200
    assert calls == [(route, name)]


@pytest.mark.parametrize(
    "path", ["//", "/details/", "/details/a/b", "/details/%ff", "/history/x", "/badge", "/static", "/events/", "//x"]
)
def test_a_path_without_a_handler_is_not_found(path: str, calls: list[tuple[str, str]]) -> None:
    assert get(path) == same_origin(NOT_FOUND)
    assert calls == []


def test_importing_the_agent_loads_no_handler_and_no_prometheus_library() -> None:
    modules = ["prometheus_client", *sorted({f"svcnode.operator.{one.partition(':')[0]}" for one in ROUTES.values()})]
    code = f"import sys, svcnode.agent.agent; print([name for name in {modules} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


@pytest.mark.parametrize(("method", "is_allowed"), [("GET", True), ("HEAD", True), ("POST", False), ("get", False)])
def test_only_get_and_head_are_allowed(method: str, is_allowed: bool) -> None:
    assert app().rejection(Request(method, b"/")) == (None if is_allowed else same_origin(METHOD_NOT_ALLOWED))


@pytest.mark.parametrize("path", ["/", "/events", "/details/", "/static/none.js", "//"])
def test_without_the_token_every_path_and_method_gets_the_same_response(path: str) -> None:
    for request in (Request("GET", path.encode()), Request("BREW", path.encode())):
        assert app(ELSEWHERE, "a-token-of-some-length").rejection(request) == same_origin(TOKEN_REQUIRED)
        assert app(ELSEWHERE).rejection(request) == same_origin(TOKEN_NOT_CONFIGURED)


def test_every_response_forbids_embedding_by_other_sites(
    calls: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(get(path.format(name="x")) == same_origin(Response(200)) for path in ROUTES)

    async def stream(context: object, request: Request, name: str) -> StreamingResponse:
        return StreamingResponse(Response(200), cast("Any", None))

    monkeypatch.setattr(operator, "_handlers", {"/events": stream})
    assert cast("Any", get("/events")).head == same_origin(Response(200))


@pytest.mark.parametrize("path", ["/", "/details", "/metrics", "/history?id=db", "/static/page.css", "/badge/db.svg"])
@pytest.mark.parametrize("is_loaded", [True, False])
def test_without_a_free_thread_the_response_says_so(
    monkeypatch: pytest.MonkeyPatch, path: str, is_loaded: bool
) -> None:
    node = make_node()
    node.register("db")
    target, _, query = path.partition("?")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> Any:
        request = Request("GET", target.encode(), query.encode())
        if is_loaded:
            await operator.handle(operator_context(node), request)
        else:
            monkeypatch.setattr(operator, "_handlers", {})
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            return await operator.handle(operator_context(node), request)

    answer = asyncio.run(ask())
    expected = 200 if is_loaded and "badge" in path else 503  # a badge needs no thread
    assert answer.code == expected


@pytest.mark.parametrize("path", [path for path in ROUTES if not path.startswith("/static")])
@in_real_time
async def test_a_parameter_that_does_not_exist_is_refused_on_every_path(path: str) -> None:
    """The client would take the answer for what it has asked for."""
    context = operator_context(make_node())
    request = Request("GET", path.replace("{name}", "node.svg").encode(), b"nonsense=1")
    response = await operator.handle(context, request)
    assert isinstance(response, Response)
    assert response.code == 400


def test_the_parameters_of_a_path_reach_its_handler(calls: list[tuple[str, str]]) -> None:
    for path, query in (("/badge/node.svg", b"service"), ("/page/changes", b"after=1&id=db"), ("/problems", b"")):
        response = asyncio.run(cast("Any", app().handle(Request("GET", path.encode(), query))))
        assert response.code == 200
    assert len(calls) == 3
