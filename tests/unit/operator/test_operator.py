"""Which path leads to which handler, and what is refused before one is asked."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import pytest

from svcnode import operator
from svcnode.api.app import OperatorRequest, StreamingResponse
from svcnode.api.spec import METHOD_NOT_ALLOWED, NOT_FOUND, Response
from svcnode.core.address import Address
from svcnode.operator import ROUTES, OperatorApp
from svcnode.operator.auth import TOKEN_NOT_CONFIGURED, TOKEN_REQUIRED, OperatorAuth

HERE = Address(scheme="http", host="127.0.0.1", port=8420)
ELSEWHERE = Address(scheme="http", host="0.0.0.0", port=8420)
DESK: Any = object()


@pytest.fixture
def came_to(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Path and name of every handler that is asked; none of the real ones is."""
    came: list[tuple[str, str]] = []

    def handler_of(path: str) -> Any:
        async def handler(desk: object, visit: OperatorRequest, name: str) -> Response:
            assert desk is DESK
            came.append((path, name))
            return Response(200)

        return handler

    monkeypatch.setattr(operator, "_handlers", {path: handler_of(path) for path in ROUTES})
    return came


def surface(address: Address = HERE, token: str | None = None) -> OperatorApp:
    return OperatorApp(DESK, OperatorAuth(address, token))


def ours(answer: Response) -> Response:
    """As it is said by the surface: for its own pages alone."""
    return replace(answer, headers=(*answer.headers, ("Cross-Origin-Resource-Policy", "same-origin")))


def answered(path: str | bytes) -> Response:
    raw = path.encode() if isinstance(path, str) else path
    return cast("Answer", asyncio.run(cast("Any", surface().handle(OperatorRequest("GET", raw)))))


# ---- what is taken from the interface


@pytest.mark.parametrize(
    "path",
    ["/", "//", "//x", "/?", "/events", "/%65vents", "/details", "/details/", "/details/a/b", "/static/no", "/badge"],
)
def test_what_is_its_own_or_below_it_is_taken(path: str) -> None:
    assert surface().matches(path.partition("?")[0].encode())


@pytest.mark.parametrize(
    "path",
    [
        *("/svc/node", "/svc", "/livez", "/readyz", "/openapi.json", "/node"),
        *("/Events", "/event", "/eventss", "/favicon.ico", "events", "", "*", "/%ff", "/%ff/events", "x/events"),
    ],
)
def test_everything_else_is_left_to_the_interface(path: str) -> None:
    assert not surface().matches(path.encode())


def test_every_path_that_leads_somewhere_is_taken() -> None:
    assert all(surface().matches(path.encode()) for path in ROUTES)


# ---- which handler


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
def test_a_path_leads_to_its_handler_with_the_name_decoded_once(
    path: str, route: str, name: str, came_to: list[tuple[str, str]]
) -> None:
    assert answered(path).code == 200
    assert came_to == [(route, name)]


@pytest.mark.parametrize(
    "path", ["//", "/details/", "/details/a/b", "/details/%ff", "/history/x", "/badge", "/static", "/events/", "//x"]
)
def test_what_is_below_but_leads_nowhere_is_not_found(path: str, came_to: list[tuple[str, str]]) -> None:
    assert answered(path) == ours(NOT_FOUND)
    assert came_to == []


@pytest.mark.parametrize("target", ROUTES.values(), ids=list(ROUTES))
def test_every_route_has_a_handler_of_the_right_shape(target: str) -> None:
    module, _, name = target.partition(":")
    handler = getattr(import_module(f"svcnode.operator.{module}"), name)
    assert inspect.iscoroutinefunction(handler)
    assert list(inspect.signature(handler).parameters) == ["desk", "visit", "name"]


def test_a_handler_is_loaded_when_it_is_first_asked_for_and_then_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(desk: object, visit: OperatorRequest, name: str) -> Response:
        return Response(200)

    loaded: list[str] = []

    def load(name: str) -> SimpleNamespace:
        loaded.append(name)
        return SimpleNamespace(page=page)

    monkeypatch.setattr(operator, "_handlers", {})
    monkeypatch.setattr(operator, "import_module", load)
    assert [answered("/").code for _ in range(3)] == [200] * 3
    assert loaded == ["svcnode.operator.page"]


def test_a_node_that_nobody_looks_at_loads_no_handler() -> None:
    modules = sorted({target.partition(":")[0] for target in ROUTES.values()} - {"events"})  # whose hub runs always
    code = f"import sys, svcnode.agent; print([m for m in {modules} if f'svcnode.operator.{{m}}' in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


# ---- what is refused


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW", "get"])
def test_only_get_and_head_are_answered(method: str) -> None:
    assert surface().rejection(OperatorRequest(method, b"/")) == ours(METHOD_NOT_ALLOWED)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_get_and_head_are(method: str) -> None:
    assert surface().rejection(OperatorRequest(method, b"/")) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "BREW"])
@pytest.mark.parametrize("path", [*ROUTES, "/details/", "/static/none.js", "//"])
def test_without_the_token_nothing_at_all_can_be_learned(method: str, path: str) -> None:
    assert surface(ELSEWHERE, "a-token-of-some-length").rejection(OperatorRequest(method, path.encode())) == ours(
        TOKEN_REQUIRED
    )
    assert surface(ELSEWHERE).rejection(OperatorRequest(method, path.encode())) == ours(TOKEN_NOT_CONFIGURED)


# ---- what is said with every answer


def test_no_answer_may_be_shown_by_a_page_of_another_site(
    came_to: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(answered(path.format(name="x")) == ours(Response(200)) for path in ROUTES)

    async def stream(desk: object, visit: OperatorRequest, name: str) -> StreamingResponse:
        return StreamingResponse(Response(200), cast("Any", None))

    monkeypatch.setattr(operator, "_handlers", {"/events": stream})
    assert cast("Any", answered("/events")).head == ours(Response(200))
