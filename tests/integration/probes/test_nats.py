"""nats:// against real NATS servers and against scripted servers."""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]
import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from tests.support.backends import Backend, Peer, close, unresponsive
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import assert_no_leaks, assert_reused
from tests.support.servers.base import module_server
from tests.support.servers.nats import OTHER_STREAM, PASSWORD, STREAM, USER, JetStream, NatsServer
from tests.support.verdicts import EXPIRES_SOON, READY, UNEXPECTED_RESPONSE, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

TOKEN = "let-me/in"
NONCE = b"once-only"
STORAGE_FULL = ReasonCode.STORAGE_FULL
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
AUTH_REQUIRED = failed(ReasonCode.AUTH_REQUIRED)
TLS_NOT_OFFERED = failed(ReasonCode.TLS_NOT_OFFERED)
TOO_MANY_CONNECTIONS = failed(ReasonCode.TOO_MANY_CONNECTIONS)


server = module_server(NatsServer)
encrypted = module_server(NatsServer, tls=True)


class JetStreamServer(NatsServer):
    """Two of its users have the permissions that a write needs, and less."""

    needed = ("$JS.API.INFO", "$JS.API.STREAM.NAMES", STREAM)

    def prepare(self) -> None:
        super().prepare()
        file = self.folder / "nats.conf"
        config = json.loads(file.read_text())
        del config["authorization"]
        users = [
            {"user": name, "password": PASSWORD, "permissions": {"publish": list(allowed)}}
            for name, allowed in {"writer": self.needed, "reader": self.needed[:1]}.items()
        ]
        users.append({"user": USER, "password": PASSWORD})
        config["accounts"] = {"ledger": {"jetstream": "enabled", "users": users}}
        file.write_text(json.dumps(config))


jetstream = module_server(JetStreamServer, jetstream=JetStream.ON)


def test_a_server_that_accepts_the_login_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, server: NatsServer
) -> None:
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]
    assert check(f"nats://127.0.0.1:{server.port}", username=USER, password=PASSWORD) == READY
    assert_reused(check, server.url, server.port)


