"""nats:// against real NATS servers and against scripted servers."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]
import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.net.streams import ResponseTooLargeError
from svcnode.probes import make_probe
from svcnode.probes.nats import _server_error
from tests.support.backends import Backend, Peer, close, sending, unresponsive
from tests.support.check_runner import CheckRunner
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import assert_no_leaks, assert_reused
from tests.support.servers.nats import OTHER_STREAM, PASSWORD, STREAM, USER, JetStream, NatsServer
from tests.support.verdicts import EXPIRES_SOON, PROTOCOL_ERROR, READY, UNEXPECTED_RESPONSE, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.certificates import Certificate

TOKEN = "let-me/in"
STORAGE_FULL = ReasonCode.STORAGE_FULL
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
AUTH_REQUIRED = failed(ReasonCode.AUTH_REQUIRED)
TLS_NOT_OFFERED = failed(ReasonCode.TLS_NOT_OFFERED)
TOO_MANY_CONNECTIONS = failed(ReasonCode.TOO_MANY_CONNECTIONS)


def shown(server: NatsServer) -> str:
    """The URL without its password."""
    return f"nats://{USER}:***@{server.host}:{server.port}"


@pytest.fixture(scope="module")
def no_quorum_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("no_quorum_server"), jetstream=JetStream.NO_QUORUM) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, no_quorum_server: object) -> Iterator[NatsServer]:
    """Starts after the server without quorum, which needs seconds to notice that it has no leader."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("jetstream"), jetstream=JetStream.ON) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("encrypted"), certificate=certificate) as server:
        yield server


class CustomAuthServer(NatsServer):
    """Authentication by a token or by keys."""

    auth_config: dict[str, Any]

    def prepare(self) -> None:
        config = {"listen": f"{self.host}:{self.port}", **self.auth_config}
        (self.folder / "nats.conf").write_text(json.dumps(config))

    def is_ready(self) -> bool:
        with socket.create_connection((self.host, self.port), timeout=1) as sock:
            return sock.recv(5) == b"INFO "


# ---- a server


def test_a_server_that_accepts_the_login_is_ready(check: CheckRunner, server: NatsServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]
    assert check(f"nats://127.0.0.1:{server.port}", username=USER, password=PASSWORD) == READY


def test_wrong_or_missing_credentials_are_failed(check: CheckRunner, server: NatsServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(shown(server))
    assert check(f"nats://127.0.0.1:{server.port}") == AUTH_REQUIRED


def test_a_server_at_its_connection_limit_is_failed(check: CheckRunner, server: NatsServer) -> None:
    with server.exhaust():
        verdict = check(server.url)
    assert becomes_true(lambda: check(server.url) == READY)
    assert verdict == TOO_MANY_CONNECTIONS


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = CustomAuthServer(tmp_path_factory.mktemp("token"))
    server.auth_config = {"authorization": {"token": TOKEN}}
    with server:
        yield server


def test_a_token_can_be_set_in_the_url_or_as_an_option(check: CheckRunner, by_token: NatsServer) -> None:
    assert check(f"nats://let-me%2Fin@127.0.0.1:{by_token.port}") == READY
    assert check(f"nats://127.0.0.1:{by_token.port}", token=TOKEN) == READY


def signed(claims: dict[str, Any], issuer: nkeys.KeyPair) -> str:
    """A JWT with the algorithm of NATS."""
    whole = {"jti": "none", "iat": int(time.time()), "iss": issuer.public_key.decode(), **claims}
    parts = [_base64(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, whole)]
    return ".".join([*parts, _base64(issuer.sign(".".join(parts).encode()))])


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def key_pair(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


@pytest.fixture(scope="module")
def by_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, str, str]]:
    """A server with an operator that signs an account that signs a user; the user's JWT and seed."""
    operator, account, user = map(
        key_pair, (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
    )
    name = account.public_key.decode()
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    for_operator = signed({"sub": operator.public_key.decode(), "nats": {"type": "operator", "version": 2}}, operator)
    for_account = signed({"sub": name, "nats": {"type": "account", "version": 2, "limits": limits}}, operator)
    claims = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
    for_user = signed({"sub": user.public_key.decode(), "name": "svcnode", "nats": claims}, account)
    server = CustomAuthServer(tmp_path_factory.mktemp("keys"))
    server.auth_config = {"operator": for_operator, "resolver": "MEMORY", "resolver_preload": {name: for_account}}
    with server:
        yield server, for_user, user.seed.decode()


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


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_credentials_file_is_used_for_the_login(
    check: CheckRunner, by_key: tuple[NatsServer, str, str], tmp_path: Path, end: str
) -> None:
    server, jwt, seed = by_key
    url = f"nats://127.0.0.1:{server.port}"
    assert check(url, credentials_file=creds(tmp_path, jwt, seed, end)) == READY
    assert check(url) == AUTH_REQUIRED


@pytest.mark.parametrize(
    "content",
    ["", "no JWT", "-----BEGIN NATS USER JWT-----\nabc\n", "-----BEGIN USER NKEY SEED-----\nSUAMOTSEED\n"],
)
def test_a_credentials_file_without_a_jwt_and_a_key_is_rejected(tmp_path: Path, content: str) -> None:
    file = tmp_path / "me.creds"
    file.write_text(content)
    assert_file_rejected(file)


def test_a_credentials_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "me.creds"
    file.write_bytes(b"\xff\xfe")
    assert_file_rejected(file)
    assert_file_rejected(tmp_path)


def assert_file_rejected(file: Path) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "nats://127.0.0.1", "credentials_file": str(file)})
    assert caught.value.option == "credentials_file"
    assert str(file) in caught.value.text


