"""`/metrics`: what Prometheus collects, in its classic text or in OpenMetrics, as the visitor asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.operator.responses import typed_response

if TYPE_CHECKING:
    from svcnode.api.app import OperatorRequest
    from svcnode.api.spec import Response
    from svcnode.operator.context import OperatorContext

OPENMETRICS_TYPE = "application/openmetrics-text"


async def metrics(context: OperatorContext, request: OperatorRequest, name: str) -> Response:
    is_open = accepts_openmetrics(request.headers.get(b"accept", b"").decode("latin-1"))
    return await context.single_flight.get(("metrics", is_open), lambda: _make_response(context, is_open=is_open))


def accepts_openmetrics(accept: str) -> bool:
    """Whether a visitor takes version 1.0.0, or any."""
    for accepted in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [part for part in parameters if part.startswith("version=")]
        if kind == OPENMETRICS_TYPE and versions in ([], ["version=1.0.0"]):
            return True
    return False


def _make_response(context: OperatorContext, *, is_open: bool) -> Response:
    """Runs in a thread, and loads the library there."""
    from prometheus_client.exposition import choose_encoder

    from svcnode.operator.collector import build_registry

    encode, content_type = choose_encoder(OPENMETRICS_TYPE if is_open else "")
    return typed_response(encode(build_registry(context)), content_type)
