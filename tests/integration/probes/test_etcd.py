"""etcd:// against real members of real clusters, and against what only stands at their port."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from svcnode.core.model import Outcome, Verdict
from tests.support.backends import Backend, ReceivedRequest, close, closed_port, http_response, reset, unresponsive
from tests.support.certificates import make_certificate
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import (
    REUSED,
    KeepAliveBackend,
    assert_all_failed,
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
from tests.support.servers.etcd import PASSWORD, USER, EtcdCluster, EtcdServer
from tests.support.verdicts import EXPIRES_SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
EXCHANGE = ("exchange", "", True)


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


def test_all_is_asked_on_one_connection(check: CheckRunner, server: EtcdServer, auth_server: EtcdServer) -> None:
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]
    assert check.steps(auth_server.url)[:3] == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_nothing_is_left_of_a_check(check: CheckRunner, server: EtcdServer) -> None:
    others = client_count(server.port)  # it is its own client, too
    assert assert_no_leaks(check, server.url, server.port) == READY
    assert becomes_true(lambda: client_count(server.port) <= others)


def test_a_member_whose_space_is_used_up_is_failed_until_there_is_room(check: CheckRunner, server: EtcdServer) -> None:
    def alarm(action: str) -> None:
        body = {"action": action, "memberID": "0", "alarm": "NOSPACE"}
        assert server.call("/v3/maintenance/alarm", body)[0] == 200

    alarm("ACTIVATE")
    try:
        verdict = check(server.url)
    finally:
        alarm("DEACTIVATE")
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("it says that it is not healthy, ")
    assert "NOSPACE" in verdict.reason
    assert check(server.url) == READY


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
    words = "/v3/auth/authenticate answered 400, etcdserver: authentication failed, invalid user ID or password"
    assert check(auth_server.bad_credentials_url) == Verdict.failed(
        f"{words}: etcd://{USER}:***@127.0.0.1:{auth_server.port}"
    )
    url = f"etcd://127.0.0.1:{auth_server.port}"
    assert check(url, username="nobody", password="not-the-password") == Verdict.failed(f"{words}: {url}")


def test_credentials_where_none_are_taken_are_failed(check: CheckRunner, server: EtcdServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict.outcome is Outcome.FAILED
    assert "authentication is not enabled" in verdict.reason


# ---- clusters


def test_every_member_of_a_cluster_is_ready_but_those_that_only_learn_and_those_without_a_leader(
    check: CheckRunner, tmp_path: Path
) -> None:
    with EtcdCluster(tmp_path / "cluster") as cluster:
        assert [check(member.url) for member in cluster.members] == [READY] * 3
        learner = cluster.add_learner()
        assert check(learner.url) == Verdict.not_ready(f"a learner, which has no vote yet: {learner.url}")
        leader = cluster.leader()
        for member in cluster.followers():
            member.kill()
        leader.wait_until_leaderless()
        assert check(leader.url) == Verdict.not_ready(f"it has no leader: {leader.url}")
        assert_still_reused(check, leader.url)


def assert_still_reused(check: CheckRunner, url: str) -> None:
    """A verdict says nothing against a connection."""

    async def story() -> None:
        with reusing(url) as probe:
            await check_with_steps(probe)
            assert (await check_with_steps(probe))[1][0] == REUSED

    check.run(story())


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
    words = "its certificate is not valid: self-signed certificate"
    assert check(encrypted.url, tls=True) == Verdict.failed(f"{words}: {encrypted.url}")
    other = make_certificate(tmp_path, "other")
    verdict = check(encrypted.url, tls=True, ca=str(other.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("its certificate is not valid: ")


def test_a_member_that_speaks_tls_is_failed_without_it(check: CheckRunner, encrypted: EtcdServer) -> None:
    assert check(encrypted.url).outcome is Outcome.FAILED


class MutualEtcd(EtcdServer):
    """Lets in whoever shows a certificate that it knows; it shows its own to itself."""

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


def test_a_member_that_wants_to_know_its_clients_is_shown_a_certificate(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    known, stranger = make_certificate(tmp_path, "known"), make_certificate(tmp_path, "stranger")
    server = MutualEtcd(tmp_path / "mutual", certificate=certificate)
    server.known, server.clients = known, tmp_path / "clients.pem"
    server.clients.write_bytes(known.certificate.read_bytes() + certificate.certificate.read_bytes())
    with server:

        def seen(**options: str) -> Verdict:
            return check(server.url, tls=True, ca=str(certificate.certificate), **options)

        assert seen(client_certificate=str(known.certificate), client_key=str(known.key)) == READY
        assert (
            seen(client_certificate=str(stranger.certificate), client_key=str(stranger.key)).outcome is Outcome.FAILED
        )
        assert seen().outcome is Outcome.FAILED


# ---- reuse


def test_a_connection_can_be_kept(check: CheckRunner, server: EtcdServer) -> None:
    assert_reused(check, server.url, server.port)


def test_a_connection_under_tls_can_be_kept(
    check: CheckRunner, encrypted: EtcdServer, certificate: Certificate
) -> None:
    assert_reused(check, encrypted.url, encrypted.port, tls=True, ca=str(certificate.certificate))


def test_a_reused_connection_outlives_restarts_of_the_member(check: CheckRunner, server: EtcdServer) -> None:
    assert_survives_restarts(check, server)


# ---- answers that are not as they should be


STATUS = {"leader": "123", "header": {"member_id": "123"}}


def member(status: Any = STATUS, health: Any = None, token: bytes = b"") -> Callable[[ReceivedRequest], bytes]:
    answers = {
        "/v3/maintenance/status": status,
        "/health": {"health": "true"} if health is None else health,
        "/v3/auth/authenticate": token or {"token": "abc"},
    }

    def answer(request: ReceivedRequest) -> bytes:
        found = answers[request.target]
        return found if isinstance(found, bytes) else http_response(200, json.dumps(found))

    return answer


def test_what_is_asked(check: CheckRunner) -> None:
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
    ("answers", "words"),
    [
        ({"status": http_response(404, "404 page not found")}, "/v3/maintenance/status answered 404"),
        (
            {"status": http_response(503, '{"error": "busy\\u001b[2J"}')},
            "/v3/maintenance/status answered 503, busy [2J",
        ),
        (
            {
                "status": http_response(
                    503, '{"error": {"grpc_code": 14, "message": "no leader", "http_status": "Bad"}}'
                )
            },
            "/v3/maintenance/status answered 503, no leader",
        ),
        (
            {"status": http_response(503, '{"code": 14, "message": "etcdserver: no leader", "details": []}')},
            "/v3/maintenance/status answered 503, etcdserver: no leader",
        ),
        ({"status": http_response(503, '{"error": {"code": 14}}')}, "/v3/maintenance/status answered 503"),
        ({"status": http_response(503, '{"error": [1], "message": {"a": 1}}')}, "/v3/maintenance/status answered 503"),
        ({"health": http_response(200, '{"health": "false"}')}, "it says that it is not healthy"),
        (
            {"health": {"health": "false", "reason": {"message": "ALARM NOSPACE", "code": 8}}},
            "it says that it is not healthy, ALARM NOSPACE",
        ),
        (
            {"status": {**STATUS, "errors": [{"message": "CORRUPT"}, 5, "NOSPACE"]}, "health": {"health": "false"}},
            "it says that it is not healthy, CORRUPT, NOSPACE",
        ),
        (
            {"health": http_response(503, '{"health": "false", "reason": "ALARM NOSPACE"}')},
            "it says that it is not healthy, ALARM NOSPACE",
        ),
        (
            {"status": {**STATUS, "errors": ["memberID:1 alarm:CORRUPT"]}, "health": {"health": "false"}},
            "it says that it is not healthy, memberID:1 alarm:CORRUPT",
        ),
        ({"status": {**STATUS, "errors": 5}, "health": {"health": "false"}}, "it says that it is not healthy"),
        ({"health": http_response(200, "true")}, "it says that it is not healthy"),
        ({"health": {"health": True}}, "it says that it is not healthy"),
        ({"health": http_response(200, '{"health": "false", "health": "true"}')}, "it says that it is not healthy"),
    ],
)
def test_an_answer_that_is_not_as_it_should_be_is_failed(
    check: CheckRunner, answers: dict[str, Any], words: str
) -> None:
    with KeepAliveBackend(member(**answers)) as backend:
        url = f"etcd://{backend.address}"
        assert check(url) == Verdict.failed(f"{words}: {url}")


@pytest.mark.parametrize("leader", [{}, {"leader": "0"}, {"leader": 0}])
def test_a_member_that_names_no_leader_is_not_ready(check: CheckRunner, leader: dict[str, Any]) -> None:
    with KeepAliveBackend(member({"header": {}, **leader})) as backend:
        url = f"etcd://{backend.address}"
        assert check(url) == Verdict.not_ready(f"it has no leader: {url}")


TWO_LEADERS = b'{"header": {}, "leader": "0", "leader": "1"}'


@pytest.mark.parametrize(
    "status", [b"{}", b"null", b"[1]", b'{"leader": "1"}', b"<html>", b"[" * 100_000, b"\xff", TWO_LEADERS]
)
def test_what_tells_no_status_is_failed(check: CheckRunner, status: bytes) -> None:
    with KeepAliveBackend(member(http_response(200, status))) as backend:
        url = f"etcd://{backend.address}"
        words = "/v3/maintenance/status answered 200 with what is no status of a member"
        assert check(url) == Verdict.failed(f"{words}: {url}")


def test_no_secret_is_shown(check: CheckRunner) -> None:
    refusal = http_response(400, json.dumps({"error": "no such password: swordfish"}))
    with KeepAliveBackend(member(token=refusal)) as backend:
        url = f"etcd://{backend.address}"
        words = "/v3/auth/authenticate answered 400, no such password: ***"
        assert check(url, username="me", password="swordfish") == Verdict.failed(f"{words}: {url}")


# ---- what is no member


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"etcd://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"etcd://{backend.address}", backend.port, "exchange")
        assert_times_out(check, f"etcd://{backend.address}", backend.port, "handshake", tls=True)


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    with Backend(close) as closing, Backend(reset) as resetting:
        url = f"etcd://{closing.address}"
        assert check(url) == Verdict.failed(f"it closed the connection before its answer was whole: {url}")
        url = f"etcd://{resetting.address}"
        assert check(url) == Verdict.failed(f"connection reset by peer: {url}")


LEADING = http_response(200, json.dumps(STATUS))


@few_examples
@given(answers=garbage(LEADING, LEADING + LEADING, b"HTTP/1.1 404 No\r\n\r\n", b"HTTP/1.1 "))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"etcd://{backend.address}", username="me", password="swordfish")
