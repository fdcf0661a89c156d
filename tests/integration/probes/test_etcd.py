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
from tests.support.backends import Backend, Received, close, mute, refusing, reply, reset
from tests.support.certificates import make_certificate
from tests.support.looks import (
    ENDS_SOON,
    REUSED,
    TalkingBackend,
    assert_all_failed,
    assert_cut_off,
    assert_leaves_nothing,
    assert_outlives_restarts,
    assert_reused,
    clients_of,
    garbage,
    generating,
    keeping,
    steps_of,
)
from tests.support.servers.etcd import PASSWORD, USER, EtcdCluster, EtcdServer
from tests.support.wire import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.integration.probes.conftest import Look
    from tests.support.certificates import Certificate

READY = Verdict.ready()
EXCHANGE = ("exchange", "", True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("guarded"), is_guarded=True) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("encrypted"), certificate=certificate) as server:
        yield server


# ---- a member


def test_a_member_with_a_leader_is_ready(look: Look, server: EtcdServer) -> None:
    assert look(server.url) == READY


def test_all_is_asked_on_one_connection(look: Look, server: EtcdServer, guarded: EtcdServer) -> None:
    assert look.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]
    assert look.steps(guarded.url)[:3] == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_nothing_is_left_of_a_look(look: Look, server: EtcdServer) -> None:
    others = clients_of(server.port)  # it is its own client, too
    assert assert_leaves_nothing(look, server.url, server.port) == READY
    assert until(lambda: clients_of(server.port) <= others)


def test_a_member_whose_space_is_used_up_is_failed_until_there_is_room(look: Look, server: EtcdServer) -> None:
    def alarm(action: str) -> None:
        body = {"action": action, "memberID": "0", "alarm": "NOSPACE"}
        assert server.call("/v3/maintenance/alarm", body)[0] == 200

    alarm("ACTIVATE")
    try:
        verdict = look(server.url)
    finally:
        alarm("DEACTIVATE")
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("it says that it is not healthy, ")
    assert "NOSPACE" in verdict.reason
    assert look(server.url) == READY


