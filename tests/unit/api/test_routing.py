"""The few paths beside the interface, and the document that describes it."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest
from tests.support.node_cases import worked_example

from svcnode.api import routing, spec
from svcnode.api.spec import Request, Response
from svcnode.core.model import SPEC_VERSION, VERSION_PATTERN, Health, Status
from svcnode.node import Node

PREFIXES = ("/svc",)


class BrokenNode(Node):
    @property
    def health(self) -> Health:
        raise RuntimeError("the secret cause")


@pytest.fixture
def healthy() -> Node:
    return Node("validator-7", version="v1.4.2")


@pytest.fixture
def partial() -> Node:
    return Node("validator-7", version="v1.4.2", starting=True)


@pytest.fixture
def unhealthy() -> Node:
    node = Node("validator-7", version="v1.4.2")
    node.drain()
    return node


def get(node: Node, path: bytes, query: bytes = b"", method: str = "GET") -> Response:
    return routing.route(Request(method, path, query), PREFIXES)(node)


# ---- liveness and readiness


def test_a_process_that_answers_is_alive_whatever_its_node_is(healthy: Node, unhealthy: Node) -> None:
    for node in (healthy, unhealthy, BrokenNode("validator-7", version="v1")):
        assert get(node, b"/livez").code == 200


def test_readiness_reads_partially_healthy_as_ready(healthy: Node, partial: Node, unhealthy: Node) -> None:
    assert [get(node, b"/readyz").code for node in (healthy, partial, unhealthy)] == [200, 200, 503]


@pytest.mark.parametrize("query", [b"strict", b"strict=", b"strict=1", b"a=b&strict"])
def test_strict_readiness_reads_partially_healthy_as_not_ready(
    healthy: Node, partial: Node, unhealthy: Node, query: bytes
) -> None:
    assert [get(node, b"/readyz", query).code for node in (healthy, partial, unhealthy)] == [200, 503, 503]


def test_a_node_that_does_not_know_is_not_ready_and_the_log_gets_the_cause() -> None:
    answered = get(BrokenNode("validator-7", version="v1"), b"/readyz")
    assert (answered.code, answered.body, str(answered.cause)) == (503, b"", "the secret cause")


@pytest.mark.parametrize("path", [b"/livez", b"/readyz", b"/openapi.json"])
def test_only_get_and_head_are_answered_beside_the_interface(healthy: Node, path: bytes) -> None:
    assert get(healthy, path, method="HEAD") == get(healthy, path)
    refused = get(healthy, path, method="OPTIONS")
    assert (refused.code, dict(refused.headers)["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", [b"/livez", b"/readyz"])
def test_what_is_said_beside_the_interface_has_no_body_and_is_not_kept(healthy: Node, path: bytes) -> None:
    headers = dict(get(healthy, path).headers)
    assert (headers["Content-Length"], headers["Cache-Control"]) == ("0", "no-store")


@pytest.mark.parametrize("path", [b"/livez/", b"/svc/livez", b"/LIVEZ", b"/"])
def test_nothing_else_is_beside_the_interface(healthy: Node, path: bytes) -> None:
    assert get(healthy, path) == spec.NOT_FOUND


def test_the_interface_is_answered_as_it_is_without_a_site(partial: Node) -> None:
    for path in (b"/svc/node", b"/svc/node/health", b"/svc/node/services", b"/svc/nowhere"):
        assert get(partial, path) == spec.respond(partial, Request("GET", path))


# ---- what belongs to the interface


@pytest.mark.parametrize("path", [b"/svc", b"/svc/", b"/svc/node", b"/svc/nowhere", b"/%73vc/node", b"/eigen/node"])
def test_everything_below_a_prefix_belongs_to_the_interface(path: bytes) -> None:
    assert routing.is_under_prefix(path, ("/svc", "/eigen"))


@pytest.mark.parametrize("path", [b"/", b"", b"/svcnode", b"/other/svc/node", b"//svc/node", b"/\xff", b"/svc%2Fnode"])
def test_nothing_else_does(path: bytes) -> None:
    assert not routing.is_under_prefix(path, ("/svc", "/eigen"))


def test_everything_belongs_to_an_interface_without_a_prefix() -> None:
    assert routing.is_under_prefix(b"/anything", ("",))


# ---- the OpenAPI document


def document_for(*prefixes: str) -> dict[str, Any]:
    answered = routing.route(Request("GET", b"/openapi.json"), prefixes)(worked_example())
    assert answered.code == 200
    assert ("Content-Type", "application/json") in answered.headers
    document = json.loads(answered.body)
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return document_for("/svc")


def resolved(document: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for; anything else stands for itself."""
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


def test_the_document_names_the_prefixes_the_interface_is_served_under() -> None:
    assert document_for("/svc", "/eigen")["servers"] == [{"url": "/svc"}, {"url": "/eigen"}]
    assert document_for("")["servers"] == [{"url": "/"}]


def test_the_document_in_the_package_is_for_the_default_prefix() -> None:
    packaged = json.loads(resources.files("svcnode.api").joinpath("openapi.json").read_text("utf-8"))
    assert packaged == document_for(spec.DEFAULT_PREFIX)


