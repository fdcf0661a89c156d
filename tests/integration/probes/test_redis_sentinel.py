"""redis+sentinel:// against real Sentinels and masters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, sending
from tests.support.servers.base import module_server
from tests.support.servers.redis import MASTER_NAME, RedisSentinel, RedisServer
from tests.support.verdicts import CONNECTION_CLOSED, PROTOCOL_ERROR, READY, UNEXPECTED_RESPONSE, failed, not_ready

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

PASSWORD = "ledger-password"
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
TIMEOUT = failed(ReasonCode.TIMEOUT)


master = module_server(RedisServer, password=PASSWORD)
sentinel = module_server(RedisSentinel, of="master")


def test_the_master_that_a_sentinel_names_is_checked_and_the_connection_to_it_can_be_reused(
    check: CheckRunner, sentinel: RedisSentinel, master: RedisServer
) -> None:
    assert check(sentinel.url) == READY
    assert check(f"{sentinel.url}/3", write="in three") == READY
    assert master.cli("-n", "3", "EXISTS", "in three") == "1"
    assert check(f"redis+sentinel://127.0.0.1:{sentinel.port}/{MASTER_NAME}", password=PASSWORD, db=1) == READY
    rest = ["connect", "log in", "exchange", "exchange"]
    results = check.sequence(sentinel.url, lambda: None, reuse=True)
    assert results == [(READY, ["connect", "log in", *rest]), (READY, ["reuse", *rest])]
    assert check(f"redis+sentinel://127.0.0.1:{sentinel.port}/other") == failed(ReasonCode.NOT_FOUND)


def test_the_reasons_of_the_master_have_its_address(
    check: CheckRunner, sentinel: RedisSentinel, master: RedisServer
) -> None:
    verdict = check(sentinel.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(f"redis://127.0.0.1:{master.port}")
    with master.out_of_memory():
        assert check(sentinel.url) == not_ready(ReasonCode.OUT_OF_MEMORY)
    master.freeze()
    try:
        verdict = check.times_out(sentinel.url, "log in")
        assert verdict == TIMEOUT
        assert f"the master, 127.0.0.1:{master.port}" in verdict.reason
    finally:
        master.thaw()
    with master.writes_paused():
        assert check.times_out(sentinel.url, "write", write=True) == failed(ReasonCode.WRITE_TIMEOUT)


def test_a_sentinel_is_not_a_server_and_the_reason_names_the_scheme(
    check: CheckRunner, sentinel: RedisSentinel, master: RedisServer
) -> None:
    verdict = check(f"redis://127.0.0.1:{sentinel.port}")
    assert verdict == PROTOCOL_ERROR
    assert "redis+sentinel://" in verdict.reason
    verdict = check(f"redis+sentinel://127.0.0.1:{master.port}/{MASTER_NAME}")
    assert verdict == PROTOCOL_ERROR
    assert "redis://" in verdict.reason


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (b"*2\r\n$1\r\na\r\n$1\r\n0\r\n", UNEXPECTED_RESPONSE),
        (b"*2\r\n$3\r\na b\r\n$4\r\n6379\r\n", UNEXPECTED_RESPONSE),
        (b"*2\r\n$1\r\na\r\n$1\r\nx\r\n", PROTOCOL_ERROR),
        (b":1\r\n", UNEXPECTED_RESPONSE),
        (b"", CONNECTION_CLOSED),
        (b"-ERR no\r\n", failed(ReasonCode.SERVER_ERROR)),
    ],
)
def test_a_response_that_is_not_an_address_is_failed(check: CheckRunner, response: bytes, verdict: object) -> None:
    with Backend(sending(response)) as backend:
        assert check(f"redis+sentinel://{backend.address}/m") == verdict


def test_a_sentinel_may_have_its_own_password_and_users(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    """Both servers have TLS too."""
    tls = {"tls": True, "ca": str(certificate.certificate)}
    with (
        RedisServer(tmp_path / "master", certificate=certificate) as master,
        RedisSentinel(tmp_path / "sentinel", master, password="sentinel-password", certificate=certificate) as sentinel,
    ):
        steps = check.steps(sentinel.url, sentinel_password="sentinel-password", **tls)
        assert [name for name, _, is_done in steps if is_done].count("handshake") == 2
        assert check(sentinel.url, tls=True) == failed(ReasonCode.TLS_UNTRUSTED)
        verdict = check(sentinel.url, **tls)
        assert verdict == failed(ReasonCode.AUTH_REQUIRED)
        assert "sentinel_password" in verdict.reason
        verdict = check(sentinel.url, sentinel_password="not-the-sentinel-password", **tls)
        assert verdict == AUTH_FAILED
        assert "not-the-sentinel-password" not in verdict.reason
        sentinel.cli("ACL", "SETUSER", "monitor", "reset", "on", ">monitor-password", "+ping")
        login = {"sentinel_username": "monitor", "sentinel_password": "monitor-password", **tls}
        verdict = check(sentinel.url, **login)
        assert verdict == failed(ReasonCode.PERMISSION_DENIED)
        assert "+sentinel|get-master-addr-by-name" in verdict.reason
        sentinel.cli("ACL", "SETUSER", "monitor", "+sentinel|get-master-addr-by-name")
        assert check(sentinel.url, **login) == READY


def test_a_replica_that_the_sentinel_names_is_not_ready(
    check: CheckRunner, master: RedisServer, tmp_path: Path
) -> None:
    """As between a failover and the time when this Sentinel knows of it."""
    with master.replica(tmp_path) as replica:
        port = str(replica.port)
        address = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port.encode())
        with Backend(sending(address)) as backend:
            verdict = check(f"redis+sentinel://:{PASSWORD}@{backend.address}/m")
    assert verdict == not_ready(ReasonCode.WRONG_ROLE)