def test_a_frozen_member_is_failed_at_the_deadline(look: Look, server: EtcdServer) -> None:
    server.freeze()
    try:
        assert_cut_off(look, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- credentials


def test_the_right_credentials_are_ready(look: Look, guarded: EtcdServer) -> None:
    assert look(guarded.url) == READY
    assert look(f"etcd://127.0.0.1:{guarded.port}", username=USER, password=PASSWORD) == READY


def test_the_wrong_credentials_are_failed(look: Look, guarded: EtcdServer) -> None:
    words = "/v3/auth/authenticate answered 400, etcdserver: authentication failed, invalid user ID or password"
    assert look(guarded.wrong_url) == Verdict.failed(f"{words}: etcd://{USER}:***@127.0.0.1:{guarded.port}")
    url = f"etcd://127.0.0.1:{guarded.port}"
    assert look(url, username="nobody", password="not-the-password") == Verdict.failed(f"{words}: {url}")


def test_credentials_where_none_are_taken_are_failed(look: Look, server: EtcdServer) -> None:
    verdict = look(server.wrong_url)
    assert verdict.outcome is Outcome.FAILED
    assert "authentication is not enabled" in verdict.reason


# ---- clusters


def test_every_member_of_a_cluster_is_ready_but_those_that_only_learn_and_those_without_a_leader(
    look: Look, tmp_path: Path
) -> None:
    with EtcdCluster(tmp_path / "cluster") as cluster:
        assert [look(member.url) for member in cluster.members] == [READY] * 3
        learner = cluster.add_learner()
        assert look(learner.url) == Verdict.not_ready(f"a learner, which has no vote yet: {learner.url}")
        leader = cluster.leader()
        for member in cluster.followers():
            member.kill()
        leader.wait_until_leaderless()
        assert look(leader.url) == Verdict.not_ready(f"it has no leader: {leader.url}")
        assert_kept_all_the_same(look, leader.url)


def assert_kept_all_the_same(look: Look, url: str) -> None:
    """A verdict says nothing against a connection."""

    async def story() -> None:
        with keeping(url) as probe:
            await steps_of(probe)
            assert (await steps_of(probe))[1][0] == REUSED

    look.run(story())


# ---- TLS


def test_a_member_whose_certificate_is_trusted_is_ready(
    look: Look, encrypted: EtcdServer, certificate: Certificate
) -> None:
    tls = {"tls": True, "ca": str(certificate.certificate)}
    assert look(encrypted.url, **tls) == READY
    assert look(encrypted.url, min_cert_days=1, **tls) == ENDS_SOON
    assert look.steps(encrypted.url, **tls) == [
        ("connect", "127.0.0.1", True),
        ("handshake", "127.0.0.1", True),
        EXCHANGE,
        EXCHANGE,
    ]


def test_a_member_whose_certificate_is_not_trusted_is_failed(look: Look, encrypted: EtcdServer, tmp_path: Path) -> None:
    words = "its certificate is not valid: self-signed certificate"
    assert look(encrypted.url, tls=True) == Verdict.failed(f"{words}: {encrypted.url}")
    other = make_certificate(tmp_path, "other")
    verdict = look(encrypted.url, tls=True, ca=str(other.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("its certificate is not valid: ")


def test_a_member_that_speaks_tls_is_failed_without_it(look: Look, encrypted: EtcdServer) -> None:
    assert look(encrypted.url).outcome is Outcome.FAILED


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
    look: Look, certificate: Certificate, tmp_path: Path
) -> None:
    known, stranger = make_certificate(tmp_path, "known"), make_certificate(tmp_path, "stranger")
    server = MutualEtcd(tmp_path / "mutual", certificate=certificate)
    server.known, server.clients = known, tmp_path / "clients.pem"
    server.clients.write_bytes(known.certificate.read_bytes() + certificate.certificate.read_bytes())
    with server:

        def seen(**options: str) -> Verdict:
            return look(server.url, tls=True, ca=str(certificate.certificate), **options)

        assert seen(client_certificate=str(known.certificate), client_key=str(known.key)) == READY
        assert (
            seen(client_certificate=str(stranger.certificate), client_key=str(stranger.key)).outcome is Outcome.FAILED
        )
        assert seen().outcome is Outcome.FAILED


# ---- reuse


def test_a_connection_can_be_kept(look: Look, server: EtcdServer) -> None:
    assert_reused(look, server.url, server.port)


def test_a_connection_under_tls_can_be_kept(look: Look, encrypted: EtcdServer, certificate: Certificate) -> None:
    assert_reused(look, encrypted.url, encrypted.port, tls=True, ca=str(certificate.certificate))


def test_a_kept_connection_outlives_restarts_of_the_member(look: Look, server: EtcdServer) -> None:
    assert_outlives_restarts(look, server)


# ---- answers that are not as they should be


STATUS = {"leader": "123", "header": {"member_id": "123"}}


def member(status: Any = STATUS, health: Any = None, token: bytes = b"") -> Callable[[Received], bytes]:
    answers = {
        "/v3/maintenance/status": status,
        "/health": {"health": "true"} if health is None else health,
        "/v3/auth/authenticate": token or {"token": "abc"},
    }

    def answer(request: Received) -> bytes:
        found = answers[request.target]
        return found if isinstance(found, bytes) else reply(200, json.dumps(found))

    return answer


def test_what_is_asked(look: Look) -> None:
    with TalkingBackend(member()) as backend:
        assert look(f"etcd://me:swordfish@{backend.place}") == READY
        assert [(one.method, one.target) for one in backend.requests] == [
            ("POST", "/v3/maintenance/status"),
            ("GET", "/health"),
            ("POST", "/v3/auth/authenticate"),
        ]
        assert json.loads(backend.requests[2].body) == {"name": "me", "password": "swordfish"}
        assert not any("authorization" in one.headers for one in backend.requests)
    assert backend.by_connection == [3]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"status": reply(404, "404 page not found")}, "/v3/maintenance/status answered 404"),
        ({"status": reply(503, '{"error": "busy\\u001b[2J"}')}, "/v3/maintenance/status answered 503, busy [2J"),
        (
            {"status": reply(503, '{"error": {"grpc_code": 14, "message": "no leader", "http_status": "Bad"}}')},
            "/v3/maintenance/status answered 503, no leader",
        ),
        (
            {"status": reply(503, '{"code": 14, "message": "etcdserver: no leader", "details": []}')},
            "/v3/maintenance/status answered 503, etcdserver: no leader",
        ),
        ({"status": reply(503, '{"error": {"code": 14}}')}, "/v3/maintenance/status answered 503"),
        ({"status": reply(503, '{"error": [1], "message": {"a": 1}}')}, "/v3/maintenance/status answered 503"),
        ({"health": reply(200, '{"health": "false"}')}, "it says that it is not healthy"),
        (
            {"health": {"health": "false", "reason": {"message": "ALARM NOSPACE", "code": 8}}},
            "it says that it is not healthy, ALARM NOSPACE",
        ),
        (
            {"status": {**STATUS, "errors": [{"message": "CORRUPT"}, 5, "NOSPACE"]}, "health": {"health": "false"}},
            "it says that it is not healthy, CORRUPT, NOSPACE",
        ),
        (
            {"health": reply(503, '{"health": "false", "reason": "ALARM NOSPACE"}')},
            "it says that it is not healthy, ALARM NOSPACE",
        ),
        (
            {"status": {**STATUS, "errors": ["memberID:1 alarm:CORRUPT"]}, "health": {"health": "false"}},
            "it says that it is not healthy, memberID:1 alarm:CORRUPT",
        ),
        ({"status": {**STATUS, "errors": 5}, "health": {"health": "false"}}, "it says that it is not healthy"),
        ({"health": reply(200, "true")}, "it says that it is not healthy"),
        ({"health": {"health": True}}, "it says that it is not healthy"),
        ({"health": reply(200, '{"health": "false", "health": "true"}')}, "it says that it is not healthy"),
    ],
)
def test_an_answer_that_is_not_as_it_should_be_is_failed(look: Look, answers: dict[str, Any], words: str) -> None:
    with TalkingBackend(member(**answers)) as backend:
        url = f"etcd://{backend.place}"
        assert look(url) == Verdict.failed(f"{words}: {url}")