# ---- TLS


def test_a_server_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: NatsServer, certificate: Certificate
) -> None:
    tls = {"tls": True, "ca": str(certificate.certificate)}
    assert check(encrypted.url, **tls) == READY
    assert check.steps(encrypted.url, **tls) == [
        ("connect", "127.0.0.1", True),
        ("handshake", "127.0.0.1", True),
        ("log in", "", True),
        ("exchange", "", True),
    ]
    assert check(encrypted.bad_credentials_url, **tls) == AUTH_FAILED
    assert check(encrypted.url, min_cert_days=1, **tls) == EXPIRES_SOON


def test_a_tls_server_at_its_connection_limit_is_failed_before_the_deadline(
    check: CheckRunner, encrypted: NatsServer, certificate: Certificate
) -> None:
    """It sends the error in plain text, where the handshake should begin."""
    with encrypted.exhaust():
        verdict = check.with_timeout(3 * WAIT_TIMEOUT_S, encrypted.url, tls=True, ca=str(certificate.certificate))
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


def test_a_server_that_requires_tls_is_failed_without_it(check: CheckRunner, encrypted: NatsServer) -> None:
    assert check(encrypted.url) == failed(ReasonCode.TLS_REQUIRED)


def test_a_server_without_jetstream_is_not_ready_if_it_is_required(
    check: CheckRunner, server: NatsServer, jetstream: NatsServer
) -> None:
    assert check(jetstream.url, jetstream=True) == READY
    assert assert_no_leaks(check, jetstream.url, jetstream.port, jetstream=True) == READY
    verdict = assert_no_leaks(check, server.url, server.port, jetstream=True)
    assert verdict == not_ready(ReasonCode.NOT_SUPPORTED)


class LimitedServer(NatsServer):
    """With one limited account, whose users have the permissions that a check needs, and less."""

    max_bytes = 10_000
    needed = ("$JS.API.INFO", "$JS.API.STREAM.NAMES", STREAM)

    def prepare(self) -> None:
        super().prepare()
        file = self.folder / "nats.conf"
        config = json.loads(file.read_text())
        del config["authorization"]
        permissions = {USER: None, "writer": self.needed, "reader": self.needed[:1], "nobody": ("none",)}
        users = [
            {"user": name, "password": PASSWORD}
            | ({} if allowed is None else {"permissions": {"publish": list(allowed)}})
            for name, allowed in permissions.items()
        ]
        limits = {"max_file": self.max_bytes, "max_mem": self.max_bytes}
        config["accounts"] = {"ledger": {"jetstream": limits, "users": users}}
        file.write_text(json.dumps(config))

    @contextmanager
    def filled(self, kind: str) -> Iterator[None]:
        """Uses every byte of this kind of storage."""
        name = f"all-{kind}"
        self.add_stream(name, storage=kind)
        self.request(name, bytes(1000))
        overhead = self._used(kind) - 1000
        self.request(name, bytes(self.max_bytes - self._used(kind) - overhead))
        assert self._used(kind) == self.max_bytes
        yield
        self.request(f"$JS.API.STREAM.DELETE.{name}")

    def _used(self, kind: str) -> int:
        return int(self.request("$JS.API.INFO")["storage" if kind == "file" else "memory"])


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedServer]:
    with LimitedServer(tmp_path_factory.mktemp("limited"), jetstream=JetStream.ON) as server:
        yield server


def test_the_limits_of_a_tier_are_checked(check: CheckRunner) -> None:
    """Only an account with a JWT has tiers."""
    tiers = {"R3": {"memory": 0, "storage": 7, "limits": {"max_memory": -1, "max_storage": 7}}}
    account = {"memory": 0, "storage": 0, "limits": {"max_memory": 0, "max_storage": 0}, "tiers": tiers}
    with Backend(jetstream_account(json.dumps(account))) as backend:
        assert check(f"nats://{backend.address}", jetstream=True) == not_ready(STORAGE_FULL)


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


# ---- write


WRITE = ("write", "", True)
USED_BYTES = 0  # replaced by the bytes that the stream uses


def stored_messages(server: NatsServer) -> int:
    return int(server.request(f"$JS.API.STREAM.INFO.{STREAM}")["state"]["messages"])


