"""What an answer means: what the interface has, what is understood nevertheless, and what is something else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from svcnode.client.parse import (
    HEALTH,
    IDENTITY,
    SERVICES,
    BackingService,
    NodeResponse,
    Operation,
    service_health_operation,
)
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
WHO = {"node_name": "validator-7", "spec_version": "v0.0.1", "node_version": "v1.4.2"}
DB = {"id": "db", "name": "Ledger", "description": "Holds it", "status": "Up"}
ONE_OF = service_health_operation("db")
OPERATIONS = [IDENTITY, HEALTH, SERVICES, ONE_OF]


def answer(body: object = b"", code: int = 200, headers: dict[str, str] | None = None) -> NodeResponse:
    if isinstance(body, bytes):
        return NodeResponse(URL, code, headers or {}, body)
    return NodeResponse(URL, code, {"content-type": "application/json", **(headers or {})}, json.dumps(body).encode())


def read(
    operation: Operation[Any], body: object = b"", code: int = 200, headers: dict[str, str] | None = None
) -> tuple[Any, list[str]]:
    value, deviations = operation.parse(answer(body, code, headers))
    return value, list(deviations)


def refusal(
    operation: Operation[Any], body: object = b"", code: int = 200, headers: dict[str, str] | None = None
) -> ClientError:
    with pytest.raises(ClientError) as refused:
        read(operation, body, code, headers)
    return refused.value


# ---- as the interface has it


def test_an_identity_is_read() -> None:
    assert read(IDENTITY, WHO) == (Identity(**WHO), [])


def test_services_are_read_in_order() -> None:
    db = BackingService(id="db", name="Ledger", description="Holds it", status=Status.UP)
    cache = BackingService(id="cache", name="", description="", status=Status.DOWN)
    listed = {"services": [DB, {"id": "cache", "name": "", "description": "", "status": "Down"}]}
    assert read(SERVICES, listed) == ((db, cache), [])


def test_no_services_are_no_services() -> None:
    assert read(SERVICES, {"services": []}) == ((), [])


@pytest.mark.parametrize("operation", [HEALTH, ONE_OF])
@pytest.mark.parametrize("health", list(Health))
def test_health_is_the_code(operation: Operation[Health], health: Health) -> None:
    assert read(operation, code=health.value) == (health, [])


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_the_type_of_json_may_have_parameters_and_large_letters(kind: str) -> None:
    assert read(IDENTITY, WHO, headers={"content-type": kind}) == (Identity(**WHO), [])


@pytest.mark.parametrize(
    ("service_id", "segment"),
    [
        ("db-1", "db-1"),
        ("a/b", "a%2Fb"),
        ("50% of a b?", "50%25%20of%20a%20b%3F"),
        ("Größe", "Gr%C3%B6%C3%9Fe"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("v1.2", "v1.2"),
    ],
)
def test_an_id_is_one_segment_of_the_path_whatever_it_holds(service_id: str, segment: str) -> None:
    assert service_health_operation(service_id).path == f"/node/services/{segment}/health"


@pytest.mark.parametrize("service_id", ["", "\ud800", 5, None])
def test_an_id_that_no_path_can_hold_is_refused(service_id: Any) -> None:
    with pytest.raises(InvalidValueError):
        service_health_operation(service_id)


# ---- not quite, and understood


@pytest.mark.parametrize(
    ("told", "identity", "deviations"),
    [
        (WHO | {"uptime": 7}, WHO, "the identity has a field that is not of the interface: uptime"),
        (
            {"node_name": "n", "spec_verdsion": "v0.0.1", "node_version": "v1"},
            {"node_name": "n", "spec_version": "", "node_version": "v1"},
            "the identity has no spec_version",
        ),
        (
            WHO | {"node_version": "1.4.2-rc1"},
            WHO | {"node_version": "1.4.2-rc1"},
            'the node_version is not a "v" followed by dotted numbers: 1.4.2-rc1',
        ),
        (WHO | {"node_name": 7}, WHO | {"node_name": "7"}, "the node_name of the identity is not a string"),
        (WHO | {"node_name": None}, WHO | {"node_name": ""}, "the node_name of the identity is not a string"),
    ],
)
def test_an_identity_that_is_not_quite_one_is_read_as_it_was_told(
    told: dict[str, Any], identity: dict[str, str], deviations: str
) -> None:
    value, sentences = read(IDENTITY, told)
    assert isinstance(value, Identity)
    assert {name: getattr(value, name) for name in identity} == identity
    assert deviations in sentences


def test_json_of_another_type_is_read() -> None:
    sentence = "JSON comes as text/plain instead of application/json"
    assert read(IDENTITY, WHO, headers={"content-type": "text/plain; charset=utf-8"}) == (Identity(**WHO), [sentence])
    without = NodeResponse(URL, 200, {}, json.dumps(WHO).encode())
    assert IDENTITY.parse(without).deviations == ("JSON comes as nothing instead of application/json",)


@pytest.mark.parametrize(
    ("codec", "sentence"),
    [
        ("utf-8-sig", "JSON comes with a byte order mark"),
        ("utf-16", "JSON comes in UTF-16 instead of UTF-8"),
        ("utf-16-be", "JSON comes in UTF-16 instead of UTF-8"),
        ("utf-32", "JSON comes in UTF-32 instead of UTF-8"),
    ],
)
def test_json_in_other_bytes_is_read(codec: str, sentence: str) -> None:
    body = json.dumps(WHO).encode(codec)
    assert read(IDENTITY, body, headers={"content-type": "application/json"}) == (Identity(**WHO), [sentence])


def test_json_that_came_encoded_is_read_and_one_that_nobody_can_decode_is_not() -> None:
    sentence = "JSON comes encoded as gzip, which was not asked for"
    assert read(IDENTITY, WHO, headers={"content-encoding": "GZIP"}) == (Identity(**WHO), [sentence])
    assert read(IDENTITY, WHO, headers={"content-encoding": "identity"}) == (Identity(**WHO), [])
    headers = {"content-type": "application/json", "content-encoding": "br"}
    assert r"got 200 with application/json, br: \x8b\x02 at" in str(refusal(IDENTITY, b"\x8b\x02", headers=headers))


@pytest.mark.parametrize(
    "body",
    [
        b'{"services": [{"id": "a", "name": "A", "description": "", "status": "Down", "status": "Up"}]}',
        b'{"services": [{"id": "a", "name": "A", "description": "", "status": "Down"}], "services": []}',
    ],
)
def test_a_field_that_stands_there_twice_is_refused(body: bytes) -> None:
    """Whichever was taken, the other one may have been the truth."""
    with pytest.raises(UnexpectedResponseError):
        SERVICES.parse(NodeResponse(URL, 200, {"content-type": "application/json"}, body))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"services": [], "services": []}', "the field services stands there twice"),
        (b'{"services": "\xff"}', "byte 14 is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"services": ' + b"9" * 5000 + b"}", "a number has 5000 digits"),
        (b'{"services": NaN}', "NaN is not of JSON"),
        (b'{"services": [-Infinity]}', "-Infinity is not of JSON"),
        (b'{"services": [}', "Expecting value: line 1 column 15 (char 14)"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(body: bytes, why: str) -> None:
    error = refusal(SERVICES, body, headers={"content-type": "application/json"})
    assert isinstance(error, UnexpectedResponseError)
    assert f", which is no JSON: {why} at {URL}" in str(error)


def test_of_what_does_not_look_like_json_the_reason_is_plain() -> None:
    assert "no JSON" not in str(refusal(SERVICES, b"<html>"))


def test_an_id_that_no_url_can_hold_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="a service id of 70000 characters is too long to be asked for"):
        service_health_operation("x" * 70_000)


@pytest.mark.parametrize(
    ("told", "status", "deviations"),
    [
        ({}, None, "a service has no status"),
        ({"status": "up"}, Status.UP, "a service has the status up, read as Up"),
        ({"status": "Degraded"}, None, "a service has a status that there is not, read as none: Degraded"),
        ({"status": None}, None, "a service has a status that there is not, read as none: null"),
        ({"status": ["Up"]}, None, 'a service has a status that there is not, read as none: ["Up"]'),
    ],
)
def test_a_status_is_never_made_up(told: dict[str, Any], status: Status | None, deviations: str) -> None:
    (service,), sentences = read(SERVICES, {"services": [{"id": "a", "name": "A", "description": "", **told}]})
    assert (service.status, sentences) == (status, [deviations])


@pytest.mark.parametrize(
    ("told", "ids", "deviations"),
    [
        ([DB], ["db"], "the list of services is a bare array"),
        ({"services": None}, [], "the list of services is null, read as empty"),
        ({"services": [], "total": 0}, [], "the list of services has a field that is not of the interface: total"),
        ({"services": [DB | {"id": 7}]}, ["7"], "the id of a service is not a string"),
        ({"services": [DB | {"port": 1}]}, ["db"], "a service has a field that is not of the interface: port"),
        ({"services": [DB, DB]}, ["db", "db"], "more than one service has the id db"),
        ({"services": [{"id": "a", "name": "A", "status": "Up"}]}, ["a"], "a service has no description"),
    ],
)
def test_a_list_that_is_not_quite_one_is_read(told: object, ids: list[str], deviations: str) -> None:
    services, sentences = read(SERVICES, told)
    assert ([service.id for service in services], sentences) == (ids, [deviations])


def test_what_many_services_have_is_told_once() -> None:
    many = [{"id": str(number), "name": "", "description": ""} for number in range(50)]
    assert read(SERVICES, {"services": many})[1] == ["a service has no status"]


@pytest.mark.parametrize("operation", [HEALTH, ONE_OF])
def test_a_health_with_a_body_is_its_code(operation: Operation[Health]) -> None:
    assert read(operation, {"status": "ok"}, 503) == (Health.UNHEALTHY, ["a health answer has a body"])


def test_what_was_tolerated_shows_no_secret_and_steers_no_terminal() -> None:
    register_secret("hunter2")
    (sentence,) = read(IDENTITY, WHO | {"hunter2\x1b[31m": 1})[1]
    assert sentence == r"the identity has a field that is not of the interface: ***\x1b[31m"


# ---- something else


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_version_that_the_node_does_not_have_is_told_as_that(operation: Operation[Any]) -> None:
    with pytest.raises(VersionNotFoundError, match=re.escape(f"{URL}?version=v9")):
        operation.parse(answer({"message": "API version not found"}, 404)._replace(url=f"{URL}?version=v9"))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_version_that_nobody_asked_for_is_no_other_version(operation: Operation[Any]) -> None:
    error = refusal(operation, {"message": "API version not found"}, 404)
    assert isinstance(error, UnexpectedResponseError)
    assert str(error) == f"got API version not found, though none was asked for, at {URL}"


def test_a_server_that_asks_for_https_is_told() -> None:
    body = b"<h1>400 The plain HTTP request was sent to HTTPS port</h1>"
    assert str(refusal(IDENTITY, body, 400)).endswith(f" at {URL}; is it https://?")


@pytest.mark.parametrize("body", [b"", {"message": "Service not found"}, {"message": "unknown service"}])
def test_a_404_about_a_service_says_that_there_is_none(body: object) -> None:
    assert isinstance(refusal(ONE_OF, body, 404), ServiceNotFoundError)


@pytest.mark.parametrize("body", [b"404 page not found\n", {"detail": "Not Found"}, {"message": "Not found"}])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_404_of_somebody_else_is_not_taken_for_an_answer(operation: Operation[Any], body: object) -> None:
    error = refusal(operation, body, 404)
    assert isinstance(error, UnexpectedResponseError)
    assert str(error).endswith(f"at {URL}; is the prefix right?")


@pytest.mark.parametrize("operation", [IDENTITY, HEALTH, SERVICES])
def test_a_404_without_a_body_is_about_a_service_only_where_one_was_asked_for(operation: Operation[Any]) -> None:
    assert "got 404 without a body" in str(refusal(operation, b"", 404))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failure_inside_the_node_is_told_in_its_words(operation: Operation[Any]) -> None:
    error = refusal(operation, {"message": "Internal server error"}, 500)
    assert isinstance(error, NodeFailedError)
    assert str(error) == f"the node says that it failed inside (500): Internal server error at {URL}"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("code", [201, 204, 400, 401, 403, 418, 502, 506])
def test_a_code_that_the_interface_does_not_have_is_something_else(operation: Operation[Any], code: int) -> None:
    error = refusal(operation, b"", code)
    assert isinstance(error, UnexpectedResponseError)
    assert f"got {code} without a body" in str(error)


def test_a_redirect_says_where_to() -> None:
    error = refusal(HEALTH, b"moved", 301, headers={"location": "https://elsewhere.example/"})
    assert "got 301, a redirect to https://elsewhere.example/ at" in str(error)


def test_a_login_that_is_wanted_is_hinted_at() -> None:
    assert str(refusal(HEALTH, b"", 401)).endswith("; a user name and a password may stand in the URL")


@pytest.mark.parametrize("operation", [IDENTITY, SERVICES])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>\n  Hello\x1b[2J</html>",
        b"{",
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b"9" * 5000,
        b'"text"',
        b"{}",
        b"true",
    ],
)
def test_what_is_no_answer_of_the_interface_is_refused_and_described(operation: Operation[Any], body: bytes) -> None:
    error = refusal(operation, body)
    assert isinstance(error, UnexpectedResponseError)
    assert len(str(error)) < 250
    assert str(error).isprintable()


def test_the_beginning_of_what_came_is_shown_in_one_line() -> None:
    error = refusal(IDENTITY, b"<html>\n  <p>Hello\x1b[2J", headers={"content-type": "text/html"})
    assert r"got 200 with text/html: <html> <p>Hello\x1b[2J at" in str(error)


def test_half_a_secret_is_not_shown_where_the_rest_of_it_is_cut_off() -> None:
    register_secret("hunter2-and-more")
    for spaces in (60, 630):
        assert "hunt" not in str(refusal(IDENTITY, b"x" * 10 + b" x" * (spaces // 2) + b" hunter2-and-more"))
        assert "hunt" not in str(refusal(IDENTITY, b"x" * 10 + b" " * spaces + b"hunter2-and-more"))


def test_a_redirect_is_told_without_what_may_be_a_secret_in_it() -> None:
    headers = {"location": "https://bob:hunter2@login.example/path?token=abcdef#top"}
    error = refusal(IDENTITY, b"", 302, headers)
    assert "got 302, a redirect to …@login.example/path?… at" in str(error)


@pytest.mark.parametrize("service", [{"name": "A"}, {"id": None}, {"id": ["a"]}, "db", None])
def test_a_service_without_an_id_makes_no_list(service: object) -> None:
    assert "expected a list of services, each with an id" in str(refusal(SERVICES, {"services": [service]}))
