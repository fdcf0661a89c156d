"""etcd:// against real members of real clusters and against scripted servers."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import ReceivedRequest, http_response
from tests.support.probe_assertions import KeepAliveBackend, assert_reused
from tests.support.servers.base import module_server
from tests.support.servers.etcd import ROOT_PASSWORD, USER, EtcdServer
from tests.support.verdicts import EXPIRES_SOON, READY, UNEXPECTED_RESPONSE, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

EXCHANGE = ("exchange", "", True)
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)
WRITE_FAILED = failed(ReasonCode.WRITE_FAILED)
NO_LEADER = not_ready(ReasonCode.NO_LEADER)
STORAGE_FULL = not_ready(ReasonCode.STORAGE_FULL)
CORRUPT = failed(ReasonCode.CORRUPT)
UNHEALTHY = failed(ReasonCode.UNHEALTHY)


# ---- writes


server = module_server(EtcdServer)
auth_server = module_server(EtcdServer, requires_auth=True)
encrypted = module_server(EtcdServer, tls=True)


def test_a_member_with_a_leader_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, server: EtcdServer
) -> None:
    assert check(server.url) == READY
    assert_reused(check, server.url, server.port)


def revision(server: EtcdServer) -> int:
    return int(server.call("/v3/maintenance/status")[1]["header"]["revision"])


def test_only_the_first_write_adds_a_revision(check: CheckRunner, server: EtcdServer) -> None:
    for write in (True, "a key"):
        assert check(server.url, write=write) == READY
    before = revision(server)
    for write in (True, "a key", False):
        assert check(server.url, write=write) == READY
    assert revision(server) == before
    key = base64.b64encode(b"svcnode_write").decode()
    assert server.call("/v3/kv/range", {"key": key})[1]["count"] == "1"
    assert check.steps(server.url, write=True)[-1] == ("write", "", True)


def test_a_user_needs_the_permission_to_read_and_write_the_key(check: CheckRunner, auth_server: EtcdServer) -> None:
    denied = check(auth_server.url, write="ledger/check")  # it may only read
    assert denied == PERMISSION_DENIED
    assert "readwrite ledger/check" in denied.reason
    assert check(f"etcd://127.0.0.1:{auth_server.port}", write=True) == failed(ReasonCode.AUTH_REQUIRED)
    login = {"username": "root", "password": ROOT_PASSWORD}
    assert check(f"etcd://127.0.0.1:{auth_server.port}", write=True, **login) == READY


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (http_response(429, '{"code": 8, "message": "etcdserver: too many requests"}'), WRITE_FAILED),
        (http_response(500, '{"code": 15, "message": "etcdserver: corrupt cluster"}'), CORRUPT),
        (http_response(503, '{"code": 14, "message": "etcdserver: request timed out"}'), WRITE_FAILED),
        (http_response(404, "404 page not found"), WRITE_FAILED),
        (http_response(200, "{}"), UNEXPECTED_RESPONSE),
    ],
)
def test_a_refused_write_has_the_code_of_its_reason(check: CheckRunner, response: bytes, verdict: object) -> None:
    with KeepAliveBackend(member(txn=response)) as backend:
        assert check(f"etcd://{backend.address}", write=True) == verdict


def test_a_write_has_the_token_of_the_login(check: CheckRunner) -> None:
    with KeepAliveBackend(member()) as backend:
        assert check(f"etcd://me:swordfish@{backend.address}", write=True) == READY
        assert backend.requests[-1].target == "/v3/kv/txn"
        assert backend.requests[-1].headers["authorization"] == "abc"
    assert backend.requests_per_connection == [4]


@pytest.mark.parametrize("token", [b'{"token": "a\\nb"}', b'{"token": 5}', b"{}"])
def test_an_invalid_token_is_failed(check: CheckRunner, token: bytes) -> None:
    with KeepAliveBackend(member(token=http_response(200, token))) as backend:
        assert check(f"etcd://me:swordfish@{backend.address}", write=True) == UNEXPECTED_RESPONSE


def test_the_wrong_credentials_are_failed(check: CheckRunner, auth_server: EtcdServer) -> None:
    verdict = check(auth_server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(f"etcd://{USER}:***@127.0.0.1:{auth_server.port}")
    url = f"etcd://127.0.0.1:{auth_server.port}"
    assert check(url, username="someone-else", password="not-the-password") == AUTH_FAILED


def test_a_member_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: EtcdServer, certificate: Certificate
) -> None:
    tls = {"tls": True, "ca": str(certificate.certificate)}
    assert check(encrypted.url, **tls) == READY
    assert check(encrypted.url, min_cert_days=1, **tls) == EXPIRES_SOON
    assert check.steps(encrypted.url, **tls) == [
        ("connect", "127.0.0.1", True),
        ("handshake", "127.0.0.1", True),
        EXCHANGE,
        EXCHANGE,
    ]


# ---- invalid responses


STATUS = {"leader": "123", "header": {"member_id": "123"}}


def member(
    status: Any = STATUS, health: Any = None, token: bytes = b"", txn: bytes = b""
) -> Callable[[ReceivedRequest], bytes]:
    responses = {
        "/v3/maintenance/status": status,
        "/health": {"health": "true"} if health is None else health,
        "/v3/auth/authenticate": token or {"token": "abc"},
        "/v3/kv/txn": txn or {"header": {}},
    }

    def respond(request: ReceivedRequest) -> bytes:
        response = responses[request.target]
        return response if isinstance(response, bytes) else http_response(200, json.dumps(response))

    return respond


def test_the_credentials_are_sent_in_the_body_of_one_request_only(check: CheckRunner) -> None:
    with KeepAliveBackend(member()) as backend:
        assert check(f"etcd://me:swordfish@{backend.address}") == READY
        assert [(one.method, one.target) for one in backend.requests] == [
            ("POST", "/v3/maintenance/status"),
            ("GET", "/health"),
            ("POST", "/v3/auth/authenticate"),
        ]
        assert json.loads(backend.requests[2].body) == {"name": "me", "password": "swordfish"}
        assert not any("authorization" in one.headers for one in backend.requests)
    assert backend.requests_per_connection == [3]


def test_a_member_that_tells_its_status_only_after_a_login_is_ready(check: CheckRunner) -> None:
    """As etcd does since 3.6.9, if authentication is on."""
    of_anyone = member(status=http_response(400, '{"code": 3, "message": "etcdserver: user name is empty"}'))

    def respond(request: ReceivedRequest) -> bytes:
        return (member() if request.headers.get("authorization") == "abc" else of_anyone)(request)

    with KeepAliveBackend(respond) as backend:
        assert check(f"etcd://{backend.address}") == failed(ReasonCode.AUTH_REQUIRED)
        assert check(f"etcd://me:swordfish@{backend.address}", write=True) == READY
        assert [one.target for one in backend.requests].count("/v3/auth/authenticate") == 1


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (http_response(503, '{"error": "busy\\u001b[2J"}'), ReasonCode.SERVER_ERROR),
        (http_response(503, '{"error": {"grpc_code": 14, "message": "no leader"}}'), ReasonCode.UNHEALTHY),
        (http_response(503, '{"code": 14, "message": "etcdserver: no leader"}'), ReasonCode.UNHEALTHY),
        (http_response(401, '{"code": 16, "message": "invalid auth token"}'), ReasonCode.AUTH_REQUIRED),
        (http_response(403, '{"code": 7, "message": "permission denied"}'), ReasonCode.PERMISSION_DENIED),
        (http_response(503, '{"error": {"code": 14}}'), ReasonCode.UNHEALTHY),
        (http_response(503, '{"error": [1], "message": {"a": 1}}'), ReasonCode.SERVER_ERROR),
    ],
)
def test_an_error_has_the_code_of_its_grpc_or_http_status(
    check: CheckRunner, response: bytes, code: ReasonCode
) -> None:
    with KeepAliveBackend(member(status=response)) as backend:
        verdict = check(f"etcd://{backend.address}")
    assert verdict == failed(code)
    assert verdict.reason.isprintable()


@pytest.mark.parametrize(
    ("health", "errors", "detail", "expected"),
    [
        (http_response(200, '{"health": "false"}'), [], "", UNHEALTHY),
        ({"health": "false"}, [{"message": "CORRUPT"}, 5, "NOSPACE"], "CORRUPT, NOSPACE", CORRUPT),
        (http_response(503, '{"health": "false", "reason": "ALARM NOSPACE"}'), [], "ALARM NOSPACE", STORAGE_FULL),
        ({"health": "false"}, ["memberID:1 alarm:CORRUPT"], "memberID:1 alarm:CORRUPT", CORRUPT),
        ({"health": "false"}, 5, "", UNHEALTHY),
        (http_response(200, "true"), [], "", UNHEALTHY),
        ({"health": True}, [], "", UNHEALTHY),
        (http_response(200, '{"health": "false", "health": "true"}'), [], "", UNHEALTHY),
    ],
)
def test_a_member_that_is_not_healthy_has_the_code_of_its_alarm(
    check: CheckRunner, health: Any, errors: object, detail: str, expected: object
) -> None:
    with KeepAliveBackend(member({**STATUS, "errors": errors}, health)) as backend:
        verdict = check(f"etcd://{backend.address}")
    assert verdict == expected
    assert detail in verdict.reason


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (http_response(200, '{"header": {}}'), NO_LEADER),
        (http_response(200, '{"header": {}, "leader": "0"}'), NO_LEADER),
        (http_response(200, '{"header": {}, "leader": 0}'), NO_LEADER),
        ({**STATUS, "isLearner": True}, not_ready(ReasonCode.SYNCING)),
        (http_response(200, "{}"), UNEXPECTED_RESPONSE),
        (http_response(200, '{"leader": "1"}'), UNEXPECTED_RESPONSE),
        (http_response(200, "[1]"), UNEXPECTED_RESPONSE),
        (http_response(200, "<html>"), UNEXPECTED_RESPONSE),
        (http_response(200, '{"header": {}, "leader": "0", "leader": "1"}'), UNEXPECTED_RESPONSE),
    ],
)
def test_the_status_of_a_member_that_follows_no_leader_is_not_ready(
    check: CheckRunner, status: Any, expected: object
) -> None:
    with KeepAliveBackend(member(status)) as backend:
        assert check(f"etcd://{backend.address}") == expected
