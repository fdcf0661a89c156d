"""The paths outside the prefix, and the OpenAPI document."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest
from tests.support.node_cases import worked_example
from tests.support.nodes import make_node

from svcnode.agent.embed.node import internals_of
from svcnode.api import routing, spec
from svcnode.api.spec import Request, Response
from svcnode.core.model import DEFAULT_PREFIX, VERSION_PATTERN, Health, Status
from svcnode.node.node_state import NodeState

PREFIXES = ("/svc",)


CAUSE = RuntimeError("secret")


class BrokenNode(NodeState):
    @property
    def health(self) -> Health:
        raise CAUSE


def get(node: NodeState, path: bytes, query: bytes = b"", method: str = "GET") -> Response:
    return routing.route(Request(method, path, query), PREFIXES)(node)


def test_readyz_is_never_200_for_an_unhealthy_node_and_strictly_only_for_a_healthy_one() -> None:
    healthy, partial, unhealthy = (make_node("n", version="v1") for _ in range(3))
    partial.overrides.set_caveat("lost", "a service is lost")
    unhealthy.overrides.drain()
    nodes = (healthy, partial, unhealthy)
    assert [get(node, b"/livez").code for node in nodes] == [200, 200, 200]
    assert [get(node, b"/readyz").code for node in nodes] == [200, 200, 503]
    assert [get(node, b"/readyz", b"strict").code for node in nodes] == [200, 503, 503]
    assert get(healthy, b"/readyz", method="OPTIONS") == spec.METHOD_NOT_ALLOWED
    assert get(healthy, b"/svc/node") == spec.respond(healthy, Request("GET", b"/svc/node"))


def test_a_node_that_is_starting_is_not_ready() -> None:
    node = make_node("n", version="v1", starting=True)
    codes = [get(node, b"/livez").code, get(node, b"/readyz").code, get(node, b"/readyz", b"strict").code]
    assert codes == [200, 503, 503]
    node.overrides.started()
    assert get(node, b"/readyz").code == 200


def test_readyz_is_503_on_an_internal_error_and_keeps_the_cause_for_the_log() -> None:
    failed = get(BrokenNode(make_node().identity), b"/readyz")
    assert (failed.code, failed.body, failed.cause) == (503, b"", CAUSE)


@pytest.mark.parametrize(
    ("path", "prefixes", "is_under"),
    [
        (b"/svc", ("/svc", "/eigen"), True),
        (b"/%73vc/nowhere", ("/svc", "/eigen"), True),
        (b"/eigen/node", ("/svc", "/eigen"), True),
        (b"/anything", ("",), True),
        (b"/svcnode", ("/svc", "/eigen"), False),
        (b"/other/svc/node", ("/svc", "/eigen"), False),
        (b"/\xff", ("/svc", "/eigen"), False),
        (b"/svc%2Fnode", ("/svc", "/eigen"), False),
    ],
)
def test_a_path_is_under_a_prefix_by_its_segments(path: bytes, prefixes: tuple[str, ...], is_under: bool) -> None:
    assert routing.is_under_prefix(path, prefixes) is is_under


# ---- the OpenAPI document


def document_for(*prefixes: str) -> dict[str, Any]:
    fetched = routing.route(Request("GET", b"/openapi.json"), prefixes)(internals_of(worked_example()).state)
    assert fetched.code == 200
    assert ("Content-Type", "application/json") in fetched.headers
    document = json.loads(fetched.body)
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return document_for("/svc")


def resolved(document: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Follows a `$ref`."""
    if "$ref" not in value:
        return value
    found = document
    for step in value["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


def operation(document: dict[str, Any], path: str) -> dict[str, Any]:
    found = document["paths"][path]["get"]
    assert isinstance(found, dict)
    return found


def parameters(document: dict[str, Any], path: str) -> dict[str, dict[str, Any]]:
    found = (resolved(document, one) for one in operation(document, path)["parameters"])
    return {one["name"]: one for one in found}


def response(document: dict[str, Any], path: str, code: int | str) -> dict[str, Any]:
    return resolved(document, operation(document, path)["responses"][str(code)])


def schema_of(document: dict[str, Any], path: str, code: int) -> dict[str, Any]:
    return resolved(document, response(document, path, code)["content"]["application/json"]["schema"])


def test_the_document_has_the_prefixes_as_servers_and_the_packaged_one_the_default() -> None:
    assert document_for("/svc", "/eigen")["servers"] == [{"url": "/svc"}, {"url": "/eigen"}]
    assert document_for("")["servers"] == [{"url": "/"}]
    packaged = json.loads(resources.files("svcnode.api").joinpath("openapi.json").read_text("utf-8"))
    assert packaged == document_for(DEFAULT_PREFIX)


def test_the_document_describes_exactly_the_routes(document: dict[str, Any]) -> None:
    assert list(document["paths"]) == [route.path for route in spec.ROUTES]
    assert all(list(item) == ["get"] for item in document["paths"].values())


@pytest.mark.parametrize("route", spec.ROUTES, ids=lambda route: route.path)
def test_every_parameter_and_status_code_of_a_route_is_described(document: dict[str, Any], route: spec.Route) -> None:
    described = parameters(document, route.path)
    in_query = {"version", "partial_status"} if route.is_health else {"version"}
    assert set(described) == in_query | set(re.findall(r"{(\w+)}", route.path))
    assert set(described["version"]["schema"]["enum"]) == spec.SUPPORTED_VERSIONS
    codes = {200, 404, route.failure.code} | ({206, 400, 503} if route.is_health else set())
    described_codes = operation(document, route.path)["responses"]
    assert {code for code in described_codes if code.isdecimal()} == {str(code) for code in codes}


def test_the_described_range_of_partial_status_is_the_accepted_one(document: dict[str, Any]) -> None:
    schema = parameters(document, "/node/health")["partial_status"]["schema"]
    described = range(schema["minimum"], schema["maximum"] + 1)
    accepted = [code for code in range(1000) if spec.PARTIAL_STATUS_PATTERN.fullmatch(str(code))]
    assert accepted == list(described)
    assert {f"{code // 100}XX" for code in described} <= set(operation(document, "/node/health")["responses"])


def sent_fields(path: bytes) -> Any:
    return json.loads(spec.respond(internals_of(worked_example()).state, Request("GET", path)).body)


def test_the_described_fields_are_the_sent_fields_in_order(document: dict[str, Any]) -> None:
    node, listed = schema_of(document, "/node", 200), schema_of(document, "/node/services", 200)
    service = resolved(document, listed["properties"]["services"]["items"])
    assert list(node["properties"]) == list(sent_fields(b"/svc/node"))
    assert list(listed["properties"]) == list(sent_fields(b"/svc/node/services"))
    assert list(service["properties"]) == list(sent_fields(b"/svc/node/services")["services"][0])
    for path in document["paths"]:
        error = schema_of(document, path, 404)
        assert list(error["properties"]) == list(json.loads(spec.NOT_FOUND.body))


def test_the_described_statuses_and_versions_are_those_of_the_model(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["BackingService"]["properties"]["status"]["enum"]) == {status.value for status in Status}
    for field in ("spec_version", "node_version"):
        version = resolved(document, schemas["Node"]["properties"][field])
        assert version["pattern"] == f"^{VERSION_PATTERN.pattern}$"


def test_the_example_errors_are_the_sent_errors(document: dict[str, Any]) -> None:
    sent = [spec.VERSION_NOT_FOUND, spec.SERVICE_NOT_FOUND, spec.BAD_PARTIAL_STATUS, spec.INTERNAL_ERROR]
    examples = {
        (int(code), json.dumps(example["value"]))
        for path in document["paths"]
        for code in operation(document, path)["responses"]
        if code.startswith(("4", "5"))
        for media in response(document, path, code).get("content", {}).values()
        for example in media["examples"].values()
    }
    assert examples == {(one.code, json.dumps(json.loads(one.body))) for one in sent}


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        (b"/livez", b"x=1", 400),
        (b"/readyz", b"strickt", 400),
        (b"/openapi.json", b"x=1", 400),
        (b"/readyz", b"strict", 200),
        (b"/svc/node/health", b"x=1", 200),
    ],
)
def test_only_the_interface_tolerates_unknown_parameters(path: bytes, query: bytes, code: int) -> None:
    assert routing.respond(make_node(), Request("GET", path, query), ("/svc",)).code == code