def test_wrong_or_missing_credentials_are_failed(check: CheckRunner, server: NatsServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(f"nats://{USER}:***@{server.host}:{server.port}")
    assert check(f"nats://127.0.0.1:{server.port}") == AUTH_REQUIRED


def requiring(is_accepted: Callable[[dict[str, Any]], bool]) -> Callable[[Peer], None]:
    """A server that decides by the options of CONNECT."""

    def script(peer: Peer) -> None:
        peer.send(b'INFO {"auth_required": true, "nonce": "%b"}\r\n' % NONCE)
        peer.read_until(b"CONNECT ")
        if not is_accepted(json.loads(peer.read_until(b"\r\n"))):
            peer.send(b"-ERR 'Authorization Violation'\r\n")
            peer.shutdown_write()
            return
        while peer.read_until(b"PING\r\n"):
            peer.send(b"PONG\r\n")

    return script


def test_a_token_can_be_set_in_the_url_or_as_an_option(check: CheckRunner) -> None:
    with Backend(requiring(lambda options: options.get("auth_token") == TOKEN)) as backend:
        assert check(f"nats://let-me%2Fin@{backend.address}") == READY
        assert check(f"nats://{backend.address}", token=TOKEN) == READY
        assert check(f"nats://{backend.address}", token="t0ken-of-another") == AUTH_FAILED


def key_pair(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


def creds(folder: Path, jwt: str, seed: str, end: str = "\n") -> str:
    lines = [
        "-----BEGIN NATS USER JWT-----",
        jwt,
        "------END NATS USER JWT------",
        "",
        "-----BEGIN USER NKEY SEED-----",
        seed,
        "------END USER NKEY SEED------",
    ]
    file = folder / "me.creds"
    file.write_bytes(end.join([*lines, ""]).encode())
    return str(file)


def test_a_credentials_file_is_used_for_the_login_as_it_is_at_each_check(check: CheckRunner, tmp_path: Path) -> None:
    user, other = (key_pair(nkeys.PREFIX_BYTE_USER) for _ in range(2))

    def is_signed(options: dict[str, Any]) -> bool:
        signature = base64.b64decode(options["sig"].translate(str.maketrans("-_", "+/")) + "==")
        with suppress(nkeys.ErrInvalidSignature):
            return options["jwt"] == "my-jwt" and bool(user.verify(NONCE, signature))
        return False

    async def main(url: str) -> None:
        probe = make_probe({"url": url, "credentials_file": creds(tmp_path, "my-jwt", other.seed.decode())})
        assert await probe.check() == AUTH_FAILED
        for end in ("\n", "\r\n"):
            creds(tmp_path, "my-jwt", user.seed.decode(), end)
            assert await probe.check() == READY
        (tmp_path / "me.creds").write_text("gone")
        assert await probe.check() == unknown(ReasonCode.FILE_NOT_READABLE)
        (tmp_path / "me.creds").unlink()
        assert await probe.check() == unknown(ReasonCode.FILE_NOT_FOUND)

    with Backend(requiring(is_signed)) as backend:
        check.run(main(f"nats://{backend.address}"))


@pytest.mark.parametrize(
    "content",
    [b"no JWT", b"-----BEGIN NATS USER JWT-----\nabc\n", b"-----BEGIN USER NKEY SEED-----\nSUA\n", b"\xff\xfe"],
)
def test_a_credentials_file_without_a_jwt_and_a_key_is_rejected(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "me.creds"
    file.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "nats://127.0.0.1", "credentials_file": str(file)})
    assert caught.value.option == "credentials_file"
    assert str(file) in caught.value.text


def test_tls_begins_after_the_first_line_of_the_server(
    check: CheckRunner, encrypted: NatsServer, certificate: Certificate
) -> None:
    tls = {"tls": True, "ca": str(certificate.certificate)}
    steps = check.steps(encrypted.url, **tls)
    assert [name for name, _, is_done in steps if is_done] == ["connect", "handshake", "log in", "exchange"]
    assert check(encrypted.bad_credentials_url, **tls) == AUTH_FAILED
    assert check(encrypted.url, min_cert_days=1, **tls) == EXPIRES_SOON
    assert check(encrypted.url) == failed(ReasonCode.TLS_REQUIRED)
    with encrypted.exhaust():  # the error is sent in plain text, where the handshake should begin
        verdict = check.with_timeout(3 * WAIT_TIMEOUT_S, encrypted.url, **tls)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.code not in (ReasonCode.TIMEOUT, ReasonCode.TLS_TIMEOUT)


def test_a_server_without_tls_is_failed_and_receives_no_password(check: CheckRunner, server: NatsServer) -> None:
    assert check(server.url, tls=True) == TLS_NOT_OFFERED
    received: list[bytes] = []

    def without_tls(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        received.append(peer.read_to_end())

    with Backend(without_tls) as backend:
        verdict = check(f"nats://{USER}:swordfish@{backend.address}", tls=True)
    assert verdict == TLS_NOT_OFFERED
    assert "swordfish" not in verdict.reason
    assert received == [b""]


def test_a_server_without_jetstream_is_not_ready_if_it_is_required(
    check: CheckRunner, server: NatsServer, jetstream: NatsServer
) -> None:
    assert check(jetstream.url, jetstream=True) == READY
    assert assert_no_leaks(check, jetstream.url, jetstream.port, jetstream=True) == READY
    verdict = assert_no_leaks(check, server.url, server.port, jetstream=True)
    assert verdict == not_ready(ReasonCode.NOT_SUPPORTED)


def account(memory: int, storage: int, max_memory: int, max_storage: int) -> dict[str, Any]:
    limits = {"max_memory": max_memory, "max_storage": max_storage}
    return {"memory": memory, "storage": storage, "limits": limits}


@pytest.mark.parametrize(
    ("account", "code"),
    [
        (account(6, 6, 7, 7), ReasonCode.OK),
        (account(9, 9, -1, -1), ReasonCode.OK),
        (account(0, 7, -1, 7), STORAGE_FULL),
        (account(7, 0, 7, -1), ReasonCode.OUT_OF_MEMORY),
        ({**account(0, 0, 0, 0), "tiers": {"R3": account(0, 7, -1, 7)}}, STORAGE_FULL),  # of an account with a JWT
    ],
)
def test_an_account_at_its_limit_is_not_ready(check: CheckRunner, account: object, code: ReasonCode) -> None:
    with Backend(jetstream_account(json.dumps(account))) as backend:
        verdict = check(f"nats://{backend.address}", jetstream=True)
    assert verdict == (READY if code is ReasonCode.OK else not_ready(code))


@pytest.mark.parametrize("answer", ["[]", "{}", '{"limits": {}, "tiers": [1]}', '{"limits": {"max_memory": "7"}}', "-"])
def test_an_account_without_valid_limits_is_failed(check: CheckRunner, answer: str) -> None:
    with Backend(jetstream_account(answer)) as backend:
        assert check(f"nats://{backend.address}", jetstream=True) == UNEXPECTED_RESPONSE


def jetstream_account(answer: str) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        for _ in range(2):
            peer.read_until(b"PING\r\n")
            peer.send(b"PONG\r\n")
        peer.read_until(b"$JS.API.INFO ")
        inbox = peer.read_until(b" ").strip()
        peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(answer), answer.encode()))

    return script


