"""redis:// and rediss:// against a real Redis: as it should be, hurt in every way it can be, and what only pretends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
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
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner, FakeResolver

READY = Verdict.ready()
PASSWORD = "ledger-password"


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
    """The numbers of the connections over TCP that lead to no other server."""
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
def test_a_name_is_resolved_by_us_and_one_of_its_addresses_is_enough(
    check: CheckRunner, server: RedisServer, resolver: FakeResolver, addresses: list[str]
) -> None:
    resolver.addresses["db.example"] = addresses
    assert check(server.url.replace("127.0.0.1", "db.example")) == READY
    assert resolver.queries == ["db.example"]


def test_nothing_remains_connected_after_a_check(check: CheckRunner, server: RedisServer) -> None:
    for url in (server.url, server.bad_credentials_url):
        check.leaks_nothing(url)
    assert becomes_true(lambda: not clients(server))


# ---- refusals


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, server: RedisServer) -> None:
    assert check(server.bad_credentials_url) == Verdict.failed(
        f"invalid username-password pair or user is disabled: {shown(server)}"
    )


def test_no_password_is_failed_where_one_is_needed(check: CheckRunner, server: RedisServer) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    assert check(url) == Verdict.failed(f"Authentication required: {url}")


def test_an_unknown_user_is_failed(check: CheckRunner, server: RedisServer) -> None:
    assert check(f"redis://nobody:{PASSWORD}@127.0.0.1:{server.port}") == Verdict.failed(
        f"invalid username-password pair or user is disabled: redis://nobody:***@127.0.0.1:{server.port}"
    )


def test_a_database_that_is_not_there_is_failed(check: CheckRunner, server: RedisServer) -> None:
    assert check(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/99") == Verdict.failed(
        f"DB index is out of range: redis://:***@127.0.0.1:{server.port}/99"
    )


def test_a_user_needs_no_more_than_ping_and_info(check: CheckRunner, server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "monitor", "reset", "on", ">monitor-password", "+ping", "+info")
    assert check(f"redis://monitor:monitor-password@127.0.0.1:{server.port}") == READY


def test_a_user_without_info_is_failed_and_the_fix_is_told(check: CheckRunner, server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "poor", "reset", "on", ">poor-password", "+ping")
    assert check(f"redis://poor:poor-password@127.0.0.1:{server.port}") == Verdict.failed(
        f"may not see whether it is in step with its primary; grant it +info: redis://poor:***@127.0.0.1:{server.port}"
    )


def test_a_user_without_ping_is_failed(check: CheckRunner, server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "poorer", "reset", "on", ">poorer-password", "+info")
    assert check(f"redis://poorer:poorer-password@127.0.0.1:{server.port}") == Verdict.failed(
        f"this user has no permissions to run the 'ping' command: redis://poorer:***@127.0.0.1:{server.port}"
    )


def test_passwords_are_sent_as_utf_8(check: CheckRunner, server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "umlaut", "reset", "on", ">pä€ßword", "+ping", "+info")
    assert check(f"redis://umlaut@127.0.0.1:{server.port}", password="pä€ßword") == READY


def test_a_server_without_connections_left_is_failed(check: CheckRunner, server: RedisServer) -> None:
    with server.exhaust():
        verdict = check(server.url)
    # The refusal may be overtaken by the reset that follows it.
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.removesuffix(f": {shown(server)}") in {
        "max number of clients reached",
        "connection reset by peer",
        "broken pipe",
        "Connection lost",
    }


def test_a_server_that_loads_its_data_is_not_ready(check: CheckRunner, loading: RedisServer) -> None:
    assert check(loading.url) == Verdict.not_ready(f"Redis is loading the dataset in memory: {shown(loading)}")


def test_a_server_that_does_not_run_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"redis://:{PASSWORD}@127.0.0.1:{port}/0") == Verdict.failed(
            f"connection refused: redis://:***@127.0.0.1:{port}/0"
        )


def test_a_server_that_hangs_is_failed_at_the_deadline_and_nothing_is_left(
    check: CheckRunner, server: RedisServer
) -> None:
    server.freeze()
    try:
        assert check.times_out(server.url) == Verdict.failed("no answer within 0.2 s, in its step log in")
        without_login = check.times_out(f"redis://127.0.0.1:{server.port}")
        assert without_login == Verdict.failed("no answer within 0.2 s, in its step exchange")
    finally:
        server.thaw()
    assert becomes_true(lambda: not clients(server))


# ---- roles


def test_the_role_that_it_should_have_is_ready(check: CheckRunner, server: RedisServer, replica: RedisReplica) -> None:
    assert check(server.url, role="primary") == READY
    assert check(replica.url, role="replica") == READY
    assert check(replica.url) == READY


def test_another_role_than_it_should_have_is_not_ready(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    assert check(server.url, role="replica") == Verdict.not_ready(f"a primary, not the replica: {shown(server)}")
    assert check(replica.url, role="primary") == Verdict.not_ready(f"a replica, not the primary: {shown(replica)}")


def test_a_replica_without_its_primary_is_not_ready(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "its link is down")
        down = Verdict.not_ready(f"a replica whose link to its primary is down: {shown(replica)}")
        assert check(replica.url) == down
        assert check(replica.url, role="replica") == down
        replica.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
        assert check(replica.url) == Verdict.not_ready(
            f"Link with MASTER is down and replica-serve-stale-data is set to 'no': {shown(replica)}"
        )
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
    assert check(encrypted.url) == Verdict.failed(
        f"its certificate is not valid: self-signed certificate: {shown(encrypted)}"
    )
    assert check(encrypted.url, ca=str(other.certificate)) == Verdict.failed(
        f"its certificate is not valid: self-signed certificate: {shown(encrypted)}"
    )
    assert check(encrypted.url, ca=str(certificate.certificate), server_name="other.example") == Verdict.failed(
        "its certificate is not valid: Hostname mismatch, certificate is not valid for 'other.example'.: "
        f"{shown(encrypted)}"
    )


def test_a_wrong_password_is_failed_under_tls_too(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    assert check(encrypted.bad_credentials_url, ca=str(certificate.certificate)) == Verdict.failed(
        f"invalid username-password pair or user is disabled: {shown(encrypted)}"
    )


def test_a_certificate_that_ends_soon_is_not_ready(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    assert check(encrypted.url, ca=str(certificate.certificate), min_cert_days=1) == Verdict.not_ready(
        "its certificate expires in 0.0 days, before min_cert_days is reached"
    )


def test_a_server_without_tls_is_failed_where_tls_is_asked_for(check: CheckRunner, server: RedisServer) -> None:
    url = server.url.replace("redis:", "rediss:")
    assert check.times_out(url) == Verdict.failed("no answer within 0.2 s, in its step handshake")


def test_a_server_that_wants_tls_is_failed_without_it(check: CheckRunner, encrypted: RedisServer) -> None:
    verdict = check(encrypted.url.replace("rediss:", "redis:"))
    assert verdict.outcome is Outcome.FAILED
    assert PASSWORD not in verdict.reason


def test_a_server_that_hangs_under_tls_leaves_nothing(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    encrypted.freeze()
    try:
        verdict = check.times_out(encrypted.url, ca=str(certificate.certificate))
    finally:
        encrypted.thaw()
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step handshake")


def test_a_server_that_hangs_after_the_handshake_leaves_nothing(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        verdict = check.times_out(f"rediss://:{PASSWORD}@{backend.address}", ca=str(certificate.certificate))
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step log in")


# ---- reuse


def test_a_connection_that_is_reused_is_the_same_one_and_is_closed_at_the_end(
    check: CheckRunner, server: RedisServer
) -> None:
    assert becomes_true(lambda: not clients(server))
    seen: list[list[str]] = []
    looks = check.sequence(server.url, *[lambda: seen.append(clients(server))] * 3, reuse=True)
    assert looks == [(READY, ["connect", "log in", "exchange"]), *[(READY, ["reuse", "exchange"])] * 3]
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3
    assert becomes_true(lambda: not clients(server))


def test_a_server_that_was_restarted_meanwhile_gets_a_fresh_connection(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    looks = check.sequence(encrypted.url, encrypted.restart, ca=str(certificate.certificate), reuse=True)
    opening = ["connect", "handshake", "log in", "exchange"]
    assert looks == [(READY, opening), (READY, ["reuse", "exchange", *opening])]


def test_a_server_that_hangs_meanwhile_is_failed_and_its_connection_not_kept(
    check: CheckRunner, server: RedisServer
) -> None:
    assert_reconnects_after_timeout(check, server, ["connect", "log in", "exchange"])
    assert becomes_true(lambda: not clients(server))


def test_a_connection_is_not_kept_when_the_check_was_not_ready(check: CheckRunner, server: RedisServer) -> None:
    counts: list[bool] = []
    looks = check.sequence(
        server.url, lambda: counts.append(becomes_true(lambda: not clients(server))), reuse=True, role="replica"
    )
    assert [verdict.outcome for verdict, _ in looks] == [Outcome.NOT_READY] * 2
    assert [steps for _, steps in looks] == [["connect", "log in", "exchange"]] * 2
    assert counts == [True]


# ---- what is no Redis


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (reset_on_data, "connection reset by peer"),
        (close, "Connection closed by server"),
        (sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "what came back is not Redis"),
        (sending(b":1\r\n"), "what came back is not Redis"),
        (sending(b"+HELLO\r\n"), "it did not answer PING with PONG"),
        (sending(b"+PONG\r\n+PONG\r\n"), "it does not say whether it is a replica"),
        (sending(b"-ERR \x1b[31mred\x1b[0m\r\n"), "[31mred [0m"),
    ],
    ids=["reset", "close", "http", "number", "hello", "pong only", "terminal"],
)
def test_what_is_no_redis_is_failed(check: CheckRunner, script: Callable[[Peer], None], words: str) -> None:
    with Backend(script) as backend:
        assert check.leaks_nothing(f"redis://{backend.address}") == Verdict.failed(
            f"{words}: redis://{backend.address}"
        )


def test_a_mute_port_is_failed_at_the_deadline_and_nothing_is_left(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        verdict = check.times_out(f"redis://:{PASSWORD}@{backend.address}")
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step log in")


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
def test_whatever_answers_that_is_no_redis_is_failed(check: CheckRunner, junk: bytes) -> None:
    with Backend(sending(junk)) as backend:
        assert check(f"redis://{backend.address}").outcome is Outcome.FAILED


# ---- around the deadline


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_checks_that_are_cut_off_anywhere_leave_nothing_on_either_side(
    check: CheckRunner, server: RedisServer, encrypted: RedisServer, certificate: Certificate, is_encrypted: bool
) -> None:
    target = encrypted if is_encrypted else server
    options = {"ca": str(certificate.certificate)} if is_encrypted else {}
    assert_no_leaks_when_cancelled(check, target.url, **options)
    assert becomes_true(lambda: not clients(target))


# ---- our own faults


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner, server: RedisServer) -> None:
    without, afterwards = check.without_descriptors(server.url)
    assert without == NO_DESCRIPTORS
    assert afterwards == READY


def test_an_authority_that_is_gone_is_our_own_fault(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate, tmp_path: Path
) -> None:
    assert_missing_ca_is_unknown(check, encrypted.url, tmp_path / "ca.pem", certificate)


# ---- what is refused at once


@pytest.mark.parametrize("url", ["redis://127.0.0.1/ledger", "redis://127.0.0.1/-1", "redis://127.0.0.1/0?db=1"])
def test_what_stands_after_the_host_is_a_number_or_refused(url: str) -> None:
    words = "after the host stands at most the number of a database: redis://host:port/0"
    with pytest.raises(ProbeError, match=f"^{re.escape(words)}$"):
        make_probe(url)


@pytest.mark.parametrize(
    ("url", "option", "value"),
    [
        ("redis://127.0.0.1/1", "db", 1),
        ("redis://me@127.0.0.1", "username", "me"),
        ("redis://:swordfish@127.0.0.1", "password", "swordfish"),
    ],
)
def test_what_stands_in_the_url_cannot_stand_beside_it(url: str, option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"^{option}: stands in the URL as well; only one .* can count$"):
        make_probe({"url": url, option: value})


def test_options_of_tls_are_refused_where_there_is_none() -> None:
    with pytest.raises(OptionError, match=r"^min_cert_days: has no meaning for redis, which does not speak TLS$"):
        make_probe({"url": "redis://127.0.0.1", "min_cert_days": 3})
