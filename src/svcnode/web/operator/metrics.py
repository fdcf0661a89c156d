"""`/metrics`: what Prometheus collects, in its classic text or in OpenMetrics, as the visitor asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.web.operator.answering import typed_answer

if TYPE_CHECKING:
    from svcnode.spec import Answer
    from svcnode.web.operator.desk import Desk
    from svcnode.web.visits import Visit

OPEN_METRICS = "application/openmetrics-text"


async def metrics(desk: Desk, visit: Visit, name: str) -> Answer:
    is_open = takes_open_metrics(visit.headers.get(b"accept", b"").decode("latin-1"))
    return await desk.shared.get(("metrics", is_open), lambda: _made(desk, is_open=is_open))


def takes_open_metrics(accept: str) -> bool:
    """Whether a visitor takes version 1.0.0, or any."""
    for accepted in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in accepted.split(";"))
        versions = [part for part in parameters if part.startswith("version=")]
        if kind == OPEN_METRICS and versions in ([], ["version=1.0.0"]):
            return True
    return False


def _made(desk: Desk, *, is_open: bool) -> Answer:
    """Runs in a thread, and loads the library there."""
    from prometheus_client.exposition import choose_encoder

    from svcnode.web.operator.collector import registry_of

    encode, content_type = choose_encoder(OPEN_METRICS if is_open else "")
    return typed_answer(encode(registry_of(desk)), content_type)
