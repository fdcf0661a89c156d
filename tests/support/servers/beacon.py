"""The Beacon API of a consensus client: its health, sync status, peers, version, validators, and times of the chain.

Debian has no package of such a client. This server follows the public specification of the API.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from tests.support.servers.fake_http import FakeHttpServer, Request, Response, now_s, serve
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
        "slot_s": SLOT_S,
        "genesis_s": GENESIS_S,
        "slots_per_epoch": 32,
        "validator_status": "active_ongoing",
        "is_live": True,  # in every epoch that is asked for
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
        "/eth/v1/beacon/states/head/validators": _validators,
    }
    page = _liveness if request.path.startswith("/eth/v1/validator/liveness/") else pages.get(request.path)
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
    head = int(now_s(state) - state["genesis_s"]) // state["slot_s"] - state["missed_slots"]
    slots = {"head_slot": str(head), "sync_distance": str(state["sync_distance"])}
    return Response(200, {"data": slots | flags})


def _peer_count(request: Request) -> Response:
    return Response(200, {"data": {"connected": str(request.state["peers"]), "disconnected": "12"}})


def _genesis(request: Request) -> Response:
    return Response(
        200, {"data": {"genesis_time": str(request.state["genesis_s"]), "genesis_fork_version": "0x00000000"}}
    )


def _spec(request: Request) -> Response:
    times = {"SECONDS_PER_SLOT": request.state["slot_s"], "SLOTS_PER_EPOCH": request.state["slots_per_epoch"]}
    return Response(200, {"data": {"CONFIG_NAME": "mainnet", **{name: str(value) for name, value in times.items()}}})


def _validators(request: Request) -> Response:
    """All that it is asked for, by their index."""
    status = request.state["validator_status"]
    rows = [
        {"index": index, "status": status, "validator": {"pubkey": "0x" + "ab" * 48, "slashed": "slashed" in status}}
        for index in json.loads(request.body)["ids"]
    ]
    return Response(200, {"execution_optimistic": False, "finalized": False, "data": rows})


def _liveness(request: Request) -> Response:
    rows = [{"index": index, "is_live": request.state["is_live"]} for index in json.loads(request.body)]
    return Response(200, {"data": rows})


def _version(request: Request) -> Response:
    return Response(200, {"data": {"version": "Scripted/v1.0.0 (test)"}})


if __name__ == "__main__":
    serve(handle_request)
