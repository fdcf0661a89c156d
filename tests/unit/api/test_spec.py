"""The interface, decision by decision, without a server in sight."""

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

unhurried = settings(deadline=None)


@pytest.fixture
def node() -> Node:
    return worked_example()


def get(view: spec.NodeView, path: bytes, query: bytes = b"", method: str = "GET") -> Response:
    return respond(view, Request(method, path, query))


def message_of(answered: Response) -> str:
    assert ("Content-Type", "application/json") in answered.headers
    body = json.loads(answered.body)
    assert list(body) == ["message"]
    return str(body["message"])


class BrokenView:
    """A node that cannot say anything."""

    @property
    def identity(self) -> Identity:
        raise RuntimeError("the secret cause")

    @property
    def health(self) -> Health:
        raise RuntimeError("the secret cause")

    def status(self, service_id: str) -> Status | None:
        raise RuntimeError("the secret cause")

    def __iter__(self) -> Iterator[tuple[Service, ServiceState]]:
        raise RuntimeError("the secret cause")


# ---- the four endpoints


def test_the_identity_is_answered_with_its_fields_in_order(node: Node) -> None:
    answered = get(node, IDENTITY)
    assert answered.code == 200
    assert answered.body == b'{"node_name":"validator-7","spec_version":"v0.0.1","node_version":"v1.4.2"}'


def test_the_services_are_listed_with_their_fields_in_order(node: Node) -> None:
    answered = get(node, LIST)
    assert answered.code == 200
    assert list(json.loads(answered.body)) == ["services"]
    assert [list(service) for service in json.loads(answered.body)["services"]] == [
        ["id", "name", "description", "status"]
    ] * 3
    assert json.loads(answered.body)["services"][0] == {
        "id": "db",
        "name": "Ledger database",
        "description": "Holds the ledger",
        "status": "Up",
    }


def test_a_node_without_services_lists_none() -> None:
    assert get(Node("validator-7", version="v1"), LIST).body == b'{"services":[]}'


def test_the_worked_example_of_the_interface_answers_as_it_should(node: Node) -> None:
    listed = {service["id"]: service["status"] for service in json.loads(get(node, LIST).body)["services"]}
    assert listed == {"db": "Up", "indexer": "Down", "storage": "Initializing"}
    assert [get(node, path).code for path in (DB, INDEXER, STORAGE)] == [200, 503, 206]


def test_the_health_of_the_node_is_its_code(node: Node) -> None:
    assert get(node, HEALTH).code == 206
    node.drain()
    assert get(node, HEALTH).code == 503
    assert get(Node("validator-7", version="v1"), HEALTH).code == 200


@pytest.mark.parametrize("path", [HEALTH, DB, INDEXER, STORAGE])
def test_health_has_no_body_and_says_so(node: Node, path: bytes) -> None:
    answered = get(node, path)
    assert answered.body == b""
    assert ("Content-Length", "0") in answered.headers
    assert "Content-Type" not in dict(answered.headers)


def test_a_service_that_nobody_registered_is_not_found(node: Node) -> None:
    answered = get(node, b"/svc/node/services/nobody/health")
    assert (answered.code, message_of(answered)) == (404, "Service not found")


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
def test_a_supported_version_or_none_is_answered(node: Node, path: bytes, query: bytes) -> None:
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
    answered = get(node, path, query)
    assert (answered.code, message_of(answered)) == (404, "API version not found")


@pytest.mark.parametrize(
    ("path", "query", "method"),
    [
        (IDENTITY, b"version=v9", "POST"),
        (HEALTH, b"version=v9&partial_status=abc", "GET"),
        (b"/svc/node/services/nobody/health", b"version=v9", "GET"),
    ],
    ids=["method", "partial_status", "service"],
)
def test_the_version_is_judged_before_anything_else(node: Node, path: bytes, query: bytes, method: str) -> None:
    assert message_of(get(node, path, query, method)) == "API version not found"


def test_a_percent_encoded_version_is_the_same_version(node: Node) -> None:
    assert get(node, IDENTITY, b"%76ersion=v0%2E0%2E1").code == 200
    assert get(node, IDENTITY, b"%76ersion=v0%2E0%2E2").code == 404


# ---- methods


@pytest.mark.parametrize("path", ENDPOINTS)
def test_head_is_answered_as_get(node: Node, path: bytes) -> None:
    assert get(node, path, method="HEAD") == get(node, path)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "BREW", ""])
