"""The metrics of a node for a Prometheus registry of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.agent.embed.node import internals_of
from svcnode.operator.metrics import EmbeddedCollector

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from svcnode.agent.embed.node import Node


def prometheus_collector(node: Node) -> Collector:
    """A collector of the node's metrics for a registry of the program: `REGISTRY.register(prometheus_collector(node))`.

    It has the metrics of `/metrics` without those of the process, which the program exports itself.
    """
    internals = internals_of(node)
    embedding = internals.embedding
    return EmbeddedCollector(
        internals.state, embedding.surface.check_stats, lambda: embedding.runtime and embedding.runtime.context
    )
