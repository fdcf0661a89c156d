"""tcp:// and tls:// against real sockets: those that speak, those that are mute, and those that break off."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import ssl
import time
from typing import TYPE_CHECKING

import pytest

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.net.connect import reject_self_connect
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from svcnode.probes.tcp import MAX_RECEIVED_BYTES
from tests.support.backends import (
    Backend,
    Peer,
    close,
    closed_port,
    full_backlog,
    reissued,
    reset,
    sending,
    server_tls,
    unresponsive,
)
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import assert_missing_ca_is_unknown
from tests.support.processes import has_ipv6
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner

READY = Verdict.ready()


def answering(question: bytes, answer: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        if peer.read_exactly(len(question)) == question:
            peer.send(answer)

    return script


# ---- tcp


def test_a_port_that_is_listened_on_is_ready(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check(f"tcp://{backend.address}") == READY
    assert backend.connection_count == 1


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_port_of_an_ipv6_address_is_ready(check: CheckRunner) -> None:
    with Backend(sending(b"hello"), host="::1") as backend:
        assert check(f"tcp://{backend.address}", expect="hello") == READY
        assert check(f"tcp://{backend.address}", expect="bye") == Verdict.failed(
            f'it did not say what was expected, but "hello": [::1]:{backend.port}'
        )


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_port_that_refuses_is_failed(check: CheckRunner, scheme: str) -> None:
    with closed_port() as port:
        assert check(f"{scheme}://127.0.0.1:{port}") == Verdict.failed(f"connection refused: 127.0.0.1:{port}")


def test_a_port_that_lets_nobody_in_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with full_backlog() as port:
        assert check.with_timeout(0.1, f"tcp://127.0.0.1:{port}") == Verdict.failed(
            "no answer within 0.1 s, in its step connect"
        )


def test_what_is_expected_may_come_unasked(check: CheckRunner) -> None:
    with Backend(sending(b"220 mail.example ESMTP\r\n")) as backend:
        assert check(f"tcp://{backend.address}", expect="ESMTP") == READY


def test_what_is_expected_may_come_in_pieces(check: CheckRunner) -> None:
    def in_pieces(peer: Peer) -> None:
        for letter in b"well, hello":
            peer.send(bytes([letter]))

    with Backend(in_pieces) as backend:
        assert check(f"tcp://{backend.address}", expect="hello") == READY


def test_what_is_sent_is_answered(check: CheckRunner) -> None:
    with Backend(answering(b"PING\r\n", b"+PONG\r\n")) as backend:
        assert check(f"tcp://{backend.address}", send="PING\r\n", expect="+PONG") == READY


def test_what_is_sent_and_expected_may_be_any_bytes(check: CheckRunner) -> None:
    with Backend(answering(b"\x00\xff\x10", b"\xde\xad\x00\xbe\xef")) as backend:
        url = f"tcp://{backend.address}"
        assert check(url, send={"hex": "00 ff 10"}, expect={"hex": "ad00be"}) == READY


def test_text_is_sent_as_utf_8(check: CheckRunner) -> None:
    with Backend(answering("grüß dich".encode(), "servus ✓".encode())) as backend:
        assert check(f"tcp://{backend.address}", send="grüß dich", expect="✓") == READY


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_what_is_sent_arrives_even_when_no_answer_is_expected(
    check: CheckRunner, certificate: Certificate, is_encrypted: bool
) -> None:
    heard: list[bytes] = []
    tls = server_tls(certificate) if is_encrypted else None
    with Backend(lambda peer: heard.append(peer.read_to_end()), tls=tls) as backend:
        if is_encrypted:
            assert check(f"tls://{backend.address}", send="QUIT\r\n", ca=str(certificate.certificate)) == READY
        else:
            assert check(f"tcp://{backend.address}", send="QUIT\r\n") == READY
    assert heard == [b"QUIT\r\n"]


@pytest.mark.parametrize(
    ("script", "but"),
    [
        (close, ""),
        (sending(b"something else\r\n"), ', but "something else"'),
        (sending(b"\x1b[2J\xff"), ', but "\\x1b[2J\ufffd"'),
        (sending(b"x" * 1000), f', but "{"x" * 80}…"'),
    ],
    ids=["close", "other words", "no text", "many words"],
)
def test_anything_but_what_was_expected_is_failed(check: CheckRunner, script: Callable[[Peer], None], but: str) -> None:
    with Backend(script) as backend:
        assert check(f"tcp://{backend.address}", expect="hello") == Verdict.failed(
            f"it did not say what was expected{but}: {backend.address}"
        )


def test_what_was_heard_until_the_deadline_is_told(check: CheckRunner) -> None:
    def says_the_wrong_thing(peer: Peer) -> None:
        peer.send(b"-ERR starting up\r\n")
        peer.read_to_end()

    with Backend(says_the_wrong_thing) as backend:
        assert check.with_timeout(0.3, f"tcp://{backend.address}", expect="+OK") == Verdict.failed(
            'heard "-ERR starting up", and not "+OK", within 0.3 s'
        )


def test_a_connection_that_is_reset_before_anything_was_heard_is_failed(check: CheckRunner) -> None:
    with Backend(reset) as backend:
        assert check(f"tcp://{backend.address}", expect="hello").outcome is Outcome.FAILED


def test_a_mute_server_is_failed_at_the_deadline_when_something_is_expected(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.with_timeout(0.3, f"tcp://{backend.address}", expect="hello") == Verdict.failed(
            "no answer within 0.3 s, in its step exchange"
        )


def test_what_is_expected_is_heard_up_to_the_limit_and_not_past_it(check: CheckRunner) -> None:
    with Backend(sending(b"x" * (MAX_RECEIVED_BYTES - 5) + b"hello")) as backend:
        assert check(f"tcp://{backend.address}", expect="hello") == READY
    with Backend(sending(b"x" * (MAX_RECEIVED_BYTES - 4) + b"hello")) as backend:
        assert check(f"tcp://{backend.address}", expect="hello").outcome is Outcome.FAILED


def test_a_server_that_talks_for_ever_is_not_listened_to_for_ever(check: CheckRunner) -> None:
    def chatters(peer: Peer) -> None:
        while True:
            peer.send(b"bla " * 1000)

    with Backend(chatters) as backend:
        assert check(f"tcp://{backend.address}", expect="hello").outcome is Outcome.FAILED


# ---- tls


def test_a_server_whose_certificate_is_trusted_is_ready(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        assert check(f"tls://{backend.address}", ca=str(certificate.certificate)) == READY
        assert check(f"tls://localhost:{backend.port}", ca=str(certificate.certificate)) == READY


def test_what_is_sent_and_expected_goes_through_tls(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(answering(b"PING\r\n", b"+PONG\r\n"), tls=server_tls(certificate)) as backend:
        url, ca = f"tls://{backend.address}", str(certificate.certificate)
        assert check(url, send="PING\r\n", expect="+PONG", ca=ca) == READY


def test_a_certificate_that_nobody_vouches_for_is_failed(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        assert check(f"tls://{backend.address}") == Verdict.failed(
            f"its certificate is not valid: self-signed certificate: {backend.address}"
        )


def test_a_certificate_that_another_authority_vouches_for_is_failed(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path, "other")
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        verdict = check(f"tls://{backend.address}", ca=str(other.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("its certificate is not valid: ")


def test_a_certificate_that_is_over_is_failed(check: CheckRunner, certificate: Certificate, tmp_path: Path) -> None:
    over = reissued(certificate, tmp_path, days_left=-1)
    with Backend(unresponsive, tls=server_tls(over)) as backend:
        assert check(f"tls://{backend.address}", ca=str(over.certificate)) == Verdict.failed(
            f"its certificate is not valid: certificate has expired: {backend.address}"
        )


def test_a_certificate_for_another_address_is_failed(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(unresponsive, tls=server_tls(certificate), host="127.0.0.2") as backend:
        verdict = check(f"tls://{backend.address}", ca=str(certificate.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert "certificate is not valid for '127.0.0.2'" in verdict.reason


def test_the_name_that_the_certificate_must_have_may_be_given(check: CheckRunner, certificate: Certificate) -> None:
    ca = str(certificate.certificate)
    with Backend(unresponsive, tls=server_tls(certificate), host="127.0.0.2") as backend:
        assert check(f"tls://{backend.address}", ca=ca, server_name="localhost") == READY
        verdict = check(f"tls://{backend.address}", ca=ca, server_name="other.example")
    assert verdict.outcome is Outcome.FAILED
    assert "certificate is not valid for 'other.example'" in verdict.reason


def test_the_server_is_told_the_name(check: CheckRunner, certificate: Certificate) -> None:
    names: list[str | None] = []
    tls = server_tls(certificate)
    tls.sni_callback = lambda _sock, name, _context: names.append(name)
    with Backend(unresponsive, tls=tls) as backend:
        for options in ({}, {"server_name": "other.example"}):
            check(f"tls://localhost:{backend.port}", ca=str(certificate.certificate), **options)
    assert names == ["localhost", "other.example"]


def test_a_certificate_that_ends_soon_is_not_ready(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    soon = reissued(certificate, tmp_path, days_left=10.5)
    ca = str(soon.certificate)
    with Backend(unresponsive, tls=server_tls(soon)) as backend:
        assert check(f"tls://{backend.address}", ca=ca) == READY
        assert check(f"tls://{backend.address}", ca=ca, min_cert_days=10) == READY
        assert check(f"tls://{backend.address}", ca=ca, min_cert_days=11) == Verdict.not_ready(
            "its certificate expires in 10.5 days, before min_cert_days is reached"
        )


def test_what_is_not_said_weighs_more_than_a_certificate_that_ends_soon(
    check: CheckRunner, certificate: Certificate
) -> None:
    with Backend(close, tls=server_tls(certificate)) as backend:
        verdict = check(f"tls://{backend.address}", ca=str(certificate.certificate), min_cert_days=1, expect="hello")
    assert verdict.outcome is Outcome.FAILED


def test_a_server_that_wants_to_know_its_clients_is_shown_a_certificate(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    known, stranger = make_certificate(tmp_path, "known"), make_certificate(tmp_path, "stranger")
    ca = str(certificate.certificate)
    with Backend(sending(b"welcome"), tls=server_tls(certificate, clients=known.certificate)) as backend:

        def seen(**options: str) -> Outcome:
            return check(f"tls://{backend.address}", ca=ca, expect="welcome", **options).outcome

        assert seen(client_certificate=str(known.certificate), client_key=str(known.key)) is Outcome.READY
        assert seen(client_certificate=str(stranger.certificate), client_key=str(stranger.key)) is Outcome.FAILED
        assert seen() is Outcome.FAILED


def test_the_key_may_stand_in_the_file_of_the_certificate(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    known = make_certificate(tmp_path, "known")
    both = tmp_path / "both.pem"
    both.write_bytes(known.certificate.read_bytes() + known.key.read_bytes())
    with Backend(sending(b"welcome"), tls=server_tls(certificate, clients=known.certificate)) as backend:
        url, ca = f"tls://{backend.address}", str(certificate.certificate)
        assert check(url, ca=ca, expect="welcome", client_certificate=str(both)) == READY


@pytest.mark.parametrize("script", [sending(b"220 plain text\r\n"), close, reset], ids=["plain text", "close", "reset"])
def test_a_server_that_does_not_speak_tls_is_failed(check: CheckRunner, script: Callable[[Peer], None]) -> None:
    with Backend(script) as backend:
        assert check(f"tls://{backend.address}").outcome is Outcome.FAILED


def test_a_handshake_that_is_never_answered_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.with_timeout(0.2, f"tls://{backend.address}") == Verdict.failed(
            "no answer within 0.2 s, in its step handshake"
        )


def test_an_authority_that_is_replaced_counts_from_the_next_check_on(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path, "other")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(other.certificate.read_bytes())
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        probe = make_probe({"url": f"tls://{backend.address}", "ca": str(ca)})
        assert check.run(probe.check()).outcome is Outcome.FAILED
        ca.write_bytes(certificate.certificate.read_bytes())
        assert check.run(probe.check()) == READY


def test_an_authority_that_is_gone_is_our_own_fault_and_leaves_nothing_open(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        for scheme in ("tls", "https"):
            assert_missing_ca_is_unknown(check, f"{scheme}://{backend.address}", tmp_path / "ca.pem", certificate)
    assert backend.connection_count == 0


# ---- what is refused at once


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("tcp://127.0.0.1", "names no port; write tcp://127.0.0.1:port"),
        ("tcp://:80", "names no host; write tcp://host:port"),
        ("tcp://127.0.0.1:80/path", "names more than a host and a port; write tcp://127.0.0.1:80"),
        ("tcp://127.0.0.1:80?x=y", "names more than a host and a port; write tcp://127.0.0.1:80"),
        ("tls://me@127.0.0.1:80", "a user name and a password have no meaning for tls"),
    ],
)
def test_a_url_with_less_or_more_than_a_host_and_a_port_is_refused(url: str, words: str) -> None:
    with pytest.raises(ProbeError, match=f"^{words.replace('?', '.')}$"):
        make_probe(url)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ca", "ca.pem"),
        ("server_name", "x.example"),
        ("client_certificate", "c.pem"),
        ("client_key", "c.key"),
        ("min_cert_days", 3),
    ],
)
def test_options_of_tls_are_refused_where_there_is_none(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"^{option}: has no meaning for tcp, which does not speak TLS$"):
        make_probe({"url": "tcp://127.0.0.1:80", option: value})


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^client_certificate: is missing, and client_key belongs to it$"):
        make_probe({"url": "tls://127.0.0.1:80", "client_key": "c.key"})


@pytest.mark.parametrize("option", ["ca", "client_certificate"])
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, option: str) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir or Madam,")
    for path, words in ((letter, "not a PEM file that can be used"), (tmp_path / "gone", "no such file or directory")):
        with pytest.raises(OptionError, match=f"^{option}: cannot use {path}: {words}$"):
            make_probe({"url": "tls://127.0.0.1:80", option: str(path)})


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, passphrase=b"swordfish")
    with pytest.raises(OptionError, match="client_certificate"):
        make_probe(
            {"url": "tls://127.0.0.1:80", "client_certificate": str(made.certificate), "client_key": str(made.key)}
        )


# ---- our own faults


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.without_descriptors(f"tcp://{backend.address}") == (NO_DESCRIPTORS, READY)


def test_running_out_of_file_descriptors_does_not_make_us_forget_whom_to_trust(
    check: CheckRunner, certificate: Certificate
) -> None:
    # The authorities of the machine are read from files as well.
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        url, trusted = f"tls://{backend.address}", str(certificate.certificate)
        assert check.without_descriptors(url, SSL_CERT_FILE=trusted) == (NO_DESCRIPTORS, READY)


# ---- steps


def test_a_check_of_an_address_has_one_step(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.steps(f"tcp://{backend.address}") == [("connect", "127.0.0.1", True)]


@pytest.mark.usefixtures("resolver")
def test_a_check_of_a_name_has_a_resolve_step(check: CheckRunner) -> None:
    with Backend(sending(b"hello")) as backend:
        assert check.steps(f"tcp://localhost:{backend.port}", expect="hello") == [
            ("resolve", "localhost", True),
            ("connect", "127.0.0.1", True),
            ("exchange", "", True),
        ]


def test_a_check_through_tls_has_its_handshake_as_a_step(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(sending(b"hello"), tls=server_tls(certificate)) as backend:
        url, ca = f"tls://{backend.address}", str(certificate.certificate)
        assert check.steps(url, ca=ca, server_name="localhost", expect="hello") == [
            ("connect", "127.0.0.1", True),
            ("handshake", "localhost", True),
            ("exchange", "", True),
        ]


def test_the_step_that_a_check_got_no_further_than_is_marked(check: CheckRunner, certificate: Certificate) -> None:
    with closed_port() as port:
        assert check.steps(f"tls://127.0.0.1:{port}") == [("connect", "127.0.0.1", False)]
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        untrusted = check.steps(f"tls://{backend.address}")
        assert untrusted == [("connect", "127.0.0.1", True), ("handshake", "127.0.0.1", False)]
    with Backend(unresponsive) as backend:
        unanswered = check.steps_until_timeout(f"tcp://{backend.address}", expect="hello")
        assert unanswered == [("connect", "127.0.0.1", True), ("exchange", "", False)]


# ---- nothing is left open


def test_a_check_that_times_out_while_it_connects_leaves_nothing_open(check: CheckRunner) -> None:
    with full_backlog() as port:
        for scheme in ("tcp", "tls"):
            verdict = check.times_out(f"{scheme}://127.0.0.1:{port}")
            assert verdict.reason.endswith("in its step connect")


def test_a_check_that_times_out_in_its_handshake_leaves_nothing_open(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        verdict = check.times_out(f"tls://{backend.address}")
    assert verdict.reason.endswith("in its step handshake")


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_check_that_times_out_in_its_exchange_leaves_nothing_open(
    check: CheckRunner, certificate: Certificate, is_encrypted: bool
) -> None:
    with Backend(unresponsive, tls=server_tls(certificate) if is_encrypted else None) as backend:
        options = {"ca": str(certificate.certificate)} if is_encrypted else {}
        url = f"{'tls' if is_encrypted else 'tcp'}://{backend.address}"
        verdict = check.times_out(url, expect="hello", **options)
    assert verdict.reason.endswith("in its step exchange")


def test_checks_that_come_to_their_end_leave_nothing_open(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(sending(b"hello")) as plain, Backend(sending(b"hello"), tls=server_tls(certificate)) as encrypted:
        ca = str(certificate.certificate)
        check.leaks_nothing(f"tcp://{plain.address}")
        check.leaks_nothing(f"tcp://{plain.address}", expect="hello")
        check.leaks_nothing(f"tcp://{plain.address}", expect="bye")
        check.leaks_nothing(f"tls://{plain.address}")
        check.leaks_nothing(f"tls://{encrypted.address}")
        check.leaks_nothing(f"tls://{encrypted.address}", expect="hello", ca=ca)
        check.leaks_nothing(f"tls://{encrypted.address}", expect="bye", ca=ca)


def test_connections_that_are_reset_in_their_handshake_do_no_harm_to_what_is_opened_after_them(
    check: CheckRunner,
) -> None:
    async def story(url: str) -> set[Verdict]:
        probe = make_probe(url)
        return {await probe.check() for _ in range(200)}

    with Backend(reset) as backend:
        # A socket that is closed twice would close the one that has its number by then.
        assert check.run(story(f"tls://{backend.address}")) == {
            Verdict.failed(f"connection reset by peer: {backend.address}")
        }


# ---- a socket that is connected with itself


async def _connected_with_itself() -> asyncio.Transport:
    """As happens by chance to whoever calls a dead port of this machine often enough."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *here, local_addr=here)
    return transport


