"""Nodes that several suites ask questions of."""

from __future__ import annotations

from svcnode import Node


def worked_example() -> Node:
    """The worked example of the interface: one service in each of the three statuses."""
    node = Node("validator-7", version="v1.4.2")
    node.register("db", name="Ledger database", description="Holds the ledger").up()
    node.register("indexer", name="Indexer", description="Follows the chain").down("out of disk")
    node.register("storage", name="Storage daemon", description="Keeps the blobs").initializing("loading")
    return node
