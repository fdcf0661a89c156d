"""The interface without a server: what no request can do. tests/behaviour has its rules, for every way to serve it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.node_cases import worked_example
from tests.support.nodes import make_node

from svcnode.agent.embed.node import internals_of
from svcnode.api import spec
from svcnode.api.spec import Request, Response, parse_prefixes, respond, route
from svcnode.core.errors import InvalidValueError

if TYPE_CHECKING:
    from svcnode.node.node_state import NodeState

IDENTITY, HEALTH, LIST = b"/svc/node", b"/svc/node/health", b"/svc/node/services"
DB = b"/svc/node/services/db/health"  # Up in the worked example
INDEXER = b"/svc/node/services/indexer/health"  # Down
STORAGE = b"/svc/node/services/storage/health"  # Initializing
ENDPOINTS = [IDENTITY, HEALTH, LIST, DB]
HEALTH_ENDPOINTS = [HEALTH, DB]


@pytest.fixture
def node() -> NodeState:
    return internals_of(worked_example()).state


def get(view: NodeState, path: bytes, query: bytes = b"", method: str = "GET") -> Response:
    return respond(view, Request(method, path, query))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Request("GET", IDENTITY, b"version=0.0.1"), 200),
        (Request("HEAD", HEALTH), 206),
        (Request("GET", STORAGE, b"partial_status=418"), 418),
        (Request("GET", STORAGE, b"partial_status=204"), 204),
        (Request("GET", DB, b"partial_status=418"), 200),
        (Request("POST", HEALTH, b"version=v9&partial_status=600"), 404),
        (Request("POST", HEALTH, b"partial_status=600"), 405),
        (Request("GET", HEALTH, b"partial_status=600"), 400),
        (Request("GET", HEALTH, b"partial_status=200&partial_status=200"), 400),
        (Request("GET", LIST, b"partial_status=600"), 200),
    ],
)
def test_version_method_and_query_are_checked_in_this_order(node: NodeState, request_: Request, code: int) -> None:
    response = respond(node, request_)
    assert (response.code, "Content-Length" in dict(response.headers)) == (code, code != 204)


@pytest.mark.parametrize(
    ("given_prefix", "prefixes"),
    [
        ("/svc", ("/svc",)),
        ("/svc/", ("/svc",)),
        ("", ("",)),
        ("/", ("",)),
        (["/svc", "/a/b-c_d.e~f"], ("/svc", "/a/b-c_d.e~f")),
        ("/.well-known/v1.2/...", ("/.well-known/v1.2/...",)),
    ],
)
def test_a_prefix_is_one_path_or_several(given_prefix: str | list[str], prefixes: tuple[str, ...]) -> None:
    assert parse_prefixes(given_prefix) == prefixes


@pytest.mark.parametrize(
    "prefix", ["svc", "/s vc", "/a//b", "/%73vc", "/své", "/svc\n", "/..", "/svc/./", "/a/../x", []]
)
def test_a_prefix_that_is_not_a_plain_path_is_invalid(prefix: str | list[str]) -> None:
    with pytest.raises(InvalidValueError):
        parse_prefixes(prefix)


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
    node = make_node("validator-7", version="v1")
    node.register(service_id).up()
    path = f"/svc/node/services/{quote(service_id, safe='')}/health".encode()
    assert get(node, path).code == 200
    node.deregister(service_id)
    assert get(node, path) == spec.SERVICE_NOT_FOUND


@pytest.mark.parametrize("segment", [b"", b"%FF", b"\xff", b"%", b"%zz", b"%00", b"%ED%A0%80"])
def test_a_segment_that_is_not_a_valid_id_is_an_unknown_service(node: NodeState, segment: bytes) -> None:
    assert get(node, b"/svc/node/services/" + segment + b"/health") == spec.SERVICE_NOT_FOUND


@pytest.fixture
def node_with_slashes() -> NodeState:
    node = make_node("validator-7", version="v1")
    for service_id in ("a/b", "a/health", "db"):
        node.register(service_id, name=service_id, description="").up()
    return node


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
def test_a_long_path_without_such_an_id_is_not_found_with_any_method(node_with_slashes: NodeState, path: bytes) -> None:
    for method, query in (("GET", b""), ("POST", b""), ("GET", b"version=v9")):
        assert get(node_with_slashes, path, query, method=method) == spec.NOT_FOUND
    assert get(node_with_slashes, b"/svc/node/services/a/health/health").code == 200


@pytest.mark.parametrize(("method", "query", "code"), [("POST", b"", 405), ("GET", b"version=v9", 404)])
def test_an_id_with_decoded_slashes_has_the_rules_of_its_endpoint(
    node_with_slashes: NodeState, method: str, query: bytes, code: int
) -> None:
    response = get(node_with_slashes, b"/svc/node/services/a/b/health", query, method=method)
    assert (response.code, response) == (code, get(node_with_slashes, HEALTH, query, method=method))


@pytest.mark.parametrize("other", ["a//b", "a/./b", "a/x/../b", "/a/b", "a/b/"])
def test_a_decoded_path_that_two_ids_become_is_not_found(node_with_slashes: NodeState, other: str) -> None:
    node_with_slashes.register(other, name=other, description="").down("broken")
    assert get(node_with_slashes, b"/svc/node/services/a/b/health") == spec.NOT_FOUND
    assert get(node_with_slashes, b"/svc/node/services/a%2Fb/health").code == 200


def test_headers_can_be_added_to_a_response(node: NodeState) -> None:
    handler = spec.WithHeaders(spec.route(Request("GET", HEALTH)), (("Vary", "Origin"),))
    plain, response = respond(node, Request("GET", HEALTH)), handler(node)
    assert response == Response(plain.code, plain.body, (*plain.headers, ("Vary", "Origin")))


@pytest.mark.parametrize(
    ("path", "code"),
    [(IDENTITY, 500), (LIST, 500), (HEALTH, 503), (DB, 503), (b"/svc/node/services/a/b/health", 503)],
)
def test_an_internal_error_is_never_a_health_and_its_cause_is_kept_for_the_log(path: bytes, code: int) -> None:
    broken = cast("NodeState", object())  # raises on every access
    response = get(broken, path, b"partial_status=200")
    assert (response.code, isinstance(response.cause, AttributeError | TypeError)) == (code, True)
    assert response.body == (spec.INTERNAL_ERROR.body if code == 500 else b"")


texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30)
lines = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t"), max_size=30)


@settings(max_examples=50)
@given(st.dictionaries(ids, st.tuples(texts, lines), max_size=3))
def test_any_name_and_description_of_a_service_is_valid_json(services: dict[str, tuple[str, str]]) -> None:
    node = make_node("validator-7", version="v1")
    for service_id, (name, description) in services.items():
        node.register(service_id, name=name, description=description)
    assert json.loads(get(node, LIST).body) == {
        "services": [
            {"id": service_id, "name": name, "description": description, "status": "Initializing"}
            for service_id, (name, description) in services.items()
        ]
    }


KNOWN_ERRORS = (
    spec.NOT_FOUND,
    spec.SERVICE_NOT_FOUND,
    spec.VERSION_NOT_FOUND,
    spec.METHOD_NOT_ALLOWED,
    spec.BAD_PARTIAL_STATUS,
)

# Random bytes, and combinations of valid parts.
pieces = st.sampled_from(
    [b"/", b"svc", b"node", b"services", b"health", b"db", b"storage", b"%2F", b"%ff", b"%", b"..", b"{service_ID}"]
)
paths = st.binary(max_size=40) | st.lists(pieces, max_size=9).map(b"".join) | st.sampled_from(ENDPOINTS)
query_parts = st.sampled_from(
    [b"version", b"partial_status", b"=", b"&", b"v0.0.1", b"0.0.1", b"204", b"503", b"%", b"+", b";", b"\xff", b"[]"]
)
queries = st.binary(max_size=40) | st.lists(query_parts, max_size=12).map(b"".join)
methods = st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"]) | st.text(max_size=5)


@settings(max_examples=150)
@given(methods, paths, queries)
def test_any_request_gets_a_known_response(method: str, path: bytes, query: bytes) -> None:
    response = route(Request(method, path, query))(internals_of(worked_example()).state)
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
    is_found = get(internals_of(worked_example()).state, IDENTITY, query).code == 200
    assert is_found == (set(versions) <= {"v0.0.1", "0.0.1"})
