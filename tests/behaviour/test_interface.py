"""What a client can see of the interface, and of what is decided where the interface is silent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.node_cases import ODD_SERVICE_IDS, SECRET

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.transports import Fetch, Response, Transport

    FetchFrom = Callable[[str], Fetch]

ENDPOINTS = (
    "/svc/node",
    "/svc/node/health",
    "/svc/node/services",
    "/svc/node/services/db/health",
)
each_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS)


def message_of(reply: Response) -> str:
    """The message of an error body that is nothing but that."""
    assert reply.headers["content-type"] == "application/json"
    body = json.loads(reply.body)
    assert list(body) == ["message"]
    assert isinstance(body["message"], str)
    return body["message"]


def health_code(reply: Response) -> int:
    """The code of an answer that says nothing else."""
    assert reply.body == b""
    assert "content-type" not in reply.headers
    return reply.code


# ---- the worked example


def test_the_identity_has_its_three_fields_in_order(fetch: Fetch) -> None:
    reply = fetch("GET", "/svc/node")
    assert (reply.code, reply.headers["content-type"]) == (200, "application/json")
    assert list(json.loads(reply.body).items()) == [
        ("node_name", "validator-7"),
        ("spec_version", "v0.0.1"),
        ("node_version", "v1.4.2"),
    ]


def test_the_list_has_every_service_with_its_four_fields_in_order(fetch: Fetch) -> None:
    reply = fetch("GET", "/svc/node/services")
    assert (reply.code, reply.headers["content-type"]) == (200, "application/json")
    body = json.loads(reply.body)
    assert list(body) == ["services"]
    assert [list(service.items()) for service in body["services"]] == [
        [("id", "db"), ("name", "Ledger database"), ("description", "Holds the ledger"), ("status", "Up")],
        [("id", "indexer"), ("name", "Indexer"), ("description", "Follows the chain"), ("status", "Down")],
        [
            ("id", "storage"),
            ("name", "Storage daemon"),
            ("description", "Keeps the blobs"),
            ("status", "Initializing"),
        ],
    ]


@pytest.mark.parametrize(("service_id", "code"), [("db", 200), ("indexer", 503), ("storage", 206)])
def test_the_health_of_a_service_is_a_code_without_a_body(fetch: Fetch, service_id: str, code: int) -> None:
    assert health_code(fetch("GET", f"/svc/node/services/{service_id}/health")) == code


@pytest.mark.parametrize(
    ("node_case", "code"),
    [
        ("worked example", 206),
        ("no services", 200),
        ("all up", 200),
        ("all down", 503),
        ("all initializing", 206),
        ("one down", 206),
        ("critical down", 503),
        ("critical initializing", 206),
        ("uncounted down", 200),
        ("draining", 503),
        ("with an issue", 503),
        ("starting", 206),
    ],
)
def test_the_health_of_the_node_is_a_code_without_a_body(fetch_from: FetchFrom, node_case: str, code: int) -> None:
    assert health_code(fetch_from(node_case)("GET", "/svc/node/health")) == code


def test_a_node_without_services_lists_none(fetch_from: FetchFrom) -> None:
    assert json.loads(fetch_from("no services")("GET", "/svc/node/services").body) == {"services": []}


# ---- versions


SUPPORTED = (
    "version=v0.0.1",
    "version=0.0.1",
    "version=v0.0.1&version=0.0.1",
    "other=x&version=v0.0.1",
    "%76ersion=v0.0.1",
    "version=v0%2E0%2E1",
    "Version=v9",
    "other=version",
    "",
)
UNSUPPORTED = (
    "version=v0.0.2",
    "version=v1",
    "version=V0.0.1",
    "version=v0.0.1.0",
    "version=latest",
    "version=",
    "version",
    "version=%20v0.0.1",
    "version=v0.0.1%00",
    "version=v0.0.1&version=v0.0.2",
    "version=v0.0.2&version=v0.0.1",
    "version=v0.0.1&version",
    "%76ersion=v0.0.2",
    "version=v0%2E0%2E2",
    "x=y&version=v0.0.2",
    "version=%FF",
)


@each_endpoint
def test_a_version_that_is_supported_answers_like_none(fetch: Fetch, endpoint: str) -> None:
    plain = fetch("GET", endpoint)
    for query in SUPPORTED:
        versioned = fetch("GET", f"{endpoint}?{query}")
        assert (versioned.code, versioned.body) == (plain.code, plain.body), query


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, "/svc/node/services/nobody/health"])
def test_any_version_that_is_not_supported_is_not_found(fetch: Fetch, endpoint: str) -> None:
    for query in UNSUPPORTED:
        reply = fetch("GET", f"{endpoint}?{query}")
        assert (reply.code, message_of(reply)) == (404, "API version not found"), query


@each_endpoint
def test_the_version_is_judged_before_the_method_and_the_rest_of_the_query(fetch: Fetch, endpoint: str) -> None:
    for reply in (
        fetch("POST", f"{endpoint}?version=v9"),
        fetch("OPTIONS", f"{endpoint}?version="),
        fetch("GET", f"{endpoint}?version=v9&partial_status=nonsense"),
    ):
        assert (reply.code, message_of(reply)) == (404, "API version not found")


# ---- ids


def test_an_unknown_service_is_not_found(fetch: Fetch) -> None:
    for unknown in ("nobody", "DB", "db%20", "%64b2", "", "%FF", "d%00b"):
        reply = fetch("GET", f"/svc/node/services/{unknown}/health")
        assert (reply.code, message_of(reply)) == (404, "Service not found"), unknown


CODES = {"Up": 200, "Initializing": 206, "Down": 503}


def test_any_id_can_be_asked_for_as_it_is_listed(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("odd ids")
    listed = {one["id"]: one["status"] for one in json.loads(fetch("GET", "/svc/node/services").body)["services"]}
    assert listed == {service_id: status.value for service_id, status in ODD_SERVICE_IDS.items()}
    for service_id, status in listed.items():
        reply = fetch("GET", f"/svc/node/services/{quote(service_id, safe='')}/health")
        assert health_code(reply) == CODES[status], service_id


def test_an_id_is_decoded_once(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("odd ids")
    assert fetch("GET", "/svc/node/services/%252F/health").code == CODES[ODD_SERVICE_IDS["%2F"].value]
    assert fetch("GET", "/svc/node/services/%25252F/health").code == 404
    assert fetch("GET", "/svc/node/services/+/health").code == CODES[ODD_SERVICE_IDS["+"].value], (
        "a plus is no space in a path"
    )


def test_more_of_an_id_may_be_encoded_than_must_be(fetch: Fetch) -> None:
    assert fetch("GET", "/svc/node/services/%64%62/health").code == 200
    assert fetch("GET", "/svc/%6eode/services/indexer/he%61lth").code == 503


def test_a_slash_in_an_id_is_not_a_slash_in_the_path(fetch_from: FetchFrom, transport: Transport) -> None:
    if not transport.keeps_raw_path:
        pytest.skip("a gateway that hands on only the decoded path leaves no difference")
    reply = fetch_from("odd ids")("GET", "/svc/node/services/a/b%20c%25/health")
    assert (reply.code, message_of(reply)) == (404, "Not found")


# ---- methods


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_only_get_and_head_are_allowed(fetch: Fetch, method: str) -> None:
    for endpoint in ENDPOINTS:
        reply = fetch(method, endpoint)
        assert (reply.code, reply.headers["allow"]) == (405, "GET, HEAD"), endpoint
        assert "GET" in message_of(reply)


def test_the_method_is_judged_before_the_service_is_looked_for(fetch: Fetch) -> None:
    assert fetch("POST", "/svc/node/services/nobody/health").code == 405


@pytest.mark.parametrize(
    "target",
    [
        *ENDPOINTS,
        "/svc/node/services/indexer/health",
        "/svc/node/services/storage/health",
        "/svc/node/services/nobody/health",
        "/svc/node?version=v9",
        "/svc/nowhere",
        "/livez",
        "/readyz",
        "/openapi.json",
    ],
)
def test_head_has_the_code_and_the_headers_of_get_and_no_body(fetch: Fetch, target: str) -> None:
    got, head = fetch("GET", target), fetch("HEAD", target)
    got.headers.pop("date", None)
    head.headers.pop("date", None)
    assert head == (got.code, got.headers, b"")


# ---- paths


OTHER_PATHS = (
    "/",
    "/svc",
    "/svc/",
    "/svc/node/",
    "/svc/node/health/",
    "/svc/node/services/",
    "/svc/node/services/db",
    "/svc/node/services/db/",
    "/svc/node/services/db/health/",
    "/svc/node/services/db/health/x",
    "//svc/node",
    "/svc//node",
    "/svc/node//health",
    "/SVC/node",
    "/svc/Node",
    "/svc/node/HEALTH",
    "/svc/node.json",
    "/svc/node;x=y",
    "/svc/./node",
    "/svc/x/../node",
    "/node",
    "/node/health",
    "/eigen/node",
    "/x/svc/node",
    "/svcnode",
    "/livez/",
    "/LIVEZ",
    "//[",
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_every_other_path_is_not_found(fetch: Fetch, method: str) -> None:
    for path in OTHER_PATHS:
        reply = fetch(method, path)
        assert reply.code == 404, path
        assert method == "HEAD" or message_of(reply) == "Not found", path
        assert "location" not in reply.headers


def test_both_of_two_prefixes_are_served(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("two prefixes")
    for endpoint in ENDPOINTS:
        first, second = fetch("GET", endpoint), fetch("GET", endpoint.replace("/svc", "/eigen"))
        assert (first.code, first.body) == (second.code, second.body)
        assert first.code < 300
    assert fetch("GET", "/other/node").code == 404
    assert fetch("GET", "/svc/eigen/node").code == 404


def test_a_prefix_may_be_deep_and_may_be_nothing(fetch_from: FetchFrom) -> None:
    assert fetch_from("deep prefix")("GET", "/api/v1/svc/node").code == 200
    assert fetch_from("deep prefix")("GET", "/svc/node").code == 404
    assert fetch_from("no prefix")("GET", "/node").code == 200
    assert fetch_from("no prefix")("GET", "/svc/node").code == 404


# ---- how 206 is read


@pytest.mark.parametrize("endpoint", ["/svc/node/health", "/svc/node/services/storage/health"])
def test_the_caller_chooses_the_code_that_stands_for_partly_healthy(fetch: Fetch, endpoint: str) -> None:
    for code in (200, 204, 206, 299, 304, 429, 503, 599):
        assert health_code(fetch("GET", f"{endpoint}?partial_status={code}")) == code


@pytest.mark.parametrize(("service_id", "code"), [("db", 200), ("indexer", 503)])
def test_the_other_codes_are_not_the_callers_to_choose(fetch: Fetch, service_id: str, code: int) -> None:
    assert health_code(fetch("GET", f"/svc/node/services/{service_id}/health?partial_status=418")) == code


NO_CODES = (
    "partial_status=99",
    "partial_status=100",
    "partial_status=199",
    "partial_status=600",
    "partial_status=0200",
    "partial_status=2000",
    "partial_status=-200",
    "partial_status=abc",
    "partial_status=200.0",
    "partial_status=200%0A",
    "partial_status=%20200",
    "partial_status=",
    "partial_status",
    "partial_status=200&partial_status=200",
    "partial_status=%D9%A2%D9%A0%D9%A0",
    "partial_status=2%D9%A0%D9%A0",
    "partial_status=%EF%BC%92%EF%BC%90%EF%BC%90",
)


@pytest.mark.parametrize("service", ["", "/services/db", "/services/nobody"])
def test_anything_but_one_code_is_a_bad_request(fetch: Fetch, service: str) -> None:
    for query in NO_CODES:
        reply = fetch("GET", f"/svc/node{service}/health?{query}")
        expected = (400, "partial_status must be one status code from 200 to 599")
        assert (reply.code, message_of(reply)) == expected, query


@pytest.mark.parametrize("endpoint", ["/svc/node", "/svc/node/services"])
def test_elsewhere_that_parameter_means_nothing(fetch: Fetch, endpoint: str) -> None:
    assert fetch("GET", f"{endpoint}?partial_status=nonsense").code == 200


def test_an_unknown_service_stays_unknown_whatever_code_is_chosen(fetch: Fetch) -> None:
    reply = fetch("GET", "/svc/node/services/nobody/health?partial_status=200")
    assert (reply.code, message_of(reply)) == (404, "Service not found")


# ---- headers


@pytest.mark.parametrize(
    ("method", "target"),
    [
        *(("GET", endpoint) for endpoint in ENDPOINTS),
        ("GET", "/svc/node/services/nobody/health"),
        ("GET", "/svc/node?version=v9"),
        ("GET", "/svc/node/health?partial_status=x"),
        ("GET", "/nowhere"),
        ("POST", "/svc/node"),
        ("GET", "/livez"),
        ("GET", "/readyz"),
        ("GET", "/openapi.json"),
    ],
)
def test_headers_that_every_answer_has(fetch: Fetch, transport: Transport, method: str, target: str) -> None:
    reply = fetch(method, target)
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-length"] == str(len(reply.body))
    assert reply.headers.get("content-type") == ("application/json" if reply.body else None)
    assert ("date" in reply.headers) == transport.sends_date


def test_an_answer_without_content_speaks_of_no_length(fetch: Fetch) -> None:
    reply = fetch("GET", "/svc/node/health?partial_status=204")
    assert (reply.code, reply.body) == (204, b"")
    assert "content-length" not in reply.headers


# ---- when answering itself fails


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/svc/node", 500),
        ("/svc/node/services", 500),
        ("/svc/node/health", 503),
        ("/svc/node/services/db/health", 503),
        ("/readyz", 503),
    ],
)
def test_a_failure_inside_is_said_to_the_log_and_not_to_the_client(
    fetch_from: FetchFrom, transport: Transport, target: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    reply = fetch_from("broken")("GET", target)
    assert reply.code == code
    if code == 500:
        assert message_of(reply) == "Internal server error"
    else:
        assert health_code(reply) == 503
    assert reply.headers["cache-control"] == "no-store"
    assert SECRET not in str(reply)
    if transport.is_in_process:
        (record,) = (record for record in caplog.records if record.name == "svcnode.server")
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == SECRET


def test_what_does_not_need_the_node_is_answered_by_a_broken_one_too(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("broken")
    assert fetch("GET", "/livez").code == 200
    assert fetch("GET", "/svc/node?version=v9").code == 404
    assert fetch("POST", "/svc/node").code == 405


# ---- beside the interface


@pytest.mark.parametrize("node_case", ["all up", "worked example", "all down", "draining"])
def test_a_live_process_says_so_whatever_its_services_do(fetch_from: FetchFrom, node_case: str) -> None:
    assert health_code(fetch_from(node_case)("GET", "/livez")) == 200


@pytest.mark.parametrize(
    ("node_case", "ready", "strictly"),
    [
        ("all up", 200, 200),
        ("worked example", 200, 503),
        ("starting", 200, 503),
        ("all down", 503, 503),
        ("draining", 503, 503),
    ],
)
def test_readiness_reads_partly_healthy_as_good_unless_asked_to_be_strict(
    fetch_from: FetchFrom, node_case: str, ready: int, strictly: int
) -> None:
    fetch = fetch_from(node_case)
    assert health_code(fetch("GET", "/readyz")) == ready
    for query in ("strict", "strict=", "strict=1"):
        assert health_code(fetch("GET", f"/readyz?{query}")) == strictly


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/openapi.json"])
def test_beside_the_interface_only_get_and_head_are_allowed_too(fetch: Fetch, path: str) -> None:
    reply = fetch("POST", path)
    assert (reply.code, reply.headers["allow"]) == (405, "GET, HEAD")
    assert message_of(reply)


def test_the_interface_describes_itself_under_its_prefixes(fetch_from: FetchFrom) -> None:
    reply = fetch_from("two prefixes")("GET", "/openapi.json")
    assert (reply.code, reply.headers["content-type"]) == (200, "application/json")
    document = json.loads(reply.body)
    assert document["openapi"].startswith("3.")
    assert [server["url"] for server in document["servers"]] == ["/svc", "/eigen"]
