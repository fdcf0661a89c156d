"""Responses as values: valid ones, deviations, and errors."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from svcnode.client.parse import (
    HEALTH,
    IDENTITY,
    MAX_DEVIATIONS,
    SERVICES,
    BackingService,
    NodeResponse,
    Operation,
    service_health_operation,
)
from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.errors import (
    ClientError,
    InvalidValueError,
    NodeFailedError,
    ServiceNotFoundError,
    UnexpectedResponseError,
    VersionNotFoundError,
)
from svcnode.core.model import Health, Identity, Status
from svcnode.core.redaction import register_secret

URL = "http://node.example/svc/here"
IDENTITY_JSON = {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"}
DB = {"id": "db", "name": "Ledger", "description": "Holds it", "status": "Up"}
SERVICE_HEALTH = service_health_operation("db")
OPERATIONS = [IDENTITY, HEALTH, SERVICES, SERVICE_HEALTH]


def make_response(body: object = b"", code: int = 200, headers: dict[str, str] | None = None) -> NodeResponse:
    if isinstance(body, bytes):
        return NodeResponse(URL, code, headers or {}, body)
    return NodeResponse(URL, code, {"content-type": "application/json", **(headers or {})}, json.dumps(body).encode())


def parse(
    operation: Operation[Any], body: object = b"", code: int = 200, headers: dict[str, str] | None = None
) -> tuple[Any, list[str]]:
    value, deviations = operation.parse(make_response(body, code, headers))
    return value, list(deviations)


def parse_error(
    operation: Operation[Any], body: object = b"", code: int = 200, headers: dict[str, str] | None = None
) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse(operation, body, code, headers)
    return caught.value


# ---- valid responses


def test_an_identity_and_services_in_their_order_are_parsed() -> None:
    assert parse(IDENTITY, IDENTITY_JSON) == (Identity(**IDENTITY_JSON), [])
    db = BackingService(id="db", name="Ledger", description="Holds it", status=Status.UP)
    cache = BackingService(id="cache", name="", description="", status=Status.DOWN)
    listed = {"services": [DB, {"id": "cache", "name": "", "description": "", "status": "Down"}]}
    assert parse(SERVICES, listed) == ((db, cache), [])
    assert parse(SERVICES, {"services": []}) == ((), [])


@pytest.mark.parametrize("operation", [HEALTH, SERVICE_HEALTH])
@pytest.mark.parametrize("health", list(Health))
def test_health_is_the_http_status(operation: Operation[Health], health: Health) -> None:
    assert parse(operation, code=health.value) == (health, [])


def test_an_id_is_one_percent_encoded_segment_of_the_path() -> None:
    segments = {"a/b": "a%2Fb", "50% of ö?": "50%25%20of%20%C3%B6%3F", "..": "%2E%2E", ".": "%2E", "v1.2-~_": "v1.2-~_"}
    for service_id, segment in segments.items():
        assert service_health_operation(service_id).path == f"/node/services/{segment}/health"
    invalid: Any
    for invalid in ("", "\ud800", 5, "x" * 70_000):
        with pytest.raises(InvalidValueError):
            service_health_operation(invalid)


# ---- deviations


@pytest.mark.parametrize(
    ("document", "identity", "key"),
    [
        (IDENTITY_JSON | {"uptime": 7}, IDENTITY_JSON, "uptime"),
        (
            {"node_name": "n", "spec_verdsion": "v0.0.1", "node_version": "v1"},
            {"node_name": "n", "spec_version": "", "node_version": "v1"},
            "spec_version",
        ),
        (IDENTITY_JSON | {"node_version": "1.4.2-rc1"}, IDENTITY_JSON | {"node_version": "1.4.2-rc1"}, "node_version"),
        (IDENTITY_JSON | {"node_name": 7}, IDENTITY_JSON | {"node_name": "7"}, "node_name"),
        (IDENTITY_JSON | {"node_name": None}, IDENTITY_JSON | {"node_name": ""}, "node_name"),
    ],
)
def test_an_identity_with_a_deviation_is_parsed_as_it_was_sent(
    document: dict[str, Any], identity: dict[str, str], key: str
) -> None:
    value, deviations = parse(IDENTITY, document)
    assert isinstance(value, Identity)
    assert {name: getattr(value, name) for name in identity} == identity
    assert any(key in deviation for deviation in deviations)


def test_json_with_another_content_type_is_a_deviation() -> None:
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        assert parse(IDENTITY, IDENTITY_JSON, headers={"content-type": kind}) == (Identity(**IDENTITY_JSON), [])
    identity, (deviation,) = parse(IDENTITY, IDENTITY_JSON, headers={"content-type": "text/plain; charset=utf-8"})
    assert identity == Identity(**IDENTITY_JSON)
    assert " text/plain, " in deviation
    without = NodeResponse(URL, 200, {}, json.dumps(IDENTITY_JSON).encode())
    assert len(IDENTITY.parse(without).deviations) == 1


@pytest.mark.parametrize(
    ("codec", "encoding"), [("utf-8-sig", "byte order mark"), ("utf-16-be", "UTF-16"), ("utf-32", "UTF-32")]
)
def test_json_in_another_encoding_is_a_deviation(codec: str, encoding: str) -> None:
    body = json.dumps(IDENTITY_JSON).encode(codec)
    identity, (deviation,) = parse(IDENTITY, body, headers={"content-type": "application/json"})
    assert identity == Identity(**IDENTITY_JSON)
    assert encoding in deviation


def test_a_content_encoding_is_a_deviation_and_an_unknown_one_an_error() -> None:
    identity, (deviation,) = parse(IDENTITY, IDENTITY_JSON, headers={"content-encoding": "GZIP"})
    assert identity == Identity(**IDENTITY_JSON)
    assert " gzip, " in deviation
    assert parse(IDENTITY, IDENTITY_JSON, headers={"content-encoding": "identity"}) == (Identity(**IDENTITY_JSON), [])
    headers = {"content-type": "application/json", "content-encoding": "br"}
    assert r" application/json, br: \x8b\x02" in str(parse_error(IDENTITY, b"\x8b\x02", headers=headers))


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"services": [], "services": []}', "services"),
        (b'{"services": [{"id": "a", "status": "Down", "status": "Up"}]}', "status"),
        (b'{"services": "\xff"}', "14"),
        (b"[" * 100_000, ""),
        (b'{"services": [}', "char 14"),
    ],
)
def test_invalid_json_is_an_error_with_a_detail(body: bytes, detail: str) -> None:
    """Of a duplicate field, either of the two values may be the right one."""
    error = parse_error(SERVICES, body, headers={"content-type": "application/json"})
    assert isinstance(error, UnexpectedResponseError)
    _, separator, text = error.problem.partition(", invalid JSON: ")
    assert separator
    assert detail in text


@pytest.mark.parametrize(
    ("document", "status", "shown"),
    [
        ({}, None, " status"),
        ({"status": "up"}, Status.UP, " up, "),
        ({"status": "Degraded"}, None, ": Degraded"),
        ({"status": None}, None, ": null"),
        ({"status": ["Up"]}, None, ': ["Up"]'),
    ],
)
def test_an_invalid_status_is_none(document: dict[str, Any], status: Status | None, shown: str) -> None:
    (service,), (deviation,) = parse(SERVICES, {"services": [{"id": "a", "name": "A", "description": "", **document}]})
    assert service.status is status
    assert shown in deviation


@pytest.mark.parametrize(
    ("document", "ids", "shown"),
    [
        ([DB], ["db"], "array"),
        ({"services": None}, [], "null"),
        ({"services": [], "total": 0}, [], ": total"),
        ({"services": [DB | {"id": 7}]}, ["7"], "id "),
        ({"services": [DB | {"port": 1}]}, ["db"], ": port"),
        ({"services": [DB, DB]}, ["db", "db"], " db"),
        ({"services": [{"id": "a", "name": "A", "status": "Up"}]}, ["a"], " description"),
    ],
)
def test_a_list_with_a_deviation_is_parsed(document: object, ids: list[str], shown: str) -> None:
    services, (deviation,) = parse(SERVICES, document)
    assert [service.id for service in services] == ids
    assert shown in deviation


@pytest.mark.parametrize("operation", [HEALTH, SERVICE_HEALTH])
def test_a_health_response_with_a_body_is_a_deviation(operation: Operation[Health]) -> None:
    health, deviations = parse(operation, {"status": "ok"}, 503)
    assert (health, len(deviations)) == (Health.UNHEALTHY, 1)


def test_deviations_are_reported_once_redacted_and_escaped() -> None:
    many = [{"id": str(number), "name": "", "description": ""} for number in range(50)]
    assert len(parse(SERVICES, {"services": many})[1]) == 1
    register_secret("hunter2")
    (deviation,) = parse(IDENTITY, IDENTITY_JSON | {"hunter2\x1b[31m": 1})[1]
    assert deviation.endswith(r": ***\x1b[31m")


# ---- errors


def test_a_node_that_deviates_in_a_new_way_in_each_service_is_not_quoted_without_end() -> None:
    services = [
        {"id": str(number), "name": "", "description": "", "status": "Up", f"x{number}": 1} for number in range(500)
    ]
    value, deviations = SERVICES.parse(make_response({"services": services}))
    assert (len(value), len(deviations)) == (500, MAX_DEVIATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_unsupported_version_is_an_error_of_its_own_if_it_was_requested(operation: Operation[Any]) -> None:
    body = {"message": "API version not found"}
    with pytest.raises(VersionNotFoundError, match=re.escape(f"{URL}?version=v9")):
        operation.parse(make_response(body, 404)._replace(url=f"{URL}?version=v9"))
    error = parse_error(operation, body, 404)
    assert isinstance(error, UnexpectedResponseError)
    assert (error.code, error.url) == (ReasonCode.NOT_FOUND, URL)


@pytest.mark.parametrize("body", [b"", {"message": "Service not found"}, {"message": "unknown service"}])
def test_a_404_for_a_service_means_that_it_does_not_exist(body: object) -> None:
    assert isinstance(parse_error(SERVICE_HEALTH, body, 404), ServiceNotFoundError)


OTHER_404 = (b"", b"404 page not found\n", {"detail": "Not Found"}, {"message": "Not found"})


@pytest.mark.parametrize(
    ("operation", "body"),
    [(one, body) for one in OPERATIONS for body in OTHER_404 if (one, body) != (SERVICE_HEALTH, b"")],
)
def test_a_404_of_another_server_is_unexpected(operation: Operation[Any], body: object) -> None:
    error = parse_error(operation, body, 404)
    assert isinstance(error, UnexpectedResponseError)
    assert error.code is ReasonCode.NOT_FOUND
    assert f": {URL}; " in str(error), "a hint follows"


@pytest.mark.parametrize("operation", [HEALTH, SERVICE_HEALTH])
def test_a_500_is_a_failure_of_the_node_with_its_message(operation: Operation[Any]) -> None:
    error = parse_error(operation, {"message": "Internal server error"}, 500)
    assert isinstance(error, NodeFailedError)
    assert error.code is ReasonCode.SERVER_ERROR
    assert error.problem.endswith(": Internal server error")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("code", [204, 400, 401, 502])
def test_any_other_http_status_is_unexpected(operation: Operation[Any], code: int) -> None:
    error = parse_error(operation, b"", code)
    assert isinstance(error, UnexpectedResponseError)
    assert f" {code} " in error.problem
    assert error.code is code_for_http_status(code)


@pytest.mark.parametrize("operation", [IDENTITY, SERVICES])
@pytest.mark.parametrize(
    "body", [b"", b"<html>\n  Hello\x1b[2J</html>", b"\xff\xfe\xfd", b"9" * 5000, b'"text"', b"{}"]
)
def test_any_other_body_is_unexpected_and_described_in_one_line(operation: Operation[Any], body: bytes) -> None:
    error = parse_error(operation, body)
    assert isinstance(error, UnexpectedResponseError)
    assert len(str(error)) < 250
    assert str(error).isprintable()


def test_a_secret_at_the_end_of_the_excerpt_is_not_shown() -> None:
    register_secret("hunter2-and-more")
    for spaces in (60, 630):
        assert "hunt" not in str(parse_error(IDENTITY, b"x" * 10 + b" x" * (spaces // 2) + b" hunter2-and-more"))
        assert "hunt" not in str(parse_error(IDENTITY, b"x" * 10 + b" " * spaces + b"hunter2-and-more"))


@pytest.mark.parametrize("service", [{"name": "A"}, {"id": None}, {"id": ["a"]}, "db", None])
def test_a_service_without_an_id_is_an_error(service: object) -> None:
    assert isinstance(parse_error(SERVICES, {"services": [service]}), UnexpectedResponseError)