@pytest.mark.parametrize("leader", [{}, {"leader": "0"}, {"leader": 0}])
def test_a_member_that_names_no_leader_is_not_ready(look: Look, leader: dict[str, Any]) -> None:
    with TalkingBackend(member({"header": {}, **leader})) as backend:
        url = f"etcd://{backend.place}"
        assert look(url) == Verdict.not_ready(f"it has no leader: {url}")


TWO_LEADERS = b'{"header": {}, "leader": "0", "leader": "1"}'


@pytest.mark.parametrize(
    "status", [b"{}", b"null", b"[1]", b'{"leader": "1"}', b"<html>", b"[" * 100_000, b"\xff", TWO_LEADERS]
)
def test_what_tells_no_status_is_failed(look: Look, status: bytes) -> None:
    with TalkingBackend(member(reply(200, status))) as backend:
        url = f"etcd://{backend.place}"
        words = "/v3/maintenance/status answered 200 with what is no status of a member"
        assert look(url) == Verdict.failed(f"{words}: {url}")


def test_no_secret_is_shown(look: Look) -> None:
    refusal = reply(400, json.dumps({"error": "no such password: swordfish"}))
    with TalkingBackend(member(token=refusal)) as backend:
        url = f"etcd://{backend.place}"
        words = "/v3/auth/authenticate answered 400, no such password: ***"
        assert look(url, username="me", password="swordfish") == Verdict.failed(f"{words}: {url}")


# ---- what is no member


def test_a_port_that_refuses_is_failed(look: Look) -> None:
    with refusing() as port:
        url = f"etcd://127.0.0.1:{port}"
        assert look(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(mute) as backend:
        assert_cut_off(look, f"etcd://{backend.place}", backend.port, "exchange")
        assert_cut_off(look, f"etcd://{backend.place}", backend.port, "handshake", tls=True)


def test_a_connection_that_is_closed_or_reset_is_failed(look: Look) -> None:
    with Backend(close) as closing, Backend(reset) as resetting:
        url = f"etcd://{closing.place}"
        assert look(url) == Verdict.failed(f"it closed the connection before its answer was whole: {url}")
        url = f"etcd://{resetting.place}"
        assert look(url) == Verdict.failed(f"connection reset by peer: {url}")


LEADING = reply(200, json.dumps(STATUS))


@generating
@given(answers=garbage(LEADING, LEADING + LEADING, b"HTTP/1.1 404 No\r\n\r\n", b"HTTP/1.1 "))
def test_no_bytes_make_more_than_a_failure(look: Look, answers: list[bytes]) -> None:
    assert_all_failed(look, answers, lambda backend: f"etcd://{backend.place}", username="me", password="swordfish")
