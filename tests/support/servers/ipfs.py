"""The RPC API of Kubo: `/api/v0/id` and `swarm/peers`.

Debian has no package of Kubo. This server follows its public documentation: every call is a POST, and a failed call has
status 500 and a JSON body.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tests.support.servers.fake_http import FakeHttpServer, Request, Response, serve
from tests.support.servers.http_request import http_request

_ID = "12D3KooWScriptedNodeOfTheTests"


class IpfsServer(FakeHttpServer):
    """`set(peers=0)`, `set(is_online=False)`. `authorization` is the header that it requires."""

    scheme = "ipfs+http"
    defaults: ClassVar[dict[str, Any]] = {"peers": 3, "is_online": True, "authorization": None}

    def is_ready(self) -> bool:
        authorization = self.state["authorization"]
        headers = {} if authorization is None else {"Authorization": authorization}
        return http_request(self.port, "/api/v0/id", method="POST", headers=headers)[0] == 200


def handle_request(request: Request) -> Response:
    state = request.state
    if state["authorization"] is not None and request.headers.get("authorization") != state["authorization"]:
        return Response(403, "access denied: no valid authorization token\n")
    calls = {"/api/v0/id": _id, "/api/v0/swarm/peers": _peers, "/api/v0/version": _version}
    call = calls.get(request.path)
    if request.method != "POST":
        return Response(405, "405 - Method Not Allowed\n", {"Allow": "OPTIONS, POST"})
    if call is None:
        return Response(404, "404 page not found\n")
    return call(request)


def _id(request: Request) -> Response:
    """An offline node has an id and no addresses."""
    addresses = ["/ip4/127.0.0.1/tcp/4001/p2p/" + _ID] if request.state["is_online"] else None
    return Response(200, {"ID": _ID, "PublicKey": "", "Addresses": addresses, "Protocols": None})


def _peers(request: Request) -> Response:
    if not request.state["is_online"]:
        return Response(500, {"Message": "this command must be run in online mode", "Code": 0, "Type": "error"})
    peers = [
        {"Addr": f"/ip4/192.0.2.{number}/tcp/4001", "Peer": f"12D3KooWPeer{number}"}
        for number in range(1, request.state["peers"] + 1)
    ]
    return Response(200, {"Peers": peers or None})  # an empty list in Go is null in JSON


def _version(request: Request) -> Response:
    return Response(200, {"Version": "0.30.0", "Commit": "", "Repo": "16", "System": "amd64/linux"})


if __name__ == "__main__":
    serve(handle_request)
