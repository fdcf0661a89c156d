"""The interface as a client sees it, and our decisions where the interface is silent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.node_cases import ODD_SERVICE_IDS, SECRET
from tests.support.transports import INTERNAL_ERROR, NOT_FOUND, SERVICE_NOT_FOUND, VERSION_NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.transports import Fetch, Response, Transport

    FetchFrom = Callable[[str], Fetch]

ENDPOINTS = ("/svc/node", "/svc/node/health", "/svc/node/services", "/svc/node/services/db/health")
each_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS)


def error_code(response: Response) -> int:
    """The code of an error whose body has exactly one message."""
    code, body = response.error
    assert list(body) == ["message"]
    assert isinstance(body["message"], str)
    assert body["message"]
    return code


def health_code(response: Response) -> int:
    """The code of a response without a body."""
    assert response.body == b""
    assert "content-type" not in response.headers
    return response.code


def test_the_identity_has_its_three_fields_in_order(fetch: Fetch) -> None:
    response = fetch("GET", "/svc/node")
    assert (response.code, response.headers["content-type"]) == (200, "application/json")
    assert list(json.loads(response.body).items()) == [
        ("node_name", "validator-7"),
        ("spec_version", "v0.0.1"),
        ("node_version", "v1.4.2"),
    ]


def test_the_list_has_every_service_with_its_four_fields_in_order(fetch: Fetch) -> None:
    response = fetch("GET", "/svc/node/services")
    assert (response.code, response.headers["content-type"]) == (200, "application/json")
    body = json.loads(response.body)
    assert list(body) == ["services"]
    assert [list(service.items()) for service in body["services"]] == [
        [("id", "db"), ("name", "Ledger database"), ("description", "Holds the ledger"), ("status", "Up")],
        [("id", "indexer"), ("name", "Indexer"), ("description", "Follows the chain"), ("status", "Down")],
        [("id", "storage"), ("name", "Storage daemon"), ("description", "Keeps the blobs"), ("status", "Initializing")],
    ]


def test_the_health_of_a_service_is_a_code_without_a_body(fetch: Fetch) -> None:
    for service_id, code in (("db", 200), ("indexer", 503), ("storage", 206)):
        assert health_code(fetch("GET", f"/svc/node/services/{service_id}/health")) == code


@pytest.mark.parametrize(
    ("node_case", "code"),
    [
        ("worked example", 206),
        ("no services", 200),
        ("all up", 200),
        ("all down", 503),
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


SUPPORTED = ("version=0.0.1", "version=v0.0.1&version=0.0.1", "other=x&%76ersion=v0%2E0%2E1", "Version=v9", "")
UNSUPPORTED = (
    *("version=v0.0.2", "version=V0.0.1", "version=", "version", "version=v0.0.1%00", "version=v0.0.1&version=v0.0.2"),
    *("version=v0.0.2&version=v0.0.1", "x=y&%76ersion=v0.0.2", "version=%FF"),
)


@each_endpoint
def test_a_supported_version_changes_nothing(fetch: Fetch, endpoint: str) -> None:
    plain = fetch("GET", endpoint)
    for query in SUPPORTED:
        versioned = fetch("GET", f"{endpoint}?{query}")
        assert (versioned.code, versioned.body) == (plain.code, plain.body), query


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, "/svc/node/services/unknown/health"])
def test_an_unsupported_version_is_not_found(fetch: Fetch, endpoint: str) -> None:
    for query in UNSUPPORTED:
        response = fetch("GET", f"{endpoint}?{query}")
        assert response.error == VERSION_NOT_FOUND, query


@each_endpoint
def test_the_version_is_checked_before_the_method_and_the_query(fetch: Fetch, endpoint: str) -> None:
    for response in (
        fetch("POST", f"{endpoint}?version=v9"),
        fetch("OPTIONS", f"{endpoint}?version="),
        fetch("GET", f"{endpoint}?version=v9&partial_status=nonsense"),
    ):
        assert response.error == VERSION_NOT_FOUND


def test_an_unknown_service_is_not_found(fetch: Fetch) -> None:
    for unknown in ("unknown", "DB", "db%20", "%64b2", "", "%FF", "d%00b"):
        response = fetch("GET", f"/svc/node/services/{unknown}/health")
        assert response.error == SERVICE_NOT_FOUND, unknown


CODES = {"Up": 200, "Initializing": 206, "Down": 503}


def test_any_listed_id_can_be_requested(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("odd ids")
    listed = {one["id"]: one["status"] for one in json.loads(fetch("GET", "/svc/node/services").body)["services"]}
    assert listed == {service_id: status.value for service_id, status in ODD_SERVICE_IDS.items()}
    for service_id, status in listed.items():
        response = fetch("GET", f"/svc/node/services/{quote(service_id, safe='')}/health")
        assert health_code(response) == CODES[status], service_id


def test_an_id_is_decoded_once(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("odd ids")
    assert fetch("GET", "/svc/node/services/a/b%20c%25/health").code == 200, "a proxy decoded the slash"
    assert fetch("GET", "/svc/%6eode/services/%C3%BC/he%61lth").code == 503
    assert fetch("GET", "/svc/node/services/%252F/health").code == CODES[ODD_SERVICE_IDS["%2F"].value]
    assert fetch("GET", "/svc/node/services/%25252F/health").code == 404
    assert fetch("GET", "/svc/node/services/+/health").code == CODES[ODD_SERVICE_IDS["+"].value]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("query", ["", "?version=v9"])
def test_a_path_with_more_segments_is_not_found_without_such_an_id(
    fetch_from: FetchFrom, transport: Transport, method: str, query: str
) -> None:
    if not transport.keeps_raw_path:
        pytest.skip("this gateway passes only the decoded path, which is taken for an id")
    assert fetch_from("odd ids")(method, f"/svc/node/services/a/b/c/health{query}").error == NOT_FOUND


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "TRACE"])
def test_only_get_and_head_are_allowed(fetch: Fetch, method: str) -> None:
    for endpoint in (*ENDPOINTS, "/svc/node/services/unknown/health", "/livez", "/readyz", "/openapi.json"):
        response = fetch(method, endpoint)
        assert (error_code(response), response.headers["allow"]) == (405, "GET, HEAD"), endpoint


OTHER_PATHS = (
    *("/", "/svc", "/svc/node/", "/svc/node/services/db", "/svc/node/services/db/health/x", "//svc/node", "/svc//node"),
    *(
        "/SVC/node",
        "/svc/node/HEALTH",
        "/svc/node;x=y",
        "/svc/x/../node",
        "/node",
        "/eigen/node",
        "/svcnode",
        "/livez/",
    ),
    "//[",
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_every_other_path_is_not_found(fetch: Fetch, method: str) -> None:
    for path in OTHER_PATHS:
        response = fetch(method, path)
        assert response.code == 404, path
        assert method == "HEAD" or response.error == NOT_FOUND, path
        assert "location" not in response.headers


@pytest.mark.parametrize("endpoint", ["/svc/node/health", "/svc/node/services/storage/health"])
def test_partial_status_replaces_206(fetch: Fetch, endpoint: str) -> None:
    for code in (200, 304, 599):
        assert health_code(fetch("GET", f"{endpoint}?partial_status={code}")) == code
    response = fetch("GET", f"{endpoint}?partial_status=204")
    assert (health_code(response), "content-length" in response.headers) == (204, False)
    for service_id, code in (("db", 200), ("indexer", 503)):
        assert health_code(fetch("GET", f"/svc/node/services/{service_id}/health?partial_status=418")) == code
    assert fetch("GET", "/svc/node/services/unknown/health?partial_status=200").error == SERVICE_NOT_FOUND
    assert fetch("GET", "/svc/node/services?partial_status=nonsense").code == 200


INVALID_PARTIAL_STATUSES = ("=199", "=600", "=0200", "=abc", "=200%0A", "", "=200&partial_status=200", "=2%D9%A0%D9%A0")


@pytest.mark.parametrize("service", ["", "/services/db", "/services/unknown"])
def test_an_invalid_partial_status_is_a_bad_request(fetch: Fetch, service: str) -> None:
    for value in INVALID_PARTIAL_STATUSES:
        response = fetch("GET", f"/svc/node{service}/health?partial_status{value}")
        assert error_code(response) == 400, value


@pytest.mark.parametrize(
    "target",
    [
        *ENDPOINTS,
        *("/svc/node/services/indexer/health", "/svc/node/services/storage/health"),
        *("/svc/node/services/unknown/health", "/svc/node?version=v9", "/svc/node/health?partial_status=x"),
        *("/svc/nowhere", "/livez", "/readyz", "/openapi.json"),
    ],
)
def test_every_response_has_the_common_headers_and_head_has_them_without_the_body(
    fetch: Fetch, transport: Transport, target: str
) -> None:
    got, head, refused = fetch("GET", target), fetch("HEAD", target), fetch("POST", target)
    for response in (got, refused):
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-length"] == str(len(response.body))
        assert response.headers.get("content-type") == ("application/json" if response.body else None)
        assert ("date" in response.headers) == transport.sends_date
    got.headers.pop("date", None)
    head.headers.pop("date", None)
    assert head == (got.code, got.headers, b"")


@pytest.mark.parametrize("target", [*ENDPOINTS, "/readyz"])
def test_the_cause_of_an_internal_error_is_logged_and_not_sent(
    fetch_from: FetchFrom, transport: Transport, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = fetch_from("broken")("GET", target)
    if target in ("/svc/node", "/svc/node/services"):
        assert response.error == INTERNAL_ERROR
    else:
        assert health_code(response) == 503
    assert response.headers["cache-control"] == "no-store"
    assert SECRET not in str(response)
    if transport.is_in_process:
        (record,) = (record for record in caplog.records if record.name == "svcnode.api")
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == SECRET


def test_a_broken_node_still_answers_requests_that_do_not_read_it(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("broken")
    assert fetch("GET", "/livez").code == 200
    assert fetch("GET", "/svc/node?version=v9").code == 404
    assert fetch("POST", "/svc/node").code == 405


@pytest.mark.parametrize(
    ("node_case", "ready", "strictly"),
    [
        ("all up", 200, 200),
        ("worked example", 200, 503),
        ("starting", 503, 503),
        ("all down", 503, 503),
        ("draining", 503, 503),
    ],
)
def test_readyz_treats_206_as_ready_unless_strict_or_starting(
    fetch_from: FetchFrom, node_case: str, ready: int, strictly: int
) -> None:
    fetch = fetch_from(node_case)
    assert health_code(fetch("GET", "/livez")) == 200
    assert health_code(fetch("GET", "/readyz")) == ready
    for query in ("strict", "strict=1"):
        assert health_code(fetch("GET", f"/readyz?{query}")) == strictly


def test_two_prefixes_are_served_and_are_the_servers_of_the_openapi_document(fetch_from: FetchFrom) -> None:
    fetch = fetch_from("two prefixes")
    codes = [fetch("GET", f"{prefix}/node").code for prefix in ("/svc", "/eigen", "/other", "/svc/eigen")]
    assert codes == [200, 200, 404, 404]
    response = fetch("GET", "/openapi.json")
    assert (response.code, response.headers["content-type"]) == (200, "application/json")
    document = json.loads(response.body)
    assert document["openapi"].startswith("3.")
    assert [server["url"] for server in document["servers"]] == ["/svc", "/eigen"]
