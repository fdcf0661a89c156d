"""The worked example of the interface, over a real socket. A good first file to read about the interface."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

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

    def __call__(self, target: str, method: str = "GET") -> tuple[int, Any]:
        """The code, and the JSON body or None."""
        self._connection.request(method, target)
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


def test_the_identity_of_the_node_and_the_list_of_its_services(fetch: ExampleClient) -> None:
    code, identity = fetch("/svc/node")
    assert code == 200
    assert list(identity.items()) == [
        ("node_name", "validator-7"),
        ("spec_version", "v0.0.1"),
        ("node_version", "v1.4.2"),
    ]
    code, body = fetch("/svc/node/services")
    assert code == 200
    assert [list(service.items()) for service in body["services"]] == [
        list({"id": service_id, "name": name, "description": description, "status": status}.items())
        for service_id, name, description, status in (
            ("db", "Ledger database", "PostgreSQL holding the ledger", "Up"),
            ("indexer", "Indexer", "Follows the chain", "Down"),
            ("storage", "Storage daemon", "Keeps the blobs", "Initializing"),
        )
    ]


def test_the_health_of_each_service_is_a_code_without_a_body(fetch: ExampleClient) -> None:
    assert fetch("/svc/node/services/db/health") == (200, None)
    assert fetch("/svc/node/services/indexer/health") == (503, None)
    assert fetch("/svc/node/services/storage/health") == (206, None)
    assert fetch("/svc/node/services/cache/health") == SERVICE_NOT_FOUND


def test_versions_methods_and_encoded_ids(fetch: ExampleClient, node: Node) -> None:
    assert fetch("/svc/node?version=0.0.1") == fetch("/svc/node")
    for endpoint in ("/svc/node", "/svc/node/health", "/svc/node/services", "/svc/node/services/db/health"):
        assert fetch(f"{endpoint}?version=v0.0.2") == VERSION_NOT_FOUND
        assert fetch(endpoint, "POST")[0] == 405
    node.register("a/b c%", name="Odd", description="An id with special characters").down("on purpose")
    assert fetch(f"/svc/node/services/{quote('a/b c%', safe='')}/health") == (503, None)


def test_the_health_of_the_node_depends_on_its_services(fetch: ExampleClient, node: Node) -> None:
    assert fetch("/svc/node/health") == (206, None), "some are not healthy"

    node.deregister("indexer")
    node.deregister("storage")
    assert fetch("/svc/node/health") == (200, None), "all are healthy"

    indexer = node.register("indexer", name="Indexer", description="Follows the chain")
    assert fetch("/svc/node/health") == (206, None), "one is Initializing"
    indexer.up()
    assert fetch("/svc/node/health") == (200, None), "all are healthy again"
    indexer.down("out of disk")
    assert fetch("/svc/node/health") == (206, None), "one is down"

    ledger = node.register("ledger", name="Ledger", description="Required", impact="critical")
    ledger.up()
    assert fetch("/svc/node/health") == (206, None)
    ledger.down("gone")
    assert fetch("/svc/node/health") == (503, None), "a critical one is down"

    for service_id in ("db", "indexer", "ledger"):
        node.deregister(service_id)
    assert fetch("/svc/node/health") == (200, None), "no services"
    assert fetch("/svc/node/services") == (200, {"services": []})

    node.register("db", name="Ledger database", description="PostgreSQL").down("refused")
    assert fetch("/svc/node/health") == (503, None), "all are down"