def test_every_other_method_is_not_allowed(node: Node, path: bytes, method: str) -> None:
    answered = get(node, path, method=method)
    assert (answered.code, message_of(answered)) == (405, "Method not allowed; use GET or HEAD")
    assert dict(answered.headers)["Allow"] == "GET, HEAD"


def test_a_path_that_does_not_exist_allows_no_method(node: Node) -> None:
    assert get(node, b"/svc/nowhere", method="POST").code == 404


# ---- partial_status


@pytest.mark.parametrize("code", [200, 204, 206, 299, 302, 418, 503, 599])
@pytest.mark.parametrize("path", [HEALTH, STORAGE])
def test_the_caller_may_choose_the_code_that_replaces_206(node: Node, path: bytes, code: int) -> None:
    answered = get(node, path, f"partial_status={code}".encode())
    assert (answered.code, answered.body) == (code, b"")


@pytest.mark.parametrize(("path", "code"), [(DB, 200), (INDEXER, 503)])
def test_what_is_not_partial_keeps_its_code(node: Node, path: bytes, code: int) -> None:
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
def test_a_code_that_cannot_be_chosen_is_a_bad_request(node: Node, path: bytes, value: bytes) -> None:
    answered = get(node, path, b"partial_status=" + value)
    assert (answered.code, message_of(answered)) == (400, "partial_status must be one status code from 200 to 599")


def test_two_chosen_codes_are_a_bad_request(node: Node) -> None:
    assert get(node, HEALTH, b"partial_status=200&partial_status=200").code == 400


@pytest.mark.parametrize("path", [IDENTITY, LIST])
def test_partial_status_means_nothing_elsewhere(node: Node, path: bytes) -> None:
    assert get(node, path, b"partial_status=abc").code == 200


def test_an_answer_with_no_content_does_not_speak_of_a_length(node: Node) -> None:
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
    answered = get(node, path)
    assert (answered.code, message_of(answered)) == (404, "Not found")


def test_a_node_answers_under_each_of_its_prefixes_alike(node: Node) -> None:
    prefixes = ("/svc", "/eigen", "/a/b", "")
    for prefix in prefixes:
        assert respond(node, Request("GET", f"{prefix}/node/services/db/health".encode()), prefixes).code == 200
        assert respond(node, Request("GET", f"{prefix}/node".encode()), prefixes) == get(node, IDENTITY)


def test_a_node_does_not_answer_under_a_prefix_it_was_not_given(node: Node) -> None:
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
def test_a_prefix_is_a_path_or_several(given_prefix: str | list[str], prefixes: tuple[str, ...]) -> None:
    assert parse_prefixes(given_prefix) == prefixes


@pytest.mark.parametrize("prefix", ["svc", "/s vc", "/svc?", "/{service_ID}", "/a//b", "/%73vc", "/své", "/svc\n"])
def test_what_is_no_path_is_no_prefix(prefix: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a prefix"):
        parse_prefixes(prefix)


@pytest.mark.parametrize("prefix", ["/.", "/..", "/../x", "/svc/../x", "/svc/./", "/svc/.."])
def test_dots_that_name_another_place_are_no_prefix(prefix: str) -> None:
    with pytest.raises(InvalidValueError, match=r'is not a prefix: "\." and "\.\." name another place'):
        parse_prefixes(prefix)


def test_dots_within_a_name_may_stand_in_a_prefix() -> None:
    assert parse_prefixes("/.well-known/v1.2/...") == ("/.well-known/v1.2/...",)


def test_a_node_needs_one_prefix_at_least() -> None:
    with pytest.raises(InvalidValueError, match="at least one prefix"):
        parse_prefixes([])


# ---- ids in paths

ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=256).filter(
    lambda text: text not in (".", "..")
)


@unhurried
@given(ids)
@example("a/b")
@example("...")
@example("%2F")
@example("{service_ID}")
@example("health")
def test_any_id_comes_through_a_path_when_it_is_percent_encoded(service_id: str) -> None:
    node = Node("validator-7", version="v1")
    node.register(service_id).up()
    path = f"/svc/node/services/{quote(service_id, safe='')}/health".encode()
    assert get(node, path).code == 200
    node.deregister(service_id)
    assert message_of(get(node, path)) == "Service not found"


def test_a_segment_is_decoded_once(node: Node) -> None:
    node.register("50%25").up()
    node.register("50%").down()
    assert get(node, b"/svc/node/services/50%2525/health").code == 200
    assert get(node, b"/svc/node/services/50%25/health").code == 503


def test_a_plus_in_a_path_is_a_plus(node: Node) -> None:
    node.register("a+b").up()
    assert get(node, b"/svc/node/services/a+b/health").code == 200


