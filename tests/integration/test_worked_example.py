"""The worked example of the interface, over a real socket. A good first file to read about the interface."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node
from tests.support.http_server import WAIT_TIMEOUT_S, RunningServer, running_server
from tests.support.transports import SERVICE_NOT_FOUND, VERSION_NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExampleClient:
    """One connection of the standard library's HTTP client."""

    def __init__(self, server: RunningServer) -> None:
        host, port = server.address
        self._connection = http.client.HTTPConnection(host, port, timeout=WAIT_TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()

    def __call__(self, target: str) -> tuple[int, Any]:
        """The code, and the JSON body or None."""
        self._connection.request("GET", target)
        response = self._connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if body else None


@pytest.fixture
def node() -> Node:
    """A node with three backing services, one in each status."""
    node = Node("validator-7", version="v1.4.2")
    node.register("db", name="Ledger database", description="PostgreSQL holding the ledger").up()
    node.register("indexer", name="Indexer", description="Follows the chain").down("out of disk")
    node.register("storage", name="Storage daemon", description="Keeps the blobs").initializing("loading")
    return node


@pytest.fixture
def fetch(node: Node) -> Iterator[ExampleClient]:
    with running_server(node) as server, closing(ExampleClient(server)) as client:
        yield client


def test_the_identity_of_the_node_its_services_and_their_health(fetch: ExampleClient) -> None:
    identity = {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"}
    assert fetch("/svc/node") == fetch("/svc/node?version=0.0.1") == (200, identity)
    assert fetch("/svc/node?version=v0.0.2") == VERSION_NOT_FOUND
    code, body = fetch("/svc/node/services")
    assert code == 200
    assert [(one["id"], one["status"]) for one in body["services"]] == [
        ("db", "Up"),
        ("indexer", "Down"),
        ("storage", "Initializing"),
    ]
    assert fetch("/svc/node/services/db/health") == (200, None)
    assert fetch("/svc/node/services/indexer/health") == (503, None)
    assert fetch("/svc/node/services/storage/health") == (206, None)
    assert fetch("/svc/node/services/cache/health") == SERVICE_NOT_FOUND


def test_the_health_of_the_node_depends_on_its_services(fetch: ExampleClient, node: Node) -> None:
    assert fetch("/svc/node/health") == (206, None), "some are not healthy"
    node.deregister("indexer")
    node.deregister("storage")
    assert fetch("/svc/node/health") == (200, None), "all are healthy"
    ledger = node.register("ledger", name="Ledger", description="Required", impact="critical")
    assert fetch("/svc/node/health") == (206, None), "one is Initializing"
    ledger.down("gone")
    assert fetch("/svc/node/health") == (503, None), "a critical one is down"
