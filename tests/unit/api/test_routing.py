"""The paths outside the prefix, and the OpenAPI document."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest
from tests.support.node_cases import worked_example

from svcnode.api import routing, spec
from svcnode.api.spec import Request, Response
from svcnode.core.model import DEFAULT_PREFIX, SPEC_VERSION, VERSION_PATTERN, Health, Status
from svcnode.node import Node

PREFIXES = ("/svc",)


CAUSE = RuntimeError("secret")


class BrokenNode(Node):
    @property
    def health(self) -> Health:
        raise CAUSE


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


def test_livez_is_200_whatever_the_health_of_the_node(healthy: Node, unhealthy: Node) -> None:
    for node in (healthy, unhealthy, BrokenNode("validator-7", version="v1")):
        assert get(node, b"/livez").code == 200


def test_readyz_treats_partially_healthy_as_ready(healthy: Node, partial: Node, unhealthy: Node) -> None:
    assert [get(node, b"/readyz").code for node in (healthy, partial, unhealthy)] == [200, 200, 503]


@pytest.mark.parametrize("query", [b"strict", b"strict=", b"strict=1", b"a=b&strict"])
def test_strict_readyz_treats_partially_healthy_as_not_ready(
    healthy: Node, partial: Node, unhealthy: Node, query: bytes
) -> None:
    assert [get(node, b"/readyz", query).code for node in (healthy, partial, unhealthy)] == [200, 503, 503]


def test_readyz_is_503_on_an_internal_error_and_keeps_the_cause_for_the_log() -> None:
    failed = get(BrokenNode("validator-7", version="v1"), b"/readyz")
    assert (failed.code, failed.body, failed.cause) == (503, b"", CAUSE)


@pytest.mark.parametrize("path", [b"/livez", b"/readyz", b"/openapi.json"])
def test_unprefixed_paths_allow_only_get_and_head(healthy: Node, path: bytes) -> None:
    assert get(healthy, path, method="HEAD") == get(healthy, path)
    options = get(healthy, path, method="OPTIONS")
    assert (options.code, dict(options.headers)["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", [b"/livez", b"/readyz"])
def test_livez_and_readyz_have_no_body_and_are_not_cached(healthy: Node, path: bytes) -> None:
    headers = dict(get(healthy, path).headers)
    assert (headers["Content-Length"], headers["Cache-Control"]) == ("0", "no-store")


@pytest.mark.parametrize("path", [b"/livez/", b"/svc/livez", b"/LIVEZ", b"/"])
def test_other_unprefixed_paths_are_not_found(healthy: Node, path: bytes) -> None:
    assert get(healthy, path) == spec.NOT_FOUND


def test_prefixed_paths_get_the_response_of_the_spec(partial: Node) -> None:
    for path in (b"/svc/node", b"/svc/node/health", b"/svc/node/services", b"/svc/nowhere"):
        assert get(partial, path) == spec.respond(partial, Request("GET", path))


# ---- paths under a prefix


@pytest.mark.parametrize("path", [b"/svc", b"/svc/", b"/svc/node", b"/svc/nowhere", b"/%73vc/node", b"/eigen/node"])
def test_a_path_below_a_prefix_is_under_it(path: bytes) -> None:
    assert routing.is_under_prefix(path, ("/svc", "/eigen"))


@pytest.mark.parametrize("path", [b"/", b"", b"/svcnode", b"/other/svc/node", b"//svc/node", b"/\xff", b"/svc%2Fnode"])
def test_other_paths_are_not_under_a_prefix(path: bytes) -> None:
    assert not routing.is_under_prefix(path, ("/svc", "/eigen"))


def test_every_path_is_under_the_empty_prefix() -> None:
    assert routing.is_under_prefix(b"/anything", ("",))


# ---- the OpenAPI document


def document_for(*prefixes: str) -> dict[str, Any]:
    fetched = routing.route(Request("GET", b"/openapi.json"), prefixes)(worked_example())
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


def test_the_document_has_the_prefixes_as_servers() -> None:
    assert document_for("/svc", "/eigen")["servers"] == [{"url": "/svc"}, {"url": "/eigen"}]
    assert document_for("")["servers"] == [{"url": "/"}]


def test_the_packaged_document_is_for_the_default_prefix() -> None:
    packaged = json.loads(resources.files("svcnode.api").joinpath("openapi.json").read_text("utf-8"))
    assert packaged == document_for(DEFAULT_PREFIX)


def test_the_document_has_the_version_of_the_interface(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert f"v{document['info']['version']}" == SPEC_VERSION


def test_the_document_describes_exactly_the_routes(document: dict[str, Any]) -> None:
    assert list(document["paths"]) == [route.path for route in spec.ROUTES]
    assert all(list(item) == ["get"] for item in document["paths"].values())


def test_every_operation_has_a_unique_id_a_summary_and_a_description(document: dict[str, Any]) -> None:
    operations = [operation(document, route.path) for route in spec.ROUTES]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert all(one["summary"] and one["description"] for one in operations)


def test_every_reference_has_a_component_and_every_component_a_reference(document: dict[str, Any]) -> None:
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


def test_the_described_range_of_partial_status_is_the_accepted_one(document: dict[str, Any]) -> None:
    schema = parameters(document, "/node/health")["partial_status"]["schema"]
    described = range(schema["minimum"], schema["maximum"] + 1)
    accepted = [code for code in range(1000) if spec.PARTIAL_STATUS_PATTERN.fullmatch(str(code))]
    assert accepted == list(described)
    assert {f"{code // 100}XX" for code in described} <= set(operation(document, "/node/health")["responses"])


@pytest.mark.parametrize("route", spec.ROUTES, ids=lambda route: route.path)
def test_every_status_code_of_a_route_is_described(document: dict[str, Any], route: spec.Route) -> None:
    described = set(operation(document, route.path)["responses"])
    expected = {200, 404, route.failure.code} | ({206, 400, 503} if route.is_health else set())
    assert {code for code in described if code.isdecimal()} == {str(code) for code in expected}


@pytest.mark.parametrize("route", spec.ROUTES, ids=lambda route: route.path)
def test_every_described_response_has_the_common_headers(document: dict[str, Any], route: spec.Route) -> None:
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


def test_the_described_fields_are_the_sent_fields_in_order(document: dict[str, Any]) -> None:
    node, listed = schema_of(document, "/node", 200), schema_of(document, "/node/services", 200)
    service = resolved(document, listed["properties"]["services"]["items"])
    assert list(node["properties"]) == list(sent_fields(b"/svc/node"))
    assert list(listed["properties"]) == list(sent_fields(b"/svc/node/services"))
    assert list(service["properties"]) == list(sent_fields(b"/svc/node/services")["services"][0])
    for path in document["paths"]:
        error = schema_of(document, path, 404)
        assert list(error["properties"]) == list(json.loads(spec.NOT_FOUND.body))


def test_the_required_fields_are_those_of_the_interface(document: dict[str, Any]) -> None:
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


def test_the_example_bodies_have_the_described_fields_in_order(document: dict[str, Any]) -> None:
    for path in ("/node", "/node/services"):
        properties = schema_of(document, path, 200)["properties"]
        for example in response(document, path, 200)["content"]["application/json"]["examples"].values():
            assert list(example["value"]) == list(properties)
            for service in example["value"].get("services", []):
                assert list(service) == list(document["components"]["schemas"]["BackingService"]["properties"])