def test_the_document_is_for_this_version_of_the_interface(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert f"v{document['info']['version']}" == SPEC_VERSION


def test_every_route_is_described_and_nothing_else(document: dict[str, Any]) -> None:
    assert list(document["paths"]) == [route.path for route in spec.ROUTES]
    assert all(list(item) == ["get"] for item in document["paths"].values())


def test_every_operation_can_be_read_as_documentation(document: dict[str, Any]) -> None:
    operations = [operation(document, route.path) for route in spec.ROUTES]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert all(one["summary"] and one["description"] for one in operations)


def test_every_reference_leads_somewhere_and_every_component_is_used(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    referred = set(re.findall(r'"#/components/(\w+/\w+)"', text))
    defined = {f"{kind}/{name}" for kind, those in document["components"].items() for name in those}
    assert referred == defined


@pytest.mark.parametrize("route", spec.ROUTES, ids=lambda route: route.path)
def test_every_parameter_of_a_route_is_described(document: dict[str, Any], route: spec.Route) -> None:
    described = parameters(document, route.path)
    expected = (
        {"version"} | ({"partial_status"} if route.is_health else set()) | set(re.findall(r"{(\w+)}", route.path))
    )
    assert set(described) == expected
    assert set(described["version"]["schema"]["enum"]) == spec.SUPPORTED_VERSIONS


def test_the_codes_that_a_caller_may_choose_are_the_described_ones(document: dict[str, Any]) -> None:
    schema = parameters(document, "/node/health")["partial_status"]["schema"]
    described = range(schema["minimum"], schema["maximum"] + 1)
    accepted = [code for code in range(1000) if spec.PARTIAL_STATUS_PATTERN.fullmatch(str(code))]
    assert accepted == list(described)
    assert {f"{code // 100}XX" for code in described} <= set(operation(document, "/node/health")["responses"])


@pytest.mark.parametrize("route", spec.ROUTES, ids=lambda route: route.path)
def test_every_answer_of_a_route_is_described(document: dict[str, Any], route: spec.Route) -> None:
    described = set(operation(document, route.path)["responses"])
    expected = {200, 404, route.failure.code} | ({206, 400, 503} if route.is_health else set())
    assert {code for code in described if code.isdecimal()} == {str(code) for code in expected}


@pytest.mark.parametrize("route", spec.ROUTES, ids=lambda route: route.path)
def test_every_described_answer_has_the_headers_that_every_answer_has(
    document: dict[str, Any], route: spec.Route
) -> None:
    sent = dict(spec.NOT_FOUND.headers)
    for code in operation(document, route.path)["responses"]:
        described = response(document, route.path, code)["headers"]
        assert {name: resolved(document, header)["schema"]["const"] for name, header in described.items()} == {
            name: sent[name] for name in ("Cache-Control", "X-Content-Type-Options")
        }


@pytest.mark.parametrize("route", [route for route in spec.ROUTES if route.is_health], ids=lambda route: route.path)
def test_health_is_described_without_a_body_and_its_errors_with_one(
    document: dict[str, Any], route: spec.Route
) -> None:
    with_body = {
        code
        for code in operation(document, route.path)["responses"]
        if "content" in response(document, route.path, code)
    }
    assert with_body == {"400", "404"}


def sent_fields(path: bytes) -> Any:
    return json.loads(spec.respond(worked_example(), Request("GET", path)).body)


def test_the_described_fields_are_the_sent_ones_in_the_order_of_the_interface(document: dict[str, Any]) -> None:
    node, listed = schema_of(document, "/node", 200), schema_of(document, "/node/services", 200)
    service = resolved(document, listed["properties"]["services"]["items"])
    assert list(node["properties"]) == list(sent_fields(b"/svc/node"))
    assert list(listed["properties"]) == list(sent_fields(b"/svc/node/services"))
    assert list(service["properties"]) == list(sent_fields(b"/svc/node/services")["services"][0])
    for path in document["paths"]:
        error = schema_of(document, path, 404)
        assert list(error["properties"]) == list(json.loads(spec.NOT_FOUND.body))


def test_the_required_fields_are_those_that_the_interface_requires(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["Node"]["required"] == ["node_name", "spec_version", "node_version"]
    assert schemas["Services"]["required"] == ["services"]
    assert schemas["BackingService"]["required"] == ["id", "name", "description"]
    assert schemas["Error"]["required"] == ["message"]


def test_the_described_statuses_and_versions_are_those_of_the_model(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["BackingService"]["properties"]["status"]["enum"]) == {status.value for status in Status}
    for field in ("spec_version", "node_version"):
        version = resolved(document, schemas["Node"]["properties"][field])
        assert version["pattern"] == f"^{VERSION_PATTERN.pattern}$"


def test_the_shown_errors_are_the_sent_ones(document: dict[str, Any]) -> None:
    sent = [spec.VERSION_NOT_FOUND, spec.SERVICE_NOT_FOUND, spec.BAD_PARTIAL_STATUS, spec.INTERNAL_ERROR]
    shown = {
        (int(code), json.dumps(example["value"]))
        for path in document["paths"]
        for code in operation(document, path)["responses"]
        if code.startswith(("4", "5"))
        for media in response(document, path, code).get("content", {}).values()
        for example in media["examples"].values()
    }
    assert shown == {(one.code, json.dumps(json.loads(one.body))) for one in sent}


def test_the_shown_bodies_have_the_described_fields_in_order(document: dict[str, Any]) -> None:
    for path in ("/node", "/node/services"):
        properties = schema_of(document, path, 200)["properties"]
        for shown in response(document, path, 200)["content"]["application/json"]["examples"].values():
            assert list(shown["value"]) == list(properties)
            for service in shown["value"].get("services", []):
                assert list(service) == list(document["components"]["schemas"]["BackingService"]["properties"])
