"""etcd:// against real members of real clusters and against scripted servers."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from tests.support.backends import Backend, Peer, ReceivedRequest, closed_port, http_response, unresponsive
from tests.support.certificates import make_certificate
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import (
    REUSED,
    KeepAliveBackend,
    assert_all_failed,
    assert_disconnect_is_failed,
    assert_no_leaks,
    assert_reused,
    assert_survives_restarts,
    assert_times_out,
    check_with_steps,
    client_count,
    few_examples,
    garbage,
    reusing,
)
from tests.support.servers.etcd import PASSWORD, ROOT_PASSWORD, USER, EtcdCluster, EtcdServer
from tests.support.verdicts import (
    CONNECTION_CLOSED,
    CONNECTION_REFUSED,
    EXPIRES_SOON,
    READY,
    TLS_UNTRUSTED,
    UNEXPECTED_RESPONSE,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def auth_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("auth_server"), requires_auth=True) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("encrypted"), certificate=certificate) as server:
        yield server


# ---- a member


def test_a_member_with_a_leader_is_ready(check: CheckRunner, server: EtcdServer) -> None:
    assert check(server.url) == READY


def test_all_requests_use_one_connection(check: CheckRunner, server: EtcdServer, auth_server: EtcdServer) -> None:
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]
    assert check.steps(auth_server.url)[:3] == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_a_check_leaves_nothing_open(check: CheckRunner, server: EtcdServer) -> None:
    others = client_count(server.port)  # etcd is its own client
    assert assert_no_leaks(check, server.url, server.port) == READY
    assert becomes_true(lambda: client_count(server.port) <= others)


def test_a_member_whose_space_is_used_up_is_not_ready_until_the_alarm_ends(
    check: CheckRunner, server: EtcdServer
) -> None:
    with server.storage_full():
        verdict = check(server.url)
        assert verdict == STORAGE_FULL
        assert "NOSPACE" in verdict.reason
        assert check(server.url, write=True) == STORAGE_FULL
    assert check(server.url, write=True) == READY


def test_a_member_whose_data_is_corrupt_is_failed_until_the_alarm_ends(check: CheckRunner, server: EtcdServer) -> None:
    def alarm(action: str) -> None:
        body = {"action": action, "memberID": "0", "alarm": "CORRUPT"}
        assert server.call("/v3/maintenance/alarm", body)[0] == 200

    alarm("ACTIVATE")
    try:
        assert check(server.url) == CORRUPT
    finally:
        alarm("DEACTIVATE")
    assert check(server.url) == READY


# ---- writes


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


def test_a_write_that_hangs_is_failed_at_the_deadline(check: CheckRunner) -> None:
    def respond_until_the_write(peer: Peer) -> None:
        for _ in range(2):
            peer.send(member()(ReceivedRequest.read(peer)))
        unresponsive(peer)

    with Backend(respond_until_the_write) as backend:
        verdict = check.times_out(f"etcd://{backend.address}", "write", write=True)
    assert verdict == failed(ReasonCode.WRITE_TIMEOUT)


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (http_response(429, '{"code": 8, "message": "etcdserver: mvcc: database space exceeded"}'), STORAGE_FULL),
        (http_response(429, '{"code": 8, "message": "etcdserver: too many requests"}'), WRITE_FAILED),
        (http_response(500, '{"code": 15, "message": "etcdserver: corrupt cluster"}'), CORRUPT),
        (http_response(503, '{"code": 14, "message": "etcdserver: request timed out"}'), WRITE_FAILED),
        (http_response(404, "404 page not found"), WRITE_FAILED),
        (http_response(200, "{}"), UNEXPECTED_RESPONSE),
        (http_response(200, "<html>"), UNEXPECTED_RESPONSE),
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


def test_a_frozen_member_is_failed_at_the_deadline(check: CheckRunner, server: EtcdServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- credentials


def test_the_right_credentials_are_ready(check: CheckRunner, auth_server: EtcdServer) -> None:
    assert check(auth_server.url) == READY
    assert check(f"etcd://127.0.0.1:{auth_server.port}", username=USER, password=PASSWORD) == READY


def test_the_wrong_credentials_are_failed(check: CheckRunner, auth_server: EtcdServer) -> None:
    verdict = check(auth_server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(f"etcd://{USER}:***@127.0.0.1:{auth_server.port}")
    url = f"etcd://127.0.0.1:{auth_server.port}"
    assert check(url, username="someone-else", password="not-the-password") == AUTH_FAILED


def test_credentials_for_a_server_without_authentication_are_failed(check: CheckRunner, server: EtcdServer) -> None:
    assert check(server.bad_credentials_url) == AUTH_FAILED


# ---- clusters


def test_every_member_of_a_cluster_is_ready_except_learners_and_members_without_a_leader(
    check: CheckRunner, tmp_path: Path
) -> None:
    with EtcdCluster(tmp_path / "cluster") as cluster:
        assert [check(member.url) for member in cluster.members] == [READY] * 3
        learner = cluster.add_learner()
        assert check(learner.url) == not_ready(ReasonCode.SYNCING)
        leader = cluster.leader()
        for member in cluster.followers():
            member.kill()
        leader.wait_until_leaderless()
        assert check(leader.url) == NO_LEADER
        assert_still_reused(check, leader.url)


def assert_still_reused(check: CheckRunner, url: str) -> None:
    async def main() -> None:
        with reusing(url) as probe:
            await check_with_steps(probe)
            assert (await check_with_steps(probe))[1][0] == REUSED

    check.run(main())


# ---- TLS


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


def test_a_member_whose_certificate_is_not_trusted_is_failed(
    check: CheckRunner, encrypted: EtcdServer, tmp_path: Path
) -> None:
    assert check(encrypted.url, tls=True) == TLS_UNTRUSTED
    other = make_certificate(tmp_path, "other")
    assert check(encrypted.url, tls=True, ca=str(other.certificate)) == TLS_UNTRUSTED


def test_a_member_with_tls_is_failed_without_it(check: CheckRunner, encrypted: EtcdServer) -> None:
    assert check(encrypted.url) == CONNECTION_CLOSED


class MutualEtcd(EtcdServer):
    """Requires a client certificate that it trusts; it uses its own for its connections to itself."""

    known: Certificate
    clients: Path

    def command(self) -> Sequence[str]:
        return [*super().command(), "--client-cert-auth", f"--trusted-ca-file={self.clients}"]

    def has_leader(self) -> bool:
        assert self.certificate is not None
        context = ssl.create_default_context(cafile=self.certificate.certificate)
        context.load_cert_chain(self.known.certificate, self.known.key)
        with closing(http.client.HTTPSConnection(self.host, self.port, timeout=1, context=context)) as connection:
            connection.request("POST", "/v3/maintenance/status", "{}")
            return bool(int(json.loads(connection.getresponse().read()).get("leader", 0)))


def test_a_member_may_require_a_client_certificate(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    known, other = make_certificate(tmp_path, "known"), make_certificate(tmp_path, "other")
    server = MutualEtcd(tmp_path / "mutual", certificate=certificate)
    server.known, server.clients = known, tmp_path / "clients.pem"
    server.clients.write_bytes(known.certificate.read_bytes() + certificate.certificate.read_bytes())
    with server:

        def verdict(client: Certificate | None) -> Verdict:
            files = {"client_certificate": str(client.certificate), "client_key": str(client.key)} if client else {}
            return check(server.url, tls=True, ca=str(certificate.certificate), **files)

        assert verdict(known) == READY
        assert verdict(other).outcome is Outcome.FAILED
        assert verdict(None).outcome is Outcome.FAILED


# ---- reuse


def test_a_connection_can_be_reused(check: CheckRunner, server: EtcdServer) -> None:
    assert_reused(check, server.url, server.port)


def test_a_tls_connection_can_be_reused(check: CheckRunner, encrypted: EtcdServer, certificate: Certificate) -> None:
    assert_reused(check, encrypted.url, encrypted.port, tls=True, ca=str(certificate.certificate))


def test_a_reused_connection_outlives_restarts_of_the_member(check: CheckRunner, server: EtcdServer) -> None:
    assert_survives_restarts(check, server)


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


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (http_response(404, "404 page not found"), ReasonCode.NOT_FOUND),
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
        ({"health": "false", "reason": {"message": "ALARM NOSPACE", "code": 8}}, [], "ALARM NOSPACE", STORAGE_FULL),
        ({"health": "false"}, [{"message": "CORRUPT"}, 5, "NOSPACE"], "CORRUPT, NOSPACE", CORRUPT),
        (http_response(503, '{"health": "false", "reason": "ALARM NOSPACE"}'), [], "ALARM NOSPACE", STORAGE_FULL),
        ({"health": "false"}, ["memberID:1 alarm:CORRUPT"], "memberID:1 alarm:CORRUPT", CORRUPT),
        ({"health": "false", "reason": "RAFT NO LEADER"}, [], "RAFT NO LEADER", UNHEALTHY),
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


@pytest.mark.parametrize("leader", [{}, {"leader": "0"}, {"leader": 0}])
def test_a_member_that_names_no_leader_is_not_ready(check: CheckRunner, leader: dict[str, Any]) -> None:
    with KeepAliveBackend(member({"header": {}, **leader})) as backend:
        assert check(f"etcd://{backend.address}") == NO_LEADER


TWO_LEADERS = b'{"header": {}, "leader": "0", "leader": "1"}'


@pytest.mark.parametrize(
    "status", [b"{}", b"null", b"[1]", b'{"leader": "1"}', b"<html>", b"[" * 100_000, b"\xff", TWO_LEADERS]
)
def test_a_response_that_is_not_the_status_of_a_member_is_failed(check: CheckRunner, status: bytes) -> None:
    with KeepAliveBackend(member(http_response(200, status))) as backend:
        assert check(f"etcd://{backend.address}") == UNEXPECTED_RESPONSE


def test_no_secret_is_shown(check: CheckRunner) -> None:
    refusal = http_response(400, json.dumps({"error": "no such password: swordfish"}))
    with KeepAliveBackend(member(token=refusal)) as backend:
        verdict = check(f"etcd://{backend.address}", username="me", password="swordfish")
    assert verdict == failed(ReasonCode.BAD_REQUEST)
    assert "swordfish" not in verdict.reason


# ---- not a member


def test_a_closed_port_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"etcd://127.0.0.1:{port}") == CONNECTION_REFUSED


def test_an_unresponsive_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"etcd://{backend.address}", backend.port, "exchange")
        assert_times_out(check, f"etcd://{backend.address}", backend.port, "handshake", tls=True)


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "etcd")


LEADING = http_response(200, json.dumps(STATUS))


@few_examples
@given(answers=garbage(LEADING, LEADING + LEADING, b"HTTP/1.1 404 No\r\n\r\n", b"HTTP/1.1 "))
def test_random_bytes_are_failed(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"etcd://{backend.address}", username="me", password="swordfish")
