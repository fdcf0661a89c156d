"""What a node has beyond the interface inside another program: operator endpoints, history, notifications, metrics.

embedding.py  history, notifications and the operator surface of a node
app.py        the operator endpoints, for the server of the program
stream.py     an event stream from one event loop to another, or to a thread

`Node` and `asgi` load this package by its name, on first use: it is a layer above them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.agent.embed.embedding import embedding_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.registry import Collector

    from svcnode.api.embedded import EmbeddedApp, OperatorOptions
    from svcnode.node import Node


def record_history(node: Node, options: Mapping[str, Any]) -> None:
    embedding_of(node).record_history(options)


def notify(node: Node, options: Mapping[str, Any]) -> None:
    embedding_of(node).notify(options)


def operator_app(node: Node, options: OperatorOptions, prefixes: tuple[str, ...]) -> EmbeddedApp:
    from svcnode.agent.embed.app import EmbeddedOperatorApp

    return EmbeddedOperatorApp(embedding_of(node), options, prefixes)


def prometheus_collector(node: Node) -> Collector:
    """A collector of the node's metrics for a registry of the program: `REGISTRY.register(prometheus_collector(node))`.

    It has the metrics of `/metrics` without those of the process, which the program exports itself.
    """
    from svcnode.operator.metrics import EmbeddedCollector

    embedding = embedding_of(node)
    return EmbeddedCollector(
        node, embedding.surface.check_stats, lambda: embedding.runtime and embedding.runtime.context
    )
