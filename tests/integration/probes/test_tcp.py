"""TCP and TLS probes against real servers: correct, faulty and unresponsive ones."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.net.connect import reject_self_connect
from svcnode.probes import make_probe
from svcnode.probes.tcp import MAX_RECEIVED_BYTES
from tests.support.backends import Backend, Peer, close, reissued, sending, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate, make_chain
from tests.support.verdicts import EXPIRES_SOON, NO_DESCRIPTORS, READY, UNEXPECTED_RESPONSE, ExpectedVerdict, failed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.check_runner import CheckRunner

TIMEOUT = failed(ReasonCode.TIMEOUT)


def responding(request: bytes, response: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        if peer.read_exactly(len(request)) == request:
            peer.send(response)

    return script


# ---- tcp


def test_an_open_port_is_ready(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check(f"tcp://{backend.address}") == READY
        steps = check.steps_until_timeout(f"tcp://{backend.address}", expect="hello")
        assert steps == [("connect", "127.0.0.1", True), ("exchange", "", False)]
    with Backend(responding(b"PING\r\n", b"+PONG\r\n")) as backend:
        assert check(f"tcp://{backend.address}", send="PING\r\n", expect="+PONG") == READY


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_the_bytes_are_sent_even_if_none_are_expected(
    check: CheckRunner, certificate: Certificate, is_encrypted: bool
) -> None:
    received: list[bytes] = []
    tls = server_tls(certificate) if is_encrypted else None
    with Backend(lambda peer: received.append(peer.read_to_end()), tls=tls) as backend:
        if is_encrypted:
            assert check(f"tls://{backend.address}", send="QUIT\r\n", ca=str(certificate.certificate)) == READY
        else:
            assert check(f"tcp://{backend.address}", send="QUIT\r\n") == READY
    assert received == [b"QUIT\r\n"]


@pytest.mark.parametrize(
    ("script", "verdict", "shown"),
    [
        (sending(b"\x1b[2J\xff"), UNEXPECTED_RESPONSE, '"\\x1b[2J\ufffd"'),
        (sending(b"x" * 1000), UNEXPECTED_RESPONSE, f'"{"x" * 80}…"'),
    ],
    ids=["not text", "long text"],
)
def test_other_bytes_than_expected_are_failed(
    check: CheckRunner, script: Callable[[Peer], None], verdict: ExpectedVerdict, shown: str
) -> None:
    with Backend(script) as backend:
        found = check(f"tcp://{backend.address}", expect="hello")
    assert found == verdict
    assert shown in found.reason


def test_the_expected_bytes_must_be_within_the_limit(check: CheckRunner) -> None:
    with Backend(sending(b"x" * (MAX_RECEIVED_BYTES - 5) + b"hello")) as backend:
        assert check(f"tcp://{backend.address}", expect="hello") == READY
    with Backend(sending(b"x" * (MAX_RECEIVED_BYTES - 4) + b"hello")) as backend:
        assert check(f"tcp://{backend.address}", expect="hello") == UNEXPECTED_RESPONSE


# ---- tls


@pytest.mark.parametrize(
    ("leaf_days", "intermediate_days", "first"), [(90, 5, "intermediate"), (5, 90, "leaf"), (6, 5, "intermediate")]
)
def test_every_certificate_that_the_server_sends_is_judged(
    check: CheckRunner, tmp_path: Path, leaf_days: float, intermediate_days: float, first: str
) -> None:
    certificate, ca = make_chain(tmp_path, leaf_days=leaf_days, intermediate_days=intermediate_days)
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        verdict = check(f"tls://{backend.address}", ca=str(ca), min_cert_days=10)
        assert verdict == EXPIRES_SOON
        assert f'"{first}"' in verdict.reason
        assert check(f"tls://{backend.address}", ca=str(ca), min_cert_days=4) == READY


def test_the_server_name_is_sent_as_sni(check: CheckRunner, certificate: Certificate) -> None:
    names: list[str | None] = []
    tls = server_tls(certificate)
    tls.sni_callback = lambda _sock, name, _context: names.append(name)
    with Backend(unresponsive, tls=tls) as backend:
        for options in ({}, {"server_name": "other.example"}):
            check(f"tls://localhost:{backend.port}", ca=str(certificate.certificate), **options)
    assert names == ["localhost", "other.example"]


def test_a_certificate_that_expires_soon_is_not_ready(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    soon = reissued(certificate, tmp_path, days_left=10.5)
    ca = str(soon.certificate)
    with Backend(unresponsive, tls=server_tls(soon)) as backend:
        assert check(f"tls://{backend.address}", ca=ca) == check(f"tls://localhost:{backend.port}", ca=ca) == READY
        assert check(f"tls://{backend.address}", ca=ca, min_cert_days=10) == READY
        verdict = check(f"tls://{backend.address}", ca=ca, min_cert_days=11)
    assert verdict == EXPIRES_SOON
    assert "10.5" in verdict.reason


def test_a_client_certificate_is_sent(check: CheckRunner, certificate: Certificate, tmp_path: Path) -> None:
    known, unknown = make_certificate(tmp_path, "known"), make_certificate(tmp_path, "unknown")
    both = tmp_path / "both.pem"
    both.write_bytes(known.certificate.read_bytes() + known.key.read_bytes())
    ca = str(certificate.certificate)
    with Backend(sending(b"welcome"), tls=server_tls(certificate, clients=known.certificate)) as backend:

        def outcome_with(**options: str) -> Outcome:
            return check(f"tls://{backend.address}", ca=ca, expect="welcome", **options).outcome

        assert outcome_with(client_certificate=str(known.certificate), client_key=str(known.key)) is Outcome.READY
        assert outcome_with(client_certificate=str(unknown.certificate), client_key=str(unknown.key)) is Outcome.FAILED
        assert outcome_with(client_certificate=str(both)) is Outcome.READY
        assert outcome_with() is Outcome.FAILED


@pytest.mark.parametrize("script", [unresponsive, sending(b"welcome"), close], ids=["silent", "speaks", "closes"])
@pytest.mark.parametrize("tickets", [0, 2])
def test_a_client_that_the_server_rejects_after_the_handshake_is_failed(
    check: CheckRunner,
    certificate: Certificate,
    script: Callable[[Peer], None],
    tickets: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With TLS 1.3, the client has finished before the server sees that it has no certificate."""
    ca = str(certificate.certificate)
    required, open_to_all = server_tls(certificate, clients=certificate.certificate), server_tls(certificate)
    required.num_tickets = open_to_all.num_tickets = tickets
    with monkeypatch.context() as patch, Backend(script, tls=required) as backend:
        patch.setattr("svcnode.probes.tcp.MAX_REACTION_S", 60.0)  # a busy machine may take long
        for options in ({}, {"send": "hello"}, {"expect": "welcome"}):
            verdict = check(f"tls://{backend.address}", ca=ca, **options)
            assert verdict.outcome is Outcome.FAILED
            # A server that has not read everything resets the connection, and so may destroy its own alert.
            assert verdict.code in (ReasonCode.AUTH_REQUIRED, ReasonCode.CONNECTION_CLOSED)
    with Backend(script, tls=open_to_all) as backend:
        assert check.leaks_nothing(f"tls://{backend.address}", ca=ca) == READY


