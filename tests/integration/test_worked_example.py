"""The worked example, from top to bottom: what a node is told, and what whoever asks it gets to see.

Everything here goes over a real socket. A reader who wants to know what the interface looks like may start here.
"""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from svcnode import Node
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S, RunningServer, running_server

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExampleClient:
    """One connection of an ordinary HTTP client."""

    def __init__(self, server: RunningServer) -> None:
        host, port = server.address
        self._connection = http.client.HTTPConnection(host, port, timeout=WAIT_TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()

    def __call__(self, target: str, method: str = "GET") -> tuple[int, Any]:
        """The code and the body, which is JSON or nothing."""
        self._connection.request(method, target)
        response = self._connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if body else None

    def allowed(self, target: str, method: str) -> str | None:
        self._connection.request(method, target)
        response = self._connection.getresponse()
        response.read()
        return response.getheader("Allow")


@pytest.fixture
def node() -> Node:
    """A node with three backing services, one in each status."""
    node = Node("validator-7", version="v1.4.2")
    node.register("db", name="Ledger database", description="PostgreSQL holding the ledger").up()
    node.register("indexer", name="Indexer", description="Follows the chain").down("out of disk")
    node.register("storage", name="Storage daemon", description="Keeps the blobs").initializing("loading")
    return node


@pytest.fixture(params=list(LOOPS))
def fetch(request: pytest.FixtureRequest, node: Node) -> Iterator[ExampleClient]:
    with running_server(node, request.param) as server, closing(ExampleClient(server)) as asker:
        yield asker


def test_the_node_says_who_it_is(fetch: ExampleClient) -> None:
    code, identity = fetch("/svc/node")
    assert code == 200
    assert list(identity.items()) == [
        ("node_name", "validator-7"),
        ("spec_version", "v0.0.1"),
        ("node_version", "v1.4.2"),
    ]


def test_the_node_lists_its_backing_services(fetch: ExampleClient) -> None:
    code, body = fetch("/svc/node/services")
    assert code == 200
    assert body == {
        "services": [
            {
                "id": "db",
                "name": "Ledger database",
                "description": "PostgreSQL holding the ledger",
                "status": "Up",
            },
            {
                "id": "indexer",
                "name": "Indexer",
                "description": "Follows the chain",
                "status": "Down",
            },
            {
                "id": "storage",
                "name": "Storage daemon",
                "description": "Keeps the blobs",
                "status": "Initializing",
            },
        ]
    }
    for service in body["services"]:
        assert list(service) == ["id", "name", "description", "status"]


def test_the_health_of_each_service_is_a_code_and_nothing_else(fetch: ExampleClient) -> None:
    assert fetch("/svc/node/services/db/health") == (200, None)
    assert fetch("/svc/node/services/indexer/health") == (503, None)
    assert fetch("/svc/node/services/storage/health") == (206, None)


def test_the_health_of_the_node_sums_them_up(fetch: ExampleClient, node: Node) -> None:
    assert fetch("/svc/node/health") == (206, None), "some are not healthy"

    node.deregister("indexer")
    node.deregister("storage")
    assert fetch("/svc/node/health") == (200, None), "all are healthy"

    indexer = node.register("indexer", name="Indexer", description="Follows the chain")
    assert fetch("/svc/node/health") == (206, None), "one has not been heard of yet"
    indexer.up()
    assert fetch("/svc/node/health") == (200, None), "all are healthy again"
    indexer.down("out of disk")
    assert fetch("/svc/node/health") == (206, None), "one is down"

    ledger = node.register("ledger", name="Ledger", description="Cannot do without it", impact="critical")
    ledger.up()
    assert fetch("/svc/node/health") == (206, None)
    ledger.down("gone")
    assert fetch("/svc/node/health") == (503, None), "a critical one is down"

    for service_id in ("db", "indexer", "ledger"):
        node.deregister(service_id)
    assert fetch("/svc/node/health") == (200, None), "nothing is registered, so nothing is wrong"
    assert fetch("/svc/node/services") == (200, {"services": []})

    node.register("db", name="Ledger database", description="PostgreSQL").down("refused")
    assert fetch("/svc/node/health") == (503, None), "all are down"


def test_list_and_health_never_disagree(fetch: ExampleClient, node: Node) -> None:
    codes = {"Up": 200, "Initializing": 206, "Down": 503}
    handle = node.register("changing", name="Changing", description="Does not know what it wants")
    for change in (handle.up, handle.initializing, handle.down, handle.initializing, handle.up, handle.down):
        change("because")
        _, listed = fetch("/svc/node/services")
        status = listed["services"][-1]["status"]
        assert fetch("/svc/node/services/changing/health") == (codes[status], None)


def test_a_version_can_be_asked_for(fetch: ExampleClient) -> None:
    assert fetch("/svc/node?version=v0.0.1") == fetch("/svc/node")
    assert fetch("/svc/node?version=0.0.1") == fetch("/svc/node")
    for endpoint in ("/svc/node", "/svc/node/health", "/svc/node/services", "/svc/node/services/db/health"):
        assert fetch(f"{endpoint}?version=v0.0.2") == (404, {"message": "API version not found"})


def test_a_service_nobody_registered_is_not_found(fetch: ExampleClient, node: Node) -> None:
    assert fetch("/svc/node/services/cache/health") == (404, {"message": "Service not found"})
    node.register("cache", name="Cache", description="Warm set").up()
    assert fetch("/svc/node/services/cache/health") == (200, None)
    node.deregister("cache")
    assert fetch("/svc/node/services/cache/health") == (404, {"message": "Service not found"})


def test_the_interface_is_read_only(fetch: ExampleClient) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        for endpoint in ("/svc/node", "/svc/node/health", "/svc/node/services", "/svc/node/services/db/health"):
            assert fetch(endpoint, method) == (405, {"message": "Method not allowed; use GET or HEAD"})
            assert fetch.allowed(endpoint, method) == "GET, HEAD"


def test_an_id_goes_into_the_path_percent_encoded(fetch: ExampleClient, node: Node) -> None:
    for service_id in ("a/b c%", "ü", "...", "?", "#", "%2F", "{service_ID}"):
        node.register(service_id, name="Odd", description="An id may hold any character").down("on purpose")
    _, body = fetch("/svc/node/services")
    for service in body["services"][3:]:
        assert fetch(f"/svc/node/services/{quote(service['id'], safe='')}/health") == (503, None), service["id"]


def test_a_load_balancer_that_reads_206_otherwise_says_which_code_it_wants(fetch: ExampleClient) -> None:
    assert fetch("/svc/node/health?partial_status=200") == (200, None)
    assert fetch("/svc/node/health?partial_status=503") == (503, None)
    assert fetch("/svc/node/health?partial_status=maybe")[0] == 400


def test_a_node_that_drains_sends_its_work_elsewhere(fetch: ExampleClient, node: Node) -> None:
    assert fetch("/readyz") == (200, None)
    node.drain()
    assert fetch("/svc/node/health") == (503, None)
    assert fetch("/readyz") == (503, None)
    assert fetch("/livez") == (200, None), "the process is well, it only takes its leave"


def test_clients_of_the_public_twin_are_served_under_their_own_prefix(node: Node) -> None:
    with running_server(node, prefixes=("/svc", "/eigen")) as server, closing(ExampleClient(server)) as fetch:
        for endpoint in ("/node", "/node/health", "/node/services", "/node/services/storage/health"):
            assert fetch(f"/svc{endpoint}") == fetch(f"/eigen{endpoint}")
            assert fetch(f"/svc{endpoint}")[0] in (200, 206)
        assert fetch("/other/node") == (404, {"message": "Not found"})