def test_a_socket_that_has_only_reached_itself_has_reached_nobody(check: CheckRunner) -> None:
    async def story() -> tuple[str, int]:
        transport = await _connected_with_itself()
        here: tuple[str, int] = transport.get_extra_info("sockname")
        with pytest.raises(ConnectionRefusedError, match="refused"):
            reject_self_connect(transport, here)
        return here

    here = check.run(story())
    with socket.socket() as service:
        service.bind(here)  # it can come back at once, without SO_REUSEADDR


def test_a_dead_port_stays_dead_however_often_it_is_called(check: CheckRunner) -> None:
    """An even port among those that the system hands out: calling from it is a matter of at most some ten thousand."""
    probe = make_probe(f"tcp://127.0.0.1:{_even_ephemeral_port()}")

    async def story() -> set[Outcome]:
        return {(await probe.check()).outcome for _ in range(30_000)}

    assert check.run(story(), 12 * WAIT_TIMEOUT_S) == {Outcome.FAILED}


def _even_ephemeral_port() -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = int(server.getsockname()[1]) & ~1
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


# ---- nothing is kept of a handshake that was cut off


def test_a_handshake_that_times_out_is_forgotten(check: CheckRunner) -> None:
    """What comes just around the deadline is the hard case: the check is over, and the connection not yet closed."""

    def junk_around_the_deadline(peer: Peer) -> None:
        time.sleep(random.uniform(0.024, 0.036))
        peer.send(b"this is no TLS")

    async def story() -> int:
        with Backend(junk_around_the_deadline) as backend:
            probe = make_probe(f"tls://{backend.address}")
            before = _tls_objects_alive()
            for _ in range(60):
                await asyncio.gather(*(run_check(probe, 0.03) for _ in range(10)))
            await asyncio.sleep(0.05)
            return _tls_objects_alive() - before

    assert check.run(story()) == 0


def _tls_objects_alive() -> int:
    gc.collect()
    return sum(isinstance(one, ssl.SSLObject) for one in gc.get_objects())
