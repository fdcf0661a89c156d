"""The Beacon API of a consensus client: its health, sync status, peers and version, and the times of the chain.

Debian has no package of such a client. This server follows the public specification of the API.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from tests.support.servers.fake_http import FakeHttpServer, Request, Response, serve
from tests.support.servers.http_request import http_request

GENESIS_S, SLOT_S = 1_606_824_023, 12  # as on mainnet


class BeaconServer(FakeHttpServer):
    """`set(is_syncing=True, sync_distance=300)`, for example. `health` overrides the status code of /health.

    The head is that of the clock, minus `missed_slots`.
    """

    scheme = "beacon+http"
    defaults: ClassVar[dict[str, Any]] = {
        "health": None,
        "is_syncing": False,
        "is_optimistic": False,
        "el_offline": False,
        "missed_slots": 0,
        "sync_distance": 0,
        "peers": 50,
    }

    def is_ready(self) -> bool:
        return http_request(self.port, "/eth/v1/node/syncing")[0] == 200


def handle_request(request: Request) -> Response:
    pages = {
        "/eth/v1/node/health": _health,
        "/eth/v1/node/syncing": _syncing,
        "/eth/v1/node/version": _version,
        "/eth/v1/node/peer_count": _peer_count,
        "/eth/v1/beacon/genesis": _genesis,
        "/eth/v1/config/spec": _spec,
    }
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
    slots = {"head_slot": str(current_slot() - state["missed_slots"]), "sync_distance": str(state["sync_distance"])}
    return Response(200, {"data": slots | flags})


def current_slot() -> int:
    return int(time.time() - GENESIS_S) // SLOT_S


def _peer_count(request: Request) -> Response:
    return Response(200, {"data": {"connected": str(request.state["peers"]), "disconnected": "12"}})


def _genesis(request: Request) -> Response:
    return Response(200, {"data": {"genesis_time": str(GENESIS_S), "genesis_fork_version": "0x00000000"}})


def _spec(request: Request) -> Response:
    return Response(200, {"data": {"CONFIG_NAME": "mainnet", "SECONDS_PER_SLOT": str(SLOT_S)}})


def _version(request: Request) -> Response:
    return Response(200, {"data": {"version": "Scripted/v1.0.0 (test)"}})


if __name__ == "__main__":
    serve(handle_request)