def test_a_stream_that_stores_a_message_is_ready(check: CheckRunner, jetstream: NatsServer, server: NatsServer) -> None:
    for _ in range(2):
        assert assert_no_leaks(check, jetstream.url, jetstream.port, write=True) == READY
    assert check.steps(jetstream.url, write=STREAM)[2:] == [("write", "", True), ("exchange", "", True)]
    assert jetstream.request(f"$JS.API.STREAM.INFO.{STREAM}")["state"]["messages"] == 1
    verdict = check(jetstream.url, write="transfers.small")
    assert verdict == failed(ReasonCode.NOT_FOUND)
    assert "nats stream add transfers_small --subjects transfers.small " in verdict.reason
    assert check(server.url, write=True) == not_ready(ReasonCode.NOT_SUPPORTED)


def test_a_stream_that_is_full_or_sealed_is_not_ready(check: CheckRunner, jetstream: NatsServer) -> None:
    for setting, code in (("max_msgs", STORAGE_FULL), ("max_bytes", STORAGE_FULL), ("sealed", ReasonCode.READ_ONLY)):
        jetstream.add_stream("small")
        assert check(jetstream.url, write="small") == READY
        used = jetstream.request("$JS.API.STREAM.INFO.small")["state"]
        limits = {"max_msgs": 1, "max_bytes": used["bytes"], "sealed": True}
        update = {"name": "small", "subjects": ["small"], "discard": "new", setting: limits[setting]}
        jetstream.request("$JS.API.STREAM.UPDATE.small", json.dumps(update).encode())
        assert check(jetstream.url, write="small") == not_ready(code)
        jetstream.request("$JS.API.STREAM.DELETE.small")


def test_a_missing_permission_is_failed_before_the_deadline(check: CheckRunner, jetstream: JetStreamServer) -> None:
    """The server sends no response to the request, only an error."""
    url = f"nats://127.0.0.1:{jetstream.port}"
    assert check(url, username="writer", password=PASSWORD, write=True) == READY
    assert check(url, username="reader", password=PASSWORD, jetstream=True) == READY
    denied = failed(ReasonCode.PERMISSION_DENIED)
    assert check(url, username="writer", password=PASSWORD, write=OTHER_STREAM) == denied
    verdict = check(url, username="reader", password=PASSWORD, write=True)
    assert verdict == denied
    assert ", ".join(jetstream.needed) in verdict.reason


def accepting(then: bytes, end: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A server that accepts the login and then sends `then` instead of a response."""

    def script(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        peer.read_until(b"PING\r\n")
        peer.send(b"PONG\r\n" + then)
        end(peer)

    return script


@pytest.mark.parametrize(
    ("then", "end", "code"),
    [
        (b"INFO {\r\n", unresponsive, ReasonCode.PROTOCOL_ERROR),
        (b"-ERR 'Stale Connection'\r\n", unresponsive, ReasonCode.CONNECTION_CLOSED),
        (b"-ERR 'User Authentication Expired'\r\n", unresponsive, ReasonCode.AUTH_FAILED),
        (b"-ERR 'Permissions Violation for Publish'\r\n", close, ReasonCode.CONNECTION_CLOSED),
        (b"-ERR 'Server Shutdown'\r\n", unresponsive, ReasonCode.SHUTTING_DOWN),
        (b"-ERR 'Something Else'\r\n", unresponsive, ReasonCode.SERVER_ERROR),
        (b"HTTP/1.1 400\r\n", unresponsive, ReasonCode.PROTOCOL_ERROR),
    ],
    ids=["no JSON", "stale", "expired", "permission", "shutdown", "other", "HTTP"],
)
def test_an_error_after_the_login_is_failed_before_the_deadline(
    check: CheckRunner, then: bytes, end: Callable[[Peer], object], code: ReasonCode
) -> None:
    """The driver would wait although its reader task has ended."""
    with Backend(accepting(then, end)) as backend:
        assert assert_no_leaks(check, f"nats://{backend.address}", backend.port) == failed(code)
