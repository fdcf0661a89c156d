"""The Beacon API of a consensus client: `/eth/v1/node/health`, `syncing` and `version`.

Debian has no package of such a client. This server follows the public specification of the API.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tests.support.servers.fake_http import FakeHttpServer, Request, Response, serve
from tests.support.servers.http_request import http_request


class BeaconServer(FakeHttpServer):
    """`set(is_syncing=True, sync_distance=300)`, for example. `health` overrides the status code of /health."""

    scheme = "beacon+http"
    defaults: ClassVar[dict[str, Any]] = {
        "health": None,
        "is_syncing": False,
        "is_optimistic": False,
        "el_offline": False,
        "head_slot": 9_000_000,
        "sync_distance": 0,
    }

    def is_ready(self) -> bool:
        return http_request(self.port, "/eth/v1/node/syncing")[0] == 200


def handle_request(request: Request) -> Response:
    pages = {"/eth/v1/node/health": _health, "/eth/v1/node/syncing": _syncing, "/eth/v1/node/version": _version}
    page = pages.get(request.path)
    return Response(404, {"code": 404, "message": "Not Found"}) if page is None else page(request)


def _health(request: Request) -> Response:
    """Without a body.

    As in the specification, it depends neither on the execution client nor on an optimistic head; some clients differ.
    """
    return Response(request.state["health"] or (206 if request.state["is_syncing"] else 200))


def _syncing(request: Request) -> Response:
    """This API writes numbers as strings."""
    state = request.state
    flags = {name: state[name] for name in ("is_syncing", "is_optimistic", "el_offline")}
    return Response(200, {"data": {name: str(state[name]) for name in ("head_slot", "sync_distance")} | flags})


def _version(request: Request) -> Response:
    return Response(200, {"data": {"version": "Scripted/v1.0.0 (test)"}})


if __name__ == "__main__":
    serve(handle_request)