def test_a_stream_that_stores_a_message_is_ready(check: CheckRunner, jetstream: NatsServer) -> None:
    for _ in range(3):
        assert assert_no_leaks(check, jetstream.url, jetstream.port, write=True) == READY
    assert check(jetstream.url, write=STREAM, jetstream=True) == READY
    assert check.steps(jetstream.url, write=True)[2:] == [WRITE, ("exchange", "", True)]
    assert stored_messages(jetstream) == 1


def test_a_subject_without_a_stream_is_failed(check: CheckRunner, jetstream: NatsServer, server: NatsServer) -> None:
    verdict = check(jetstream.url, write="transfers.small")
    assert verdict == failed(ReasonCode.NOT_FOUND)
    assert "nats stream add transfers_small --subjects transfers.small " in verdict.reason
    assert check(server.url, write=True) == not_ready(ReasonCode.NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"max_msgs": 1, "discard": "new"}, STORAGE_FULL),
        ({"max_bytes": USED_BYTES, "discard": "new"}, STORAGE_FULL),
        ({"sealed": True}, ReasonCode.READ_ONLY),
    ],
    ids=["messages", "bytes", "sealed"],
)
def test_a_stream_that_is_full_or_sealed_is_not_ready(
    check: CheckRunner, jetstream: NatsServer, config: dict[str, Any], code: ReasonCode
) -> None:
    jetstream.add_stream("small")
    assert check(jetstream.url, write="small") == READY
    used_bytes = jetstream.request("$JS.API.STREAM.INFO.small")["state"]["bytes"]
    update = {"name": "small", "subjects": ["small"], **config} | (
        {"max_bytes": used_bytes} if "max_bytes" in config else {}
    )
    jetstream.request("$JS.API.STREAM.UPDATE.small", json.dumps(update).encode())
    assert check(jetstream.url, write="small") == not_ready(code)
    jetstream.request("$JS.API.STREAM.DELETE.small")


def test_a_missing_permission_is_failed_before_the_deadline(check: CheckRunner, limited: LimitedServer) -> None:
    """The server sends no response to the request, only an error."""
    url = f"nats://127.0.0.1:{limited.port}"
    assert check(url, username="writer", password=PASSWORD, write=True) == READY
    assert check(url, username="reader", password=PASSWORD, jetstream=True) == READY
    denied = failed(ReasonCode.PERMISSION_DENIED)
    assert check(url, username="writer", password=PASSWORD, write=OTHER_STREAM) == denied
    verdict = check(url, username="reader", password=PASSWORD, write=True)
    assert verdict == denied
    assert ", ".join(limited.needed) in verdict.reason


@pytest.mark.parametrize(
    "answer",
    [
        b"220 mail.example ESMTP\r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b"INFO \xff\r\n",
    ],
    ids=["SMTP", "no object", "no JSON", "no text"],
)
def test_another_protocol_is_failed(check: CheckRunner, answer: bytes) -> None:
    with Backend(sending(answer)) as backend:
        assert check(f"nats://{backend.address}") == PROTOCOL_ERROR


def accepting(then: bytes, end: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A server that accepts the login and then sends `then` instead of a response."""

    def script(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        peer.read_until(b"PING\r\n")
        peer.send(b"PONG\r\n" + then)
        end(peer)

    return script


def test_an_error_of_the_connection_that_the_driver_reports_has_its_code() -> None:
    assert _server_error(ResponseTooLargeError()).code is ReasonCode.UNEXPECTED_RESPONSE


@pytest.mark.parametrize(
    ("then", "end", "code"),
    [
        (b"", close, ReasonCode.CONNECTION_CLOSED),
        (b"INFO {\r\n", unresponsive, ReasonCode.PROTOCOL_ERROR),
        (b"-ERR 'Stale Connection'\r\n", unresponsive, ReasonCode.CONNECTION_CLOSED),
        (b"-ERR 'User Authentication Expired'\r\n", unresponsive, ReasonCode.AUTH_FAILED),
        (b"-ERR 'Permissions Violation for Publish'\r\n", close, ReasonCode.CONNECTION_CLOSED),
        (b"-ERR 'Maximum Connections Exceeded'\r\n", unresponsive, ReasonCode.TOO_MANY_CONNECTIONS),
        (b"-ERR 'Server Shutdown'\r\n", unresponsive, ReasonCode.SHUTTING_DOWN),
        (b"-ERR 'Something Else'\r\n", unresponsive, ReasonCode.SERVER_ERROR),
        (b"HTTP/1.1 400\r\n", unresponsive, ReasonCode.PROTOCOL_ERROR),
    ],
    ids=["closed", "no JSON", "stale", "expired", "permission", "full", "shutdown", "other", "HTTP"],
)
def test_an_error_after_the_login_is_failed_before_the_deadline(
    check: CheckRunner, then: bytes, end: Callable[[Peer], object], code: ReasonCode
) -> None:
    """The driver would wait although its reader task has ended."""
    with Backend(accepting(then, end)) as backend:
        assert assert_no_leaks(check, f"nats://{backend.address}", backend.port) == failed(code)


def test_a_connection_can_be_reused(check: CheckRunner, server: NatsServer) -> None:
    assert_reused(check, server.url, server.port)
