"""What runs beside a validator: Web3Signer and MEV-Boost, as their documentation and source describe their status.

Debian has no packages of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tests.support.servers.fake_http import FakeHttpServer, Request, Response, serve
from tests.support.servers.http_request import http_request

KEY = "0x93247f2209abcacf57b75a51dafae777f9dd38bc7053d1af526f220a7489a6d3a2753e5f3e8b1cfe39b56f43611df74a"

BOOST_VERSION = {"X-MEVBoost-Version": "1.9"}


class Web3SignerServer(FakeHttpServer):
    """`database` is the check of its slashing protection, and `claim` what it says of itself: by default the same."""

    scheme = "web3signer+http"
    defaults: ClassVar[dict[str, Any]] = {"database": "UP", "claim": None, "keys": [KEY]}

    def is_ready(self) -> bool:
        return http_request(self.port, "/upcheck")[0] == 200


class MevBoostServer(FakeHttpServer):
    """As with -relay-check."""

    scheme = "mevboost+http"
    defaults: ClassVar[dict[str, Any]] = {"available_relays": 3}

    def is_ready(self) -> bool:
        return http_request(self.port, "/eth/v1/builder/status")[0] in (200, 503)


def handle_request(request: Request) -> Response:
    state = request.state
    match request.path:
        case "/upcheck":
            return Response(200, "OK")
        case "/healthcheck":
            checks = [
                {"id": "default-check", "status": "UP"},
                {"id": "slashing-protection", "status": state["database"]},
            ]
            claim = state["claim"] or state["database"]
            return Response(200 if claim == "UP" else 503, {"status": claim, "checks": checks, "outcome": claim})
        case "/api/v1/eth2/publicKeys":
            return Response(200, state["keys"])
        case "/eth/v1/builder/status" if state["available_relays"]:
            return Response(200, {}, BOOST_VERSION)
        case "/eth/v1/builder/status":
            return Response(503, {"code": 503, "message": "all relays are unavailable"}, BOOST_VERSION)
        case _:
            return Response(404)


if __name__ == "__main__":
    serve(handle_request)
