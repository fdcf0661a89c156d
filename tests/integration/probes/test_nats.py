"""nats:// against real NATS servers, and against what only stands at their port."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]
import pytest
from hypothesis import given

from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from tests.support.backends import Backend, Peer, close, closed_port, sending, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import (
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
from tests.support.servers.nats import PASSWORD, USER, JetStream, NatsServer
from tests.support.verdicts import EXPIRES_SOON, NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
TOKEN = "let-me/in"
LEADERLESS_AFTER_S = 11.0  # for so long, a server hopes for others


def shown(server: NatsServer) -> str:
    """Its URL as a reason shows it."""
    return f"nats://{USER}:***@{server.host}:{server.port}"


@pytest.fixture(scope="module")
def no_quorum_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, float]]:
    """And since when, for it takes its time until it says that there is nobody to lead."""
    with NatsServer(tmp_path_factory.mktemp("no_quorum_server"), jetstream=JetStream.NO_QUORUM) as server:
        yield server, time.monotonic()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, no_quorum_server: object) -> Iterator[NatsServer]:
    """After the one that takes its time, so that the last tests need not wait for it."""
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
    """By a token, or by keys."""

    auth_config: dict[str, Any]

    def prepare(self) -> None:
        config = {"listen": f"{self.host}:{self.port}", **self.auth_config}
        (self.folder / "nats.conf").write_text(json.dumps(config))

    def is_ready(self) -> bool:
        with socket.create_connection((self.host, self.port), timeout=1) as sock:
            return sock.recv(5) == b"INFO "


# ---- a server


def test_a_server_that_lets_us_in_is_ready(check: CheckRunner, server: NatsServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]
    assert check(f"nats://127.0.0.1:{server.port}", username=USER, password=PASSWORD) == READY


def test_nothing_is_left_of_a_check(check: CheckRunner, server: NatsServer) -> None:
    assert assert_no_leaks(check, server.url, server.port) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_server_that_does_not_let_us_in_is_failed(check: CheckRunner, server: NatsServer) -> None:
    assert check(server.bad_credentials_url) == Verdict.failed(f"Authorization Violation: {shown(server)}")
    url = f"nats://127.0.0.1:{server.port}"
    assert check(url) == Verdict.failed(f"Authorization Violation: {url}")


def test_a_server_without_a_connection_to_spare_is_failed_in_its_own_words(
    check: CheckRunner, server: NatsServer
) -> None:
    with server.exhaust():
        verdict = check(server.url)
    assert becomes_true(lambda: check(server.url) == READY)
    assert verdict == Verdict.failed(f"maximum connections exceeded: {shown(server)}")


def test_a_frozen_server_is_failed_at_the_deadline(check: CheckRunner, server: NatsServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "log in")
    finally:
        server.thaw()


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = CustomAuthServer(tmp_path_factory.mktemp("token"))
    server.auth_config = {"authorization": {"token": TOKEN}}
    with server:
        yield server


def test_a_token_may_stand_in_the_url_or_beside_it(check: CheckRunner, by_token: NatsServer) -> None:
    assert check(f"nats://let-me%2Fin@127.0.0.1:{by_token.port}") == READY
    assert check(f"nats://127.0.0.1:{by_token.port}", token=TOKEN) == READY


def test_a_token_is_never_shown(check: CheckRunner, by_token: NatsServer) -> None:
    place = f"127.0.0.1:{by_token.port}"
    assert check(f"nats://swordfish@{place}") == Verdict.failed(f"Authorization Violation: nats://***@{place}")
    assert check(f"nats://{place}", token="tunafish") == Verdict.failed(f"Authorization Violation: nats://{place}")
    assert repr(make_probe(f"nats://swordfish@{place}")) == f"<NatsProbe nats://***@{place}>"


# ---- keys


def signed(claims: dict[str, Any], issuer: nkeys.KeyPair) -> str:
    """A JWT as NATS has them."""
    whole = {"jti": "none", "iat": int(time.time()), "iss": issuer.public_key.decode(), **claims}
    parts = [_base64(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, whole)]
    return ".".join([*parts, _base64(issuer.sign(".".join(parts).encode()))])


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def key_pair(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


@pytest.fixture(scope="module")
def by_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, str, str]]:
    """A server that knows an operator, who vouches for an account, which vouches for a user; its JWT and its seed."""
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
def test_a_credentials_file_lets_us_in(
    check: CheckRunner, by_key: tuple[NatsServer, str, str], tmp_path: Path, end: str
) -> None:
    server, jwt, seed = by_key
    url = f"nats://127.0.0.1:{server.port}"
    assert check(url, credentials_file=creds(tmp_path, jwt, seed, end)) == READY
    assert check(url) == Verdict.failed(f"Authorization Violation: {url}")


def test_the_key_of_another_does_not_let_us_in(
    check: CheckRunner, by_key: tuple[NatsServer, str, str], tmp_path: Path
) -> None:
    server, jwt, _ = by_key
    url, other = f"nats://127.0.0.1:{server.port}", key_pair(nkeys.PREFIX_BYTE_USER)
    file = creds(tmp_path, jwt, other.seed.decode())
    assert check(url, credentials_file=file) == Verdict.failed(f"Authorization Violation: {url}")


def test_a_credentials_file_that_is_renewed_counts_from_the_next_check_on(
    check: CheckRunner, by_key: tuple[NatsServer, str, str], tmp_path: Path
) -> None:
    server, jwt, seed = by_key
    url = f"nats://127.0.0.1:{server.port}"

    async def story() -> None:
        file = creds(tmp_path, jwt, key_pair(nkeys.PREFIX_BYTE_USER).seed.decode())
        probe = make_probe({"url": url, "credentials_file": file})
        assert (await probe.check()).outcome is Outcome.FAILED
        creds(tmp_path, jwt, seed)
        assert await probe.check() == READY
        (tmp_path / "me.creds").write_text("gone")
        why = f"cannot use {file}: it does not hold the JWT and the key of a NATS user"
        assert await probe.check() == Verdict.unknown(f"{why}: {url}")
        (tmp_path / "me.creds").unlink()
        assert await probe.check() == Verdict.unknown(f"there is no file {file}: {url}")

    check.run(story())


@pytest.mark.parametrize(
    "content",
    ["", "no JWT", "-----BEGIN NATS USER JWT-----\nabc\n", "-----BEGIN USER NKEY SEED-----\nSUAMOTSEED\n"],
)
def test_a_credentials_file_without_a_jwt_and_a_key_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "me.creds"
    file.write_text(content)
    with pytest.raises(
        OptionError, match=f"^credentials_file: cannot use {file}: it does not hold the JWT and the key"
    ):
        make_probe({"url": "nats://127.0.0.1", "credentials_file": str(file)})


def test_a_credentials_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "me.creds"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match=f"^credentials_file: cannot read {file}: not UTF-8 text$"):
        make_probe({"url": "nats://127.0.0.1", "credentials_file": str(file)})
    with pytest.raises(OptionError, match=f"^credentials_file: cannot read {tmp_path}: is a directory$"):
        make_probe({"url": "nats://127.0.0.1", "credentials_file": str(tmp_path)})


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
    assert check(encrypted.bad_credentials_url, **tls) == Verdict.failed(f"Authorization Violation: {shown(encrypted)}")
    assert check(encrypted.url, min_cert_days=1, **tls) == EXPIRES_SOON


def test_a_server_whose_certificate_is_not_trusted_is_failed(
    check: CheckRunner, encrypted: NatsServer, tmp_path: Path
) -> None:
    words = "its certificate is not valid: self-signed certificate"
    assert check(encrypted.url, tls=True) == Verdict.failed(f"{words}: {shown(encrypted)}")
    other = make_certificate(tmp_path, "other")
    verdict = check(encrypted.url, tls=True, ca=str(other.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("its certificate is not valid: ")


def test_a_full_server_is_failed_at_once_under_tls_too(
    check: CheckRunner, encrypted: NatsServer, certificate: Certificate
) -> None:
    """It says so where the handshake should begin."""
    with encrypted.exhaust():
        began_s = time.monotonic()
        verdict = check(encrypted.url, tls=True, ca=str(certificate.certificate))
        assert time.monotonic() - began_s < WAIT_TIMEOUT_S
    assert verdict.outcome is Outcome.FAILED


def test_a_server_that_does_not_offer_tls_is_failed_and_told_no_password(
    check: CheckRunner, server: NatsServer
) -> None:
    assert check(server.url, tls=True) == Verdict.failed(f"it does not offer TLS: {shown(server)}")
    heard: list[bytes] = []

    def without_tls(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        heard.append(peer.read_to_end())

    with Backend(without_tls) as backend:
        url = f"nats://{USER}:swordfish@{backend.address}"
        assert check(url, tls=True) == Verdict.failed(f"it does not offer TLS: nats://{USER}:***@{backend.address}")
    assert heard == [b""]


def test_a_server_that_asks_for_tls_is_failed_when_none_is_asked_for(check: CheckRunner, encrypted: NatsServer) -> None:
    assert check(encrypted.url) == Verdict.failed(f"it asks for TLS; set tls = true: {shown(encrypted)}")


def test_a_handshake_that_is_never_answered_is_failed_at_the_deadline(check: CheckRunner) -> None:
    def offers(peer: Peer) -> None:
        peer.send(b'INFO {"tls_required": true}\r\n')

    with Backend(offers) as backend:
        assert_times_out(check, f"nats://{backend.address}", backend.port, "handshake", tls=True)


# ---- JetStream


def test_jetstream_must_answer_when_it_is_asked_for(
    check: CheckRunner, server: NatsServer, jetstream: NatsServer
) -> None:
    assert check(jetstream.url, jetstream=True) == READY
    assert assert_no_leaks(check, jetstream.url, jetstream.port, jetstream=True) == READY
    verdict = assert_no_leaks(check, server.url, server.port, jetstream=True)
    assert verdict == Verdict.not_ready(f"JetStream: nobody answers for it: {shown(server)}")


def test_jetstream_that_hangs_is_failed_at_the_deadline(check: CheckRunner) -> None:
    """Two PINGs are answered: one of the login, one of the check."""

    def script(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        for _ in range(2):
            peer.read_until(b"PING\r\n")
            peer.send(b"PONG\r\n")

    with Backend(script) as backend:
        assert_times_out(check, f"nats://{backend.address}", backend.port, "exchange", jetstream=True)


# ---- what is no server


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"nats://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"nats://{backend.address}", backend.port, "log in")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "nats", closed="it closed the connection before it had answered")


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
def test_what_does_not_speak_the_protocol_is_failed(check: CheckRunner, answer: bytes) -> None:
    with Backend(sending(answer)) as backend:
        url = f"nats://{backend.address}"
        assert check(url) == Verdict.failed(f"what came back is not NATS: {url}")


def test_a_line_without_an_end_is_failed_and_not_listened_to_for_ever(check: CheckRunner) -> None:
    def chatters(peer: Peer) -> None:
        while True:
            peer.send(b"INFO " * 1000)

    with Backend(chatters) as backend:
        verdict = assert_no_leaks(check, f"nats://{backend.address}", backend.port)
    assert verdict.outcome is Outcome.FAILED


@few_examples
@given(answers=garbage(b"INFO ", b"INFO {}\r\n", b"INFO {}\r\nPONG\r\n", b"INFO {}\r\n-ERR ", b'INFO {"x": [1]}\r\nPO'))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"nats://{backend.address}")


def accepting(then: bytes, end: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A server that lets everybody in, and then says something else than the answer."""

    def script(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        peer.read_until(b"PING\r\n")
        peer.send(b"PONG\r\n" + then)
        end(peer)

    return script


@pytest.mark.parametrize(
    ("then", "end", "words"),
    [
        (b"", close, "unexpected EOF"),
        (b"INFO {\r\n", unresponsive, "what came back is not NATS"),
        (b"-ERR 'Stale Connection'\r\n", unresponsive, "stale connection"),
        (b"-ERR 'User Authentication Expired'\r\n", unresponsive, "user authentication expired"),
        (b"HTTP/1.1 400\r\n", unresponsive, "protocol error"),
    ],
    ids=["closed", "no JSON", "stale", "expired", "HTTP"],
)
def test_a_server_that_breaks_off_after_the_login_is_failed_at_once(
    check: CheckRunner, then: bytes, end: Callable[[Peer], object], words: str
) -> None:
    """The driver takes a connection that nobody reads from any more for one that answers."""
    with Backend(accepting(then, end)) as backend:
        url = f"nats://{backend.address}"
        verdict = assert_no_leaks(check, url, backend.port)
    assert verdict == Verdict.failed(f"{words}: {url}")


def test_a_server_that_hangs_after_the_login_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(accepting(b"", unresponsive)) as backend:
        assert_times_out(check, f"nats://{backend.address}", backend.port, "exchange")


def test_a_handshake_that_times_out_leaves_nothing(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        assert_times_out(check, f"nats://{backend.address}", backend.port, "log in")


# ---- reuse


def test_a_connection_can_be_kept(check: CheckRunner, server: NatsServer) -> None:
    assert_reused(check, server.url, server.port)


def test_a_connection_under_tls_can_be_kept(
    check: CheckRunner, encrypted: NatsServer, certificate: Certificate
) -> None:
    assert_reused(check, encrypted.url, encrypted.port, tls=True, ca=str(certificate.certificate))


def test_a_connection_can_be_kept_for_jetstream(check: CheckRunner, jetstream: NatsServer) -> None:
    assert_reused(check, jetstream.url, jetstream.port, jetstream=True)


def test_a_reused_connection_outlives_restarts_of_the_server(check: CheckRunner, server: NatsServer) -> None:
    assert_survives_restarts(check, server)


@pytest.mark.parametrize("later", [b"INFO {\r\n", b"-ERR 'Stale Connection'\r\n", b"\xff\r\n"])
def test_a_reused_connection_on_which_nonsense_came_is_made_again(check: CheckRunner, later: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.send(b"INFO {}\r\n")
        for _ in range(2):
            peer.read_until(b"PING\r\n")
            peer.send(b"PONG\r\n")
        peer.send(later)

    async def story(url: str) -> None:
        with reusing(url) as probe:
            assert (await check_with_steps(probe))[0] == READY
            await asyncio.sleep(0.05)
            verdict, steps = await check_with_steps(probe)
            assert verdict == READY
            assert "connect" in {name for name, _, _ in steps}

    with Backend(script) as backend:
        check.run(story(f"nats://{backend.address}"))


# ---- our own faults


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner, server: NatsServer) -> None:
    assert check.without_descriptors(server.url) == (NO_DESCRIPTORS, READY)


# ---- last, since it takes its time


def test_jetstream_without_a_leader_is_not_ready(
    check: CheckRunner, no_quorum_server: tuple[NatsServer, float]
) -> None:
    server, began_s = no_quorum_server
    assert check(server.url) == READY
    time.sleep(max(0.0, began_s + LEADERLESS_AFTER_S - time.monotonic()))
    assert check(server.url, jetstream=True) == Verdict.not_ready(
        f"JetStream: JetStream system temporarily unavailable: {shown(server)}"
    )