@pytest.mark.parametrize("segment", [b"", b"%FF", b"\xff", b"%", b"%zz", b"%00", b"%ED%A0%80"])
def test_a_segment_that_is_no_id_names_no_service(node: Node, segment: bytes) -> None:
    answered = get(node, b"/svc/node/services/" + segment + b"/health")
    assert (answered.code, message_of(answered)) == (404, "Service not found")


# ---- failures inside


@pytest.mark.parametrize("path", [IDENTITY, LIST])
def test_a_failure_inside_is_an_internal_error_that_tells_the_client_nothing(path: bytes) -> None:
    answered = get(BrokenView(), path)
    assert (answered.code, message_of(answered)) == (500, "Internal server error")


@pytest.mark.parametrize("path", HEALTH_ENDPOINTS)
def test_a_failure_inside_is_unhealthy_where_health_is_asked_for(path: bytes) -> None:
    answered = get(BrokenView(), path, b"partial_status=200")
    assert (answered.code, answered.body) == (503, b"")


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_cause_of_a_failure_is_kept_for_the_log(path: bytes) -> None:
    assert str(get(BrokenView(), path).cause) == "the secret cause"


def test_what_is_wrong_with_a_request_is_said_even_when_the_node_is_broken() -> None:
    assert get(BrokenView(), IDENTITY, method="POST").code == 405
    assert get(BrokenView(), IDENTITY, b"version=v9").code == 404


# ---- headers and bodies


@pytest.mark.parametrize("path", [*ENDPOINTS, INDEXER, b"/svc/nowhere", b"/svc/node/services/nobody/health"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_answer_forbids_caching_and_sniffing_and_knows_its_length(node: Node, path: bytes, method: str) -> None:
    answered = get(node, path, method=method)
    headers = dict(answered.headers)
    assert len(headers) == len(answered.headers)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Length"] == str(len(answered.body))
    assert headers.get("Content-Type") == ("application/json" if answered.body else None)


texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30)
lines = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t"), max_size=30)


@unhurried
@given(st.dictionaries(ids, st.tuples(texts, lines), max_size=5))
def test_whatever_a_service_is_called_the_list_is_the_json_that_says_so(words: dict[str, tuple[str, str]]) -> None:
    node = Node("validator-7", version="v1")
    for service_id, (name, description) in words.items():
        node.register(service_id, name=name, description=description)
    assert json.loads(get(node, LIST).body) == {
        "services": [
            {"id": service_id, "name": name, "description": description, "status": "Initializing"}
            for service_id, (name, description) in words.items()
        ]
    }


@given(texts.filter(lambda name: name.isprintable() and name != ""))
def test_whatever_a_node_is_called_its_identity_is_the_json_that_says_so(name: str) -> None:
    assert json.loads(get(Node(name, version="v1"), IDENTITY).body)["node_name"] == name


# ---- whatever is asked

KNOWN_BODIES = {
    (404, "Not found"),
    (404, "Service not found"),
    (404, "API version not found"),
    (405, "Method not allowed; use GET or HEAD"),
    (400, "partial_status must be one status code from 200 to 599"),
}

# Bytes that nobody sends, and bytes that come close to what is answered.
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
words = st.sampled_from(
    [b"version", b"partial_status", b"=", b"&", b"v0.0.1", b"0.0.1", b"204", b"503", b"%", b"+", b";", b"\xff", b"[]"]
)
queries = st.binary(max_size=40) | st.lists(words, max_size=12).map(b"".join)
methods = st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"]) | st.text(max_size=5)


@settings(deadline=None, max_examples=400)
@given(methods, paths, queries)
def test_any_bytes_at_all_are_answered_with_something_known(method: str, path: bytes, query: bytes) -> None:
    answered = route(Request(method, path, query))(worked_example())
    assert answered.cause is None
    if answered.code == 200 and answered.body:
        assert list(json.loads(answered.body)) in (["services"], ["node_name", "spec_version", "node_version"])
    elif answered.body:
        assert (answered.code, message_of(answered)) in KNOWN_BODIES
    else:
        assert answered.code in (200, 206, 503) or b"partial_status" in query


@unhurried
@given(queries)
def test_any_query_names_supported_versions_or_is_not_found(query: bytes) -> None:
    versions = spec.parse_query(query).get("version", [])
    is_found = get(worked_example(), IDENTITY, query).code == 200
    assert is_found == (set(versions) <= {"v0.0.1", "0.0.1"})