def test_a_key_with_a_passphrase_is_rejected_without_a_prompt(tmp_path: Path) -> None:
    pair = make_certificate(tmp_path, passphrase=b"swordfish")
    with pytest.raises(OptionError, match="client_certificate"):
        make_probe(
            {"url": "tls://127.0.0.1:80", "client_certificate": str(pair.certificate), "client_key": str(pair.key)}
        )


def test_trusted_certificates_are_kept_after_a_check_without_free_descriptors(
    check: CheckRunner, certificate: Certificate
) -> None:
    # The trusted certificates of the system are read from files too.
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        url, trusted = f"tls://{backend.address}", str(certificate.certificate)
        assert check.without_descriptors(url, SSL_CERT_FILE=trusted) == (NO_DESCRIPTORS, READY)


async def _connected_to_itself() -> asyncio.Transport:
    """This happens by chance if a client often connects to a closed port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *address, local_addr=address)
    return transport


def test_a_socket_that_is_connected_to_itself_is_refused(check: CheckRunner) -> None:
    async def scenario() -> tuple[str, int]:
        transport = await _connected_to_itself()
        address: tuple[str, int] = transport.get_extra_info("sockname")
        with pytest.raises(ConnectionRefusedError):
            reject_self_connect(transport, address)
        return address

    address = check.run(scenario())
    with socket.socket() as service:
        service.bind(address)  # possible at once, without SO_REUSEADDR
