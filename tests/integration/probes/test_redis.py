"""redis:// and rediss:// against a real Redis in many states and against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from tests.support.backends import Backend, Peer, close, closed_port, reset_on_data, sending, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import (
    assert_missing_ca_is_unknown,
    assert_no_leaks_when_cancelled,
    assert_reconnects_after_timeout,
)
from tests.support.servers.base import wait_until
from tests.support.servers.redis import RedisReplica, RedisServer
from tests.support.verdicts import (
    CONNECTION_CLOSED,
    CONNECTION_REFUSED,
    EXPIRES_SOON,
    NO_DESCRIPTORS,
    READY,
    TLS_UNTRUSTED,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner, FakeResolver

PASSWORD = "ledger-password"
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)
TIMEOUT = failed(ReasonCode.TIMEOUT)
TLS_TIMEOUT = failed(ReasonCode.TLS_TIMEOUT)
WRONG_ROLE = not_ready(ReasonCode.WRONG_ROLE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), password=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def replica(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisReplica]:
    with server.replica(tmp_path_factory.mktemp("redis-replica")) as replica:
        yield replica


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis-loading"), password=PASSWORD) as server:
        server.start_stalled_loading()
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis-tls"), password=PASSWORD, certificate=certificate) as server:
        yield server


def shown(server: RedisServer) -> str:
    return server.url.replace(PASSWORD, "***")


def clients(server: RedisServer) -> list[str]:
    """The ids of TCP connections, without those of replicas."""
    listed = server.cli("CLIENT", "LIST", "TYPE", "normal").splitlines()
    return [line.split()[0] for line in listed if " addr=127.0.0.1:" in line]


# ---- ready


def test_a_server_that_answers_is_ready(check: CheckRunner, server: RedisServer) -> None:
    assert check(server.url) == READY
    assert check(server.url.replace("redis:", "valkey:")) == READY
    assert check(f"redis://127.0.0.1:{server.port}", password=PASSWORD) == READY
    assert check(f"redis://127.0.0.1:{server.port}", username="default", password=PASSWORD, db=3) == READY


def test_a_check_has_its_steps(check: CheckRunner, server: RedisServer) -> None:
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]


@pytest.mark.parametrize("addresses", [["::1", "127.0.0.1"], ["127.0.0.1", "::1"]], ids=str)
def test_the_probe_resolves_the_name_and_one_address_is_enough(
    check: CheckRunner, server: RedisServer, resolver: FakeResolver, addresses: list[str]
) -> None:
    resolver.addresses["db.example"] = addresses
    assert check(server.url.replace("127.0.0.1", "db.example")) == READY
    assert resolver.queries == ["db.example"]


def test_nothing_remains_connected_after_a_check(check: CheckRunner, server: RedisServer) -> None:
    for url in (server.url, server.bad_credentials_url):
        check.leaks_nothing(url)
    assert becomes_true(lambda: not clients(server))


# ---- errors


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, server: RedisServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(shown(server))


def test_a_missing_password_is_failed(check: CheckRunner, server: RedisServer) -> None:
    assert check(f"redis://127.0.0.1:{server.port}") == failed(ReasonCode.AUTH_REQUIRED)


def test_an_unknown_user_is_failed(check: CheckRunner, server: RedisServer) -> None:
    assert check(f"redis://unknown:{PASSWORD}@127.0.0.1:{server.port}") == AUTH_FAILED


def test_an_unknown_database_is_failed(check: CheckRunner, server: RedisServer) -> None:
    assert check(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/99") == failed(ReasonCode.NOT_FOUND)


def test_a_user_needs_only_ping_and_info(check: CheckRunner, server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "monitor", "reset", "on", ">monitor-password", "+ping", "+info")
    assert check(f"redis://monitor:monitor-password@127.0.0.1:{server.port}") == READY


def test_a_user_without_info_is_failed_and_the_reason_names_the_permission(
    check: CheckRunner, server: RedisServer
) -> None:
    server.cli("ACL", "SETUSER", "poor", "reset", "on", ">poor-password", "+ping")
    verdict = check(f"redis://poor:poor-password@127.0.0.1:{server.port}")
    assert verdict == PERMISSION_DENIED
    assert "+info" in verdict.reason


def test_a_user_without_ping_is_failed(check: CheckRunner, server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "poorer", "reset", "on", ">poorer-password", "+info")
    assert check(f"redis://poorer:poorer-password@127.0.0.1:{server.port}") == PERMISSION_DENIED


def test_passwords_are_sent_as_utf_8(check: CheckRunner, server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "umlaut", "reset", "on", ">pä€ßword", "+ping", "+info")
    assert check(f"redis://umlaut@127.0.0.1:{server.port}", password="pä€ßword") == READY


def test_a_server_at_its_connection_limit_is_failed(check: CheckRunner, server: RedisServer) -> None:
    with server.exhaust():
        verdict = check(server.url)
    # Closed if the reset overtakes the message.
    assert verdict in (failed(ReasonCode.TOO_MANY_CONNECTIONS), CONNECTION_CLOSED)


def test_a_server_that_loads_its_data_is_not_ready(check: CheckRunner, loading: RedisServer) -> None:
    assert check(loading.url) == not_ready(ReasonCode.STARTING)


def test_a_closed_port_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        verdict = check(f"redis://:{PASSWORD}@127.0.0.1:{port}/0")
    assert verdict == CONNECTION_REFUSED
    assert verdict.reason.endswith(f"redis://:***@127.0.0.1:{port}/0")


def test_a_server_that_hangs_is_failed_at_the_deadline(check: CheckRunner, server: RedisServer) -> None:
    server.freeze()
    try:
        assert check.times_out(server.url, "log in") == TIMEOUT
        assert check.times_out(f"redis://127.0.0.1:{server.port}", "exchange") == TIMEOUT
    finally:
        server.thaw()
    assert becomes_true(lambda: not clients(server))


# ---- roles


def test_the_expected_role_is_ready(check: CheckRunner, server: RedisServer, replica: RedisReplica) -> None:
    assert check(server.url, role="primary") == READY
    assert check(replica.url, role="replica") == READY
    assert check(replica.url) == READY


def test_another_role_is_not_ready(check: CheckRunner, server: RedisServer, replica: RedisReplica) -> None:
    assert check(server.url, role="replica") == WRONG_ROLE
    assert check(replica.url, role="primary") == WRONG_ROLE


def test_a_replica_without_its_primary_is_not_ready(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "its link is down")
        stopped = not_ready(ReasonCode.REPLICATION_STOPPED)
        assert check(replica.url) == stopped
        assert check(replica.url, role="replica") == stopped
        replica.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
        assert check(replica.url) == stopped
    finally:
        replica.cli("CONFIG", "SET", "replica-serve-stale-data", "yes")
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")


# ---- TLS


def test_a_server_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    ca = str(certificate.certificate)
    assert check(encrypted.url, ca=ca) == READY
    assert check(encrypted.url.replace("rediss:", "valkeys:"), ca=ca, server_name="localhost") == READY
    assert check.steps(encrypted.url, ca=ca, server_name="localhost") == [
        ("connect", "127.0.0.1", True),
        ("handshake", "localhost", True),
        ("log in", "", True),
        ("exchange", "", True),
    ]


def test_a_server_is_found_by_its_name_and_its_certificate_is_for_that(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate, resolver: FakeResolver
) -> None:
    resolver.addresses["localhost"] = ["::1", "127.0.0.1"]
    assert check(encrypted.url.replace("127.0.0.1", "localhost"), ca=str(certificate.certificate)) == READY
    assert resolver.queries == ["localhost"]


def test_a_certificate_that_cannot_be_trusted_is_failed(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path, "other")
    assert check(encrypted.url) == TLS_UNTRUSTED
    assert check(encrypted.url, ca=str(other.certificate)) == TLS_UNTRUSTED
    verdict = check(encrypted.url, ca=str(certificate.certificate), server_name="other.example")
    assert verdict == failed(ReasonCode.TLS_NAME_MISMATCH)


def test_a_wrong_password_is_failed_under_tls_too(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    assert check(encrypted.bad_credentials_url, ca=str(certificate.certificate)) == AUTH_FAILED


def test_a_certificate_that_expires_soon_is_not_ready(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    assert check(encrypted.url, ca=str(certificate.certificate), min_cert_days=1) == EXPIRES_SOON


def test_a_server_without_tls_is_failed_if_tls_is_required(check: CheckRunner, server: RedisServer) -> None:
    """Redis waits for more of what it takes for a command."""
    assert check.times_out(server.url.replace("redis:", "rediss:"), "handshake") == TLS_TIMEOUT


def test_a_server_that_requires_tls_is_failed_without_it(check: CheckRunner, encrypted: RedisServer) -> None:
    verdict = check(encrypted.url.replace("rediss:", "redis:"))
    assert verdict.outcome is Outcome.FAILED
    assert PASSWORD not in verdict.reason


def test_a_server_that_hangs_under_tls_leaves_nothing(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    encrypted.freeze()
    try:
        assert check.times_out(encrypted.url, "handshake", ca=str(certificate.certificate)) == TLS_TIMEOUT
    finally:
        encrypted.thaw()


def test_a_server_that_hangs_after_the_handshake_leaves_nothing(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        url = f"rediss://:{PASSWORD}@{backend.address}"
        assert check.times_out(url, "log in", ca=str(certificate.certificate)) == TIMEOUT


# ---- reuse


def test_a_connection_that_is_reused_is_the_same_one_and_is_closed_at_the_end(
    check: CheckRunner, server: RedisServer
) -> None:
    assert becomes_true(lambda: not clients(server))
    seen: list[list[str]] = []
    results = check.sequence(server.url, *[lambda: seen.append(clients(server))] * 3, reuse=True)
    assert results == [(READY, ["connect", "log in", "exchange"]), *[(READY, ["reuse", "exchange"])] * 3]
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3
    assert becomes_true(lambda: not clients(server))


def test_a_restarted_server_gets_a_new_connection(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    results = check.sequence(encrypted.url, encrypted.restart, ca=str(certificate.certificate), reuse=True)
    opening = ["connect", "handshake", "log in", "exchange"]
    assert results == [(READY, opening), (READY, ["reuse", "exchange", *opening])]


def test_the_connection_of_a_check_that_times_out_is_not_reused(check: CheckRunner, server: RedisServer) -> None:
    assert_reconnects_after_timeout(check, server, ["connect", "log in", "exchange"])
    assert becomes_true(lambda: not clients(server))


def test_the_connection_of_a_check_that_is_not_ready_is_not_reused(check: CheckRunner, server: RedisServer) -> None:
    counts: list[bool] = []
    results = check.sequence(
        server.url, lambda: counts.append(becomes_true(lambda: not clients(server))), reuse=True, role="replica"
    )
    assert results == [(WRONG_ROLE, ["connect", "log in", "exchange"])] * 2
    assert counts == [True]


# ---- not a Redis


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (reset_on_data, ReasonCode.CONNECTION_CLOSED),
        (close, ReasonCode.CONNECTION_CLOSED),
        (sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ReasonCode.PROTOCOL_ERROR),
        (sending(b":1\r\n"), ReasonCode.PROTOCOL_ERROR),
        (sending(b"+HELLO\r\n"), ReasonCode.UNEXPECTED_RESPONSE),
        (sending(b"+PONG\r\n+PONG\r\n"), ReasonCode.UNEXPECTED_RESPONSE),
        (sending(b"-ERR \x1b[31mred\x1b[0m\r\n"), ReasonCode.SERVER_ERROR),
        (sending(b"-DENIED Redis is running in protected mode\r\n"), ReasonCode.CLIENT_NOT_ALLOWED),
        (sending(b"-MISCONF Redis is configured to save RDB snapshots\r\n"), ReasonCode.UNHEALTHY),
        (sending(b"-BUSY Redis is busy running a script\r\n"), ReasonCode.UNHEALTHY),
        (sending(b"-CLUSTERDOWN The cluster is down\r\n"), ReasonCode.UNHEALTHY),
        (sending(b"-ERR max number of clients reached\r\n"), ReasonCode.TOO_MANY_CONNECTIONS),
        (sending(b"-ERR unknown command 'PING'\r\n"), ReasonCode.NOT_SUPPORTED),
        (sending(b"-ERR invalid password\r\n"), ReasonCode.AUTH_FAILED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_or_another_protocol_is_failed(
    check: CheckRunner, script: Callable[[Peer], None], code: ReasonCode
) -> None:
    with Backend(script) as backend:
        verdict = check.leaks_nothing(f"redis://{backend.address}")
    assert verdict == failed(code)
    assert verdict.reason.isprintable()


def test_an_unresponsive_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.times_out(f"redis://:{PASSWORD}@{backend.address}", "log in") == TIMEOUT


LINES = st.sampled_from([b"+OK", b"+PONG", b":1", b"$-1", b"$3", b"*2", b"*-1", b"$99", b"-ERR no", b"*x", b"$x", b"-"])
NO_REDIS = st.one_of(
    st.binary(max_size=100),
    st.lists(LINES | st.binary(max_size=10)).map(lambda lines: b"\r\n".join([*lines, b""])),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(junk=b"+PONG\r\n+role\r\n")
@example(junk=b"*1\r\n" * 5_000)
@example(junk=b"x" * 200_000)
@given(junk=NO_REDIS)
def test_random_bytes_are_failed(check: CheckRunner, junk: bytes) -> None:
    with Backend(sending(junk)) as backend:
        assert check(f"redis://{backend.address}").outcome is Outcome.FAILED


# ---- around the deadline


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_check_that_is_cancelled_at_any_point_leaves_nothing(
    check: CheckRunner, server: RedisServer, encrypted: RedisServer, certificate: Certificate, is_encrypted: bool
) -> None:
    target = encrypted if is_encrypted else server
    options = {"ca": str(certificate.certificate)} if is_encrypted else {}
    assert_no_leaks_when_cancelled(check, target.url, **options)
    assert becomes_true(lambda: not clients(target))


# ---- faults of this machine


def test_running_out_of_file_descriptors_is_unknown(check: CheckRunner, server: RedisServer) -> None:
    assert check.without_descriptors(server.url) == (NO_DESCRIPTORS, READY)


def test_a_missing_authority_file_is_unknown(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate, tmp_path: Path
) -> None:
    assert_missing_ca_is_unknown(check, encrypted.url, tmp_path / "ca.pem", certificate)


# ---- rejected options


@pytest.mark.parametrize("url", ["redis://127.0.0.1/ledger", "redis://127.0.0.1/-1", "redis://127.0.0.1/0?db=1"])
def test_only_a_database_number_may_follow_the_host(url: str) -> None:
    with pytest.raises(ProbeError):
        make_probe(url)


@pytest.mark.parametrize(
    ("url", "option", "value"),
    [
        ("redis://127.0.0.1/1", "db", 1),
        ("redis://me@127.0.0.1", "username", "me"),
        ("redis://:swordfish@127.0.0.1", "password", "swordfish"),
    ],
)
def test_an_option_that_is_also_in_the_url_is_rejected(url: str, option: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": url, option: value})
    assert caught.value.option == option


def test_a_tls_option_without_tls_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "redis://127.0.0.1", "min_cert_days": 3})
    assert caught.value.option == "min_cert_days"
