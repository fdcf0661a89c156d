"""The interface: every decision, without a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.node_cases import worked_example

from svcnode.api import spec
from svcnode.api.spec import Request, Response, parse_prefixes, respond, route
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Health, Identity, Service, ServiceState, Status
from svcnode.core.state_machine import service_health
from svcnode.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

IDENTITY, HEALTH, LIST = b"/svc/node", b"/svc/node/health", b"/svc/node/services"
DB = b"/svc/node/services/db/health"  # Up in the worked example
INDEXER = b"/svc/node/services/indexer/health"  # Down
STORAGE = b"/svc/node/services/storage/health"  # Initializing
ENDPOINTS = [IDENTITY, HEALTH, LIST, DB]
HEALTH_ENDPOINTS = [HEALTH, DB]

CAUSE = RuntimeError("secret")


@pytest.fixture
def node() -> Node:
    return worked_example()


def get(view: spec.NodeView, path: bytes, query: bytes = b"", method: str = "GET") -> Response:
    return respond(view, Request(method, path, query))


class BrokenView:
    """A node that raises on every access."""

    @property
    def identity(self) -> Identity:
        raise CAUSE

    @property
    def health(self) -> Health:
        raise CAUSE

    def status(self, service_id: str) -> Status | None:
        raise CAUSE

    def __iter__(self) -> Iterator[tuple[Service, ServiceState]]:
        raise CAUSE


# ---- the four endpoints


def test_the_identity_has_its_fields_in_order(node: Node) -> None:
    response = get(node, IDENTITY)
    assert response.code == 200
    assert response.body == b'{"node_name":"validator-7","spec_version":"v0.0.1","node_version":"v1.4.2"}'


def test_the_services_have_their_fields_in_order(node: Node) -> None:
    response = get(node, LIST)
    assert response.code == 200
    assert list(json.loads(response.body)) == ["services"]
    assert [list(service) for service in json.loads(response.body)["services"]] == [
        ["id", "name", "description", "status"]
    ] * 3
    assert json.loads(response.body)["services"][0] == {
        "id": "db",
        "name": "Ledger database",
        "description": "Holds the ledger",
        "status": "Up",
    }


def test_a_node_without_services_has_an_empty_list() -> None:
    assert get(Node("validator-7", version="v1"), LIST).body == b'{"services":[]}'


def test_the_worked_example_of_the_interface(node: Node) -> None:
    listed = {service["id"]: service["status"] for service in json.loads(get(node, LIST).body)["services"]}
    assert listed == {"db": "Up", "indexer": "Down", "storage": "Initializing"}
    assert [get(node, path).code for path in (DB, INDEXER, STORAGE)] == [200, 503, 206]


def test_the_health_of_the_node_is_its_code(node: Node) -> None:
    assert get(node, HEALTH).code == 206
    node.drain()
    assert get(node, HEALTH).code == 503
    assert get(Node("validator-7", version="v1"), HEALTH).code == 200


@pytest.mark.parametrize("path", [HEALTH, DB, INDEXER, STORAGE])
def test_health_has_no_body_and_content_length_zero(node: Node, path: bytes) -> None:
    response = get(node, path)
    assert response.body == b""
    assert ("Content-Length", "0") in response.headers
    assert "Content-Type" not in dict(response.headers)


def test_a_service_that_is_not_registered_is_not_found(node: Node) -> None:
    assert get(node, b"/svc/node/services/unknown/health") == spec.SERVICE_NOT_FOUND


def test_status_and_code_always_agree() -> None:
    assert {status: int(service_health(status)) for status in Status} == {
        Status.UP: 200,
        Status.INITIALIZING: 206,
        Status.DOWN: 503,
    }


# ---- versions


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "query", [b"", b"version=v0.0.1", b"version=0.0.1", b"version=v0.0.1&version=0.0.1", b"other=1"]
)
def test_a_supported_version_changes_nothing(node: Node, path: bytes, query: bytes) -> None:
    assert get(node, path, query) == get(node, path)


UNSUPPORTED = [
    b"version=v0.0.2",
    b"version=",
    b"version",
    b"version=V0.0.1",
    b"version=v0.0.1.0",
    b"version=%20v0.0.1",
    b"version=v0.0.1%00",
    b"version=vv0.0.1",
    b"version=\xff",
    b"version=v0.0.1&version=v9",
    b"version=v9&version=v0.0.1",
    b"a=b&version=latest",
]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("query", UNSUPPORTED)
def test_an_unsupported_version_is_not_found(node: Node, path: bytes, query: bytes) -> None:
    assert get(node, path, query) == spec.VERSION_NOT_FOUND


@pytest.mark.parametrize(
    ("path", "query", "method"),
    [
        (IDENTITY, b"version=v9", "POST"),
        (HEALTH, b"version=v9&partial_status=abc", "GET"),
        (b"/svc/node/services/unknown/health", b"version=v9", "GET"),
    ],
    ids=["method", "partial_status", "service"],
)
def test_the_version_is_checked_first(node: Node, path: bytes, query: bytes, method: str) -> None:
    assert get(node, path, query, method) == spec.VERSION_NOT_FOUND


def test_a_percent_encoded_version_is_the_same_version(node: Node) -> None:
    assert get(node, IDENTITY, b"%76ersion=v0%2E0%2E1").code == 200
    assert get(node, IDENTITY, b"%76ersion=v0%2E0%2E2").code == 404


# ---- methods


@pytest.mark.parametrize("path", ENDPOINTS)
def test_head_has_the_response_of_get(node: Node, path: bytes) -> None:
    assert get(node, path, method="HEAD") == get(node, path)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "BREW", ""])
def test_every_other_method_is_not_allowed(node: Node, path: bytes, method: str) -> None:
    response = get(node, path, method=method)
    assert response == spec.METHOD_NOT_ALLOWED
    assert response.code == 405
    assert dict(response.headers)["Allow"] == "GET, HEAD"


def test_an_unknown_path_is_not_found_for_any_method(node: Node) -> None:
    assert get(node, b"/svc/nowhere", method="POST").code == 404


# ---- partial_status


@pytest.mark.parametrize("code", [200, 204, 206, 299, 302, 418, 503, 599])
@pytest.mark.parametrize("path", [HEALTH, STORAGE])
def test_partial_status_replaces_206(node: Node, path: bytes, code: int) -> None:
    response = get(node, path, f"partial_status={code}".encode())
    assert (response.code, response.body) == (code, b"")


@pytest.mark.parametrize(("path", "code"), [(DB, 200), (INDEXER, 503)])
def test_partial_status_does_not_replace_200_and_503(node: Node, path: bytes, code: int) -> None:
    assert get(node, path, b"partial_status=418").code == code


@pytest.mark.parametrize("path", HEALTH_ENDPOINTS)
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"199",
        b"600",
        b"100",
        b"0200",
        b"20",
        b"2000",
        b"abc",
        b"-200",
        b"+200",
        b" 200",
        b"200.0",
        b"%D9%A2%D9%A0%D9%A0",
    ],
)
def test_an_invalid_partial_status_is_a_bad_request(node: Node, path: bytes, value: bytes) -> None:
    response = get(node, path, b"partial_status=" + value)
    assert response == spec.BAD_PARTIAL_STATUS
    assert response.code == 400


def test_a_repeated_partial_status_is_a_bad_request(node: Node) -> None:
    assert get(node, HEALTH, b"partial_status=200&partial_status=200").code == 400


@pytest.mark.parametrize("path", [IDENTITY, LIST])
def test_other_endpoints_ignore_partial_status(node: Node, path: bytes) -> None:
    assert get(node, path, b"partial_status=abc").code == 200


def test_a_204_has_no_content_length(node: Node) -> None:
    assert "Content-Length" not in dict(get(node, HEALTH, b"partial_status=204").headers)


# ---- paths and prefixes


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"/svc",
        b"/svc/",
        b"/node",
        b"/svc/node/",
        b"//svc/node",
        b"/svc//node",
        b"/svc/node/health/",
        b"/svc/node/services/",
        b"/svc/node/services/db",
        b"/svc/node/services/db/health/",
        b"/svc/node/services/a/b/health",
        b"/SVC/node",
        b"/svc%2Fnode",
        b"svc/node",
        b"*",
        b"/svc/node/services/../health/x",
    ],
)
def test_every_other_path_is_not_found(node: Node, path: bytes) -> None:
    assert get(node, path) == spec.NOT_FOUND


def test_all_prefixes_get_the_same_responses(node: Node) -> None:
    prefixes = ("/svc", "/eigen", "/a/b", "")
    for prefix in prefixes:
        assert respond(node, Request("GET", f"{prefix}/node/services/db/health".encode()), prefixes).code == 200
        assert respond(node, Request("GET", f"{prefix}/node".encode()), prefixes) == get(node, IDENTITY)


def test_another_prefix_is_not_found(node: Node) -> None:
    assert respond(node, Request("GET", b"/svc/node"), ("/eigen",)).code == 404


@pytest.mark.parametrize(
    ("given_prefix", "prefixes"),
    [
        ("/svc", ("/svc",)),
        ("/svc/", ("/svc",)),
        ("", ("",)),
        ("/", ("",)),
        (["/svc", "/a/b-c_d.e~f"], ("/svc", "/a/b-c_d.e~f")),
    ],
)
def test_a_prefix_is_one_path_or_several(given_prefix: str | list[str], prefixes: tuple[str, ...]) -> None:
    assert parse_prefixes(given_prefix) == prefixes


@pytest.mark.parametrize("prefix", ["svc", "/s vc", "/svc?", "/{service_ID}", "/a//b", "/%73vc", "/své", "/svc\n"])
def test_a_prefix_that_is_not_a_plain_path_is_invalid(prefix: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_prefixes(prefix)


@pytest.mark.parametrize("prefix", ["/.", "/..", "/../x", "/svc/../x", "/svc/./", "/svc/.."])
def test_a_prefix_with_dot_segments_is_invalid(prefix: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_prefixes(prefix)


def test_a_prefix_may_contain_dots() -> None:
    assert parse_prefixes("/.well-known/v1.2/...") == ("/.well-known/v1.2/...",)


def test_at_least_one_prefix_is_required() -> None:
    with pytest.raises(InvalidValueError):
        parse_prefixes([])


# ---- ids in paths

ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=256).filter(
    lambda text: text not in (".", "..")
)


@given(ids)
@example("a/b")
@example("...")
@example("%2F")
@example("{service_ID}")
@example("health")
def test_any_percent_encoded_id_is_found(service_id: str) -> None:
    node = Node("validator-7", version="v1")
    node.register(service_id).up()
    path = f"/svc/node/services/{quote(service_id, safe='')}/health".encode()
    assert get(node, path).code == 200
    node.deregister(service_id)
    assert get(node, path) == spec.SERVICE_NOT_FOUND


def test_a_segment_is_decoded_once(node: Node) -> None:
    node.register("50%25").up()
    node.register("50%").down()
    assert get(node, b"/svc/node/services/50%2525/health").code == 200
    assert get(node, b"/svc/node/services/50%25/health").code == 503


def test_a_plus_in_a_path_is_a_plus(node: Node) -> None:
    node.register("a+b").up()
    assert get(node, b"/svc/node/services/a+b/health").code == 200


@pytest.mark.parametrize("segment", [b"", b"%FF", b"\xff", b"%", b"%zz", b"%00", b"%ED%A0%80"])
def test_a_segment_that_is_not_a_valid_id_is_an_unknown_service(node: Node, segment: bytes) -> None:
    assert get(node, b"/svc/node/services/" + segment + b"/health") == spec.SERVICE_NOT_FOUND


# ---- ids whose slashes were decoded


@pytest.fixture
def node_with_slashes() -> Node:
    node = Node("validator-7", version="v1")
    for service_id in ("a/b", "a/health", "db"):
        node.register(service_id, name=service_id, description="").up()
    return node


@pytest.mark.parametrize("segments", [b"a/b", b"a%2Fb", b"a/health", b"%61/b"])
def test_everything_between_services_and_health_is_an_id_if_it_exists(node_with_slashes: Node, segments: bytes) -> None:
    assert get(node_with_slashes, b"/svc/node/services/" + segments + b"/health").code == 200


@pytest.mark.parametrize(
    "path",
    [
        b"/svc/node/services/a/c/health",
        b"/svc/node/services/a/%FF/health",
        b"/svc/node/services/db/health/health",
        b"/svc/node/services/a/b/other",
        b"/svc/node/a/b/health",
    ],
)
@pytest.mark.parametrize(("method", "query"), [("GET", b""), ("POST", b""), ("GET", b"version=v9")])
def test_other_long_paths_are_not_found(node_with_slashes: Node, path: bytes, method: str, query: bytes) -> None:
    assert get(node_with_slashes, path, query, method=method) == spec.NOT_FOUND


@pytest.mark.parametrize(("method", "query", "code"), [("POST", b"", 405), ("GET", b"version=v9", 404)])
def test_an_id_with_decoded_slashes_has_the_rules_of_its_endpoint(
    node_with_slashes: Node, method: str, query: bytes, code: int
) -> None:
    response = get(node_with_slashes, b"/svc/node/services/a/b/health", query, method=method)
    assert (response.code, response) == (code, get(node_with_slashes, HEALTH, query, method=method))


@pytest.mark.parametrize("other", ["a//b", "a/./b", "a/x/../b", "/a/b", "a/b/"])
def test_a_decoded_path_that_two_ids_become_is_not_found(node_with_slashes: Node, other: str) -> None:
    node_with_slashes.register(other, name=other, description="").down("broken")
    assert get(node_with_slashes, b"/svc/node/services/a/b/health") == spec.NOT_FOUND
    assert get(node_with_slashes, b"/svc/node/services/a%2Fb/health").code == 200


def test_an_internal_error_while_a_long_path_is_resolved_is_503() -> None:
    response = get(BrokenView(), b"/svc/node/services/a/b/health")
    assert (response.code, response.body, response.cause) == (503, b"", CAUSE)


# ---- added headers


def test_headers_can_be_added_to_a_response(node: Node) -> None:
    handler = spec.WithHeaders(spec.route(Request("GET", HEALTH)), (("Vary", "Origin"),))
    plain, response = respond(node, Request("GET", HEALTH)), handler(node)
    assert response == Response(plain.code, plain.body, (*plain.headers, ("Vary", "Origin")))


# ---- internal errors


@pytest.mark.parametrize("path", [IDENTITY, LIST])
def test_an_internal_error_is_500_without_its_cause(path: bytes) -> None:
    response = get(BrokenView(), path)
    assert response == spec.INTERNAL_ERROR
    assert response.code == 500


@pytest.mark.parametrize("path", HEALTH_ENDPOINTS)
def test_an_internal_error_of_a_health_endpoint_is_503(path: bytes) -> None:
    response = get(BrokenView(), path, b"partial_status=200")
    assert (response.code, response.body) == (503, b"")


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_cause_of_an_internal_error_is_kept_for_the_log(path: bytes) -> None:
    assert get(BrokenView(), path).cause is CAUSE


def test_an_invalid_request_is_rejected_before_the_node_is_read() -> None:
    assert get(BrokenView(), IDENTITY, method="POST").code == 405
    assert get(BrokenView(), IDENTITY, b"version=v9").code == 404


# ---- headers and bodies


@pytest.mark.parametrize("path", [*ENDPOINTS, INDEXER, b"/svc/nowhere", b"/svc/node/services/unknown/health"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_response_has_the_common_headers(node: Node, path: bytes, method: str) -> None:
    response = get(node, path, method=method)
    headers = dict(response.headers)
    assert len(headers) == len(response.headers)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Length"] == str(len(response.body))
    assert headers.get("Content-Type") == ("application/json" if response.body else None)


texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30)
lines = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t"), max_size=30)


@given(st.dictionaries(ids, st.tuples(texts, lines), max_size=5))
def test_any_name_and_description_of_a_service_is_valid_json(services: dict[str, tuple[str, str]]) -> None:
    node = Node("validator-7", version="v1")
    for service_id, (name, description) in services.items():
        node.register(service_id, name=name, description=description)
    assert json.loads(get(node, LIST).body) == {
        "services": [
            {"id": service_id, "name": name, "description": description, "status": "Initializing"}
            for service_id, (name, description) in services.items()
        ]
    }


@given(texts.filter(lambda name: name.isprintable() and name != ""))
def test_any_name_of_a_node_is_valid_json(name: str) -> None:
    assert json.loads(get(Node(name, version="v1"), IDENTITY).body)["node_name"] == name


@pytest.mark.parametrize(
    "error",
    [
        spec.NOT_FOUND,
        spec.SERVICE_NOT_FOUND,
        spec.VERSION_NOT_FOUND,
        spec.METHOD_NOT_ALLOWED,
        spec.BAD_PARTIAL_STATUS,
        spec.INTERNAL_ERROR,
    ],
)
def test_an_error_body_is_a_json_object_with_one_message(error: Response) -> None:
    assert ("Content-Type", "application/json") in error.headers
    body = json.loads(error.body)
    assert list(body) == ["message"]
    assert isinstance(body["message"], str)


# ---- any request

KNOWN_ERRORS = (
    spec.NOT_FOUND,
    spec.SERVICE_NOT_FOUND,
    spec.VERSION_NOT_FOUND,
    spec.METHOD_NOT_ALLOWED,
    spec.BAD_PARTIAL_STATUS,
)

# Random bytes, and combinations of valid parts.
pieces = st.sampled_from(
    [
        b"/",
        b"svc",
        b"node",
        b"services",
        b"health",
        b"db",
        b"storage",
        b"%2F",
        b"%ff",
        b"%",
        b"..",
        b"\x00",
        b"{service_ID}",
    ]
)
paths = st.binary(max_size=40) | st.lists(pieces, max_size=9).map(b"".join) | st.sampled_from(ENDPOINTS)
query_parts = st.sampled_from(
    [b"version", b"partial_status", b"=", b"&", b"v0.0.1", b"0.0.1", b"204", b"503", b"%", b"+", b";", b"\xff", b"[]"]
)
queries = st.binary(max_size=40) | st.lists(query_parts, max_size=12).map(b"".join)
methods = st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"]) | st.text(max_size=5)


@settings(max_examples=400)
@given(methods, paths, queries)
def test_any_request_gets_a_known_response(method: str, path: bytes, query: bytes) -> None:
    response = route(Request(method, path, query))(worked_example())
    assert response.cause is None
    if response.code == 200 and response.body:
        assert list(json.loads(response.body)) in (["services"], ["node_name", "spec_version", "node_version"])
    elif response.body:
        assert response in KNOWN_ERRORS
    else:
        assert response.code in (200, 206, 503) or b"partial_status" in query


@given(queries)
def test_any_query_names_supported_versions_or_is_not_found(query: bytes) -> None:
    versions = spec.parse_query(query).get("version", [])
    is_found = get(worked_example(), IDENTITY, query).code == 200
    assert is_found == (set(versions) <= {"v0.0.1", "0.0.1"})
