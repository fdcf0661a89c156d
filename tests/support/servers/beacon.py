"""The Beacon API of a consensus client: `/eth/v1/node/health`, `syncing` and `version`.

Debian has no package of such a client. This server follows the public specification of the API.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tests.support.servers.fake_http import FakeHttpServer, Request, Response, serve
from tests.support.servers.http_request import http_request


class BeaconServer(FakeHttpServer):
    """`set(is_syncing=True, sync_distance=300)`, for example. `health` overrides the status code of /health."""

    defaults: ClassVar[dict[str, Any]] = {
        "health": None,
        "is_initialised": True,
        "is_syncing": False,
        "is_optimistic": False,
        "el_offline": False,
        "head_slot": 9_000_000,
        "sync_distance": 0,
        "version": "Scripted/v1.0.0 (test)",
    }

    @property
    def url(self) -> str:
        return f"beacon+http://{self.host}:{self.port}"

    def is_ready(self) -> bool:
        return http_request(self.port, "/eth/v1/node/version")[0] == 200


def handle_request(request: Request) -> Response:
    pages = {"/eth/v1/node/health": _health, "/eth/v1/node/syncing": _syncing, "/eth/v1/node/version": _version}
    page = pages.get(request.path)
    if page is None:
        return _error(404, "Not Found")
    if request.method not in {"GET", "HEAD"}:
        return _error(405, "Method Not Allowed")
    return page(request)


def _health(request: Request) -> Response:
    """Without a body. The client may choose the status code for a syncing node.

    As in the specification, it depends neither on the execution client nor on an optimistic head; some clients differ.
    """
    state = request.state
    if state["health"] is not None:
        return Response(state["health"])
    chosen = request.query.get("syncing_status", "206")
    if not (chosen.isdecimal() and 100 <= int(chosen) <= 599):
        return _error(400, "Invalid syncing status code")
    if not state["is_initialised"]:
        return Response(503)
    return Response(int(chosen) if state["is_syncing"] else 200)


def _syncing(request: Request) -> Response:
    """This API writes numbers as strings."""
    state = request.state
    if not state["is_initialised"]:
        return _error(500, "Internal Server Error")
    flags = {name: state[name] for name in ("is_syncing", "is_optimistic", "el_offline")}
    return Response(200, {"data": {name: str(state[name]) for name in ("head_slot", "sync_distance")} | flags})


def _version(request: Request) -> Response:
    return Response(200, {"data": {"version": request.state["version"]}})


def _error(code: int, message: str) -> Response:
    return Response(code, {"code": code, "message": message})


if __name__ == "__main__":
    serve(handle_request)
