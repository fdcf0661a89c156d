"""An EigenDA node: its node API and its page of metrics, which are on two ports of one process.

The metrics are those of node/metrics.go and node/grpc/metrics_v2.go in the repository of EigenDA: each stage of
StoreChunks has a summary, whose count grows with each batch, and "sign" is the last stage. The node itself never
changes the health of its node API.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from tests.support.servers.fake_http import FakeHttpServer, Request, Response, serve
from tests.support.servers.http_request import http_request

BATCHES_PER_S = 20


class EigenDaNode(FakeHttpServer):
    """It signs some batches in each second, as long as `is_signing`."""

    defaults: ClassVar[dict[str, Any]] = {
        "health": 200,
        "is_signing": True,
        "is_reachable": True,
        "has_reachable": True,
    }

    def is_ready(self) -> bool:
        return http_request(self.port, "/eigen/node/health")[0] == 200


def handle_request(request: Request) -> Response:
    match request.path:
        case "/eigen/node/health":
            return Response(request.state["health"])
        case "/metrics":
            return Response(200, metrics_page(request.state))
        case _:
            return Response(404)


def metrics_page(state: dict[str, Any]) -> str:
    batches = int(time.time() * BATCHES_PER_S) if state["is_signing"] else 1000
    lines = [
        'node_registered_quorums_rank{quorum="0"} 42',
        *(
            f'eigenda_node_store_chunks_stage_latency_ms_count{{stage="{stage}"}} {batches}'
            for stage in ("store", "sign")
        ),
    ]
    if state["has_reachable"]:
        lines += [
            f'node_reachability_status{{service="{socket}-v2"}} {int(state["is_reachable"] or socket == "retrieval")}'
            for socket in ("dispersal", "retrieval")
        ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    serve(handle_request)
