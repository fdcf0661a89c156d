"""dns: against a real dnsmasq and against scripted name servers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ProbeError
from svcnode.probes import dns as probe_module
from svcnode.probes import make_probe
from svcnode.probes.dns import servers_in
from tests.support.backends import Backend, Peer, closed_port
from tests.support.datagrams import UdpBackend
from tests.support.servers.base import module_server
from tests.support.servers.dnsmasq import DnsmasqServer
from tests.support.verdicts import CONNECTION_REFUSED, PROTOCOL_ERROR, READY, UNEXPECTED_RESPONSE, failed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.check_runner import CheckRunner

HOST_NOT_FOUND = failed(ReasonCode.HOST_NOT_FOUND)
NOT_FOUND = failed(ReasonCode.NOT_FOUND)
REFUSED = failed(ReasonCode.CLIENT_NOT_ALLOWED)


# ---- a real server


server = module_server(DnsmasqServer)


@pytest.mark.parametrize(
    ("name", "options", "verdict"),
    [
        ("one.example.test", {}, READY),
        ("ONE.example.test.", {"expect": ["10.0.0.1"]}, READY),
        ("one.example.test", {"expect": ["10.0.0.2"]}, UNEXPECTED_RESPONSE),
        ("one.example.test", {"expect": ["10.0.0.1", "10.0.0.2"]}, UNEXPECTED_RESPONSE),
        ("alias.example.test", {"expect": ["10.0.0.1"]}, READY),
        ("alias.example.test", {"type": "CNAME", "expect": ["ONE.example.test"]}, READY),
        ("two.example.test", {"type": "aaaa", "expect": ["fd00:0::1"]}, READY),
        ("example.test", {"type": "MX", "expect": ["10 mail.example.test"]}, READY),
        ("text.example.test", {"type": "TXT", "expect": ['"ready"']}, READY),
        ("text.example.test", {"type": "TXT", "expect": ["not"]}, UNEXPECTED_RESPONSE),
        ("missing.example.test", {}, HOST_NOT_FOUND),
        ("one.example.test", {"type": "AAAA"}, NOT_FOUND),
        ("elsewhere.example", {}, REFUSED),  # dnsmasq has no other server to ask
    ],
)
@pytest.mark.parametrize("tcp", [False, True])
def test_a_server_is_judged_by_its_answer(
    check: CheckRunner, server: DnsmasqServer, name: str, options: dict[str, Any], verdict: object, *, tcp: bool
) -> None:
    assert check(f"{server.url}/{name}", tcp=tcp, **options) == verdict


def test_an_answer_that_is_too_large_for_a_datagram_is_asked_for_over_tcp(
    check: CheckRunner, server: DnsmasqServer
) -> None:
    steps = check.steps(f"{server.url}/long.example.test", type="TXT")
    assert [name for name, *_ in steps] == ["exchange", "connect", "exchange"]
    assert check(f"{server.url}/long.example.test", type="TXT") == READY


def test_a_check_leaves_nothing_open(check: CheckRunner, server: DnsmasqServer) -> None:
    for tcp in (False, True):
        assert check.leaks_nothing(f"{server.url}/one.example.test", tcp=tcp) == READY


def test_a_server_that_hangs_or_is_gone_is_failed(check: CheckRunner, tmp_path: Path) -> None:
    with DnsmasqServer(tmp_path) as own:
        own.freeze()
        assert check.times_out(f"{own.url}/one.example.test", "exchange") == failed(ReasonCode.TIMEOUT)
        own.thaw()
        assert check(f"{own.url}/one.example.test") == READY
    with closed_port() as port:
        assert check(f"dns://127.0.0.1:{port}/one.example.test") == CONNECTION_REFUSED


# ---- scripted servers


def answering(
    *records: str, rcode: str = "NOERROR", is_authoritative: bool = False, **changes: Any
) -> Callable[[bytes], list[bytes]]:
    def answer(data: bytes) -> list[bytes]:
        response = dns.message.make_response(dns.message.from_wire(data))
        response.set_rcode(dns.rcode.from_text(rcode))
        response.flags |= dns.flags.AA if is_authoritative else 0
        for record in records:
            name, kind, value = record.split(" ", 2)
            response.answer.append(dns.rrset.from_text(name, 60, "IN", kind, value))
        for field, value in changes.items():
            setattr(response, field, value)
        return [response.to_wire()]

    return answer


def check_answer(check: CheckRunner, answer: Callable[[bytes], list[bytes]], **options: Any) -> object:
    with UdpBackend(answer) as backend:
        return check(f"dns://{backend.address}/one.example.test", **options)


ONE = "one.example.test. A 10.0.0.1"


@pytest.mark.parametrize(
    ("rcode", "code"),
    [
        ("SERVFAIL", ReasonCode.SERVER_ERROR),
        ("REFUSED", ReasonCode.CLIENT_NOT_ALLOWED),
        ("NXDOMAIN", ReasonCode.HOST_NOT_FOUND),
        ("NOTIMP", ReasonCode.NOT_SUPPORTED),
        ("FORMERR", ReasonCode.BAD_REQUEST),
        ("NOERROR", ReasonCode.NOT_FOUND),
    ],
)
def test_each_refusal_has_its_code(check: CheckRunner, rcode: str, code: ReasonCode) -> None:
    assert check_answer(check, answering(rcode=rcode)) == failed(code)


def test_a_server_that_must_be_authoritative_says_so(check: CheckRunner) -> None:
    """A lame one has the name only from its cache, or refers to another server."""
    assert check_answer(check, answering(ONE, is_authoritative=True), authoritative=True) == READY
    assert check_answer(check, answering(ONE)) == READY
    for lame in (answering(ONE), answering()):
        assert check_answer(check, lame, authoritative=True) == failed(ReasonCode.WRONG_ROLE)


def test_an_answer_to_another_question_is_failed(check: CheckRunner) -> None:
    assert check_answer(check, answering(ONE, id=7)) == PROTOCOL_ERROR
    assert check_answer(check, lambda _: [b"", b"no dns", bytes(12)]) == PROTOCOL_ERROR
    assert check_answer(check, lambda data: [data]) == PROTOCOL_ERROR
    assert check_answer(check, lambda data: [b"no dns", *answering(ONE)(data)]) == READY
    assert check_answer(check, answering("other.example.test. A 10.0.0.1")) == NOT_FOUND


def test_an_alias_without_an_end_is_failed(check: CheckRunner) -> None:
    loop = answering("one.example.test. CNAME two.example.test.", "two.example.test. CNAME one.example.test.")
    assert check_answer(check, loop) == PROTOCOL_ERROR


def test_a_truncated_answer_whose_tcp_server_is_missing_is_failed(check: CheckRunner) -> None:
    assert check_answer(check, answering(ONE, flags=dns.flags.QR | dns.flags.TC)) == CONNECTION_REFUSED


def test_a_server_over_tcp_answers_with_lengths(check: CheckRunner) -> None:
    def script(peer: Peer) -> None:
        (length,) = struct.unpack("!H", peer.read_exactly(2))
        (data,) = answering(ONE)(peer.read_exactly(length))
        peer.send(struct.pack("!H", len(data)) + data)

    with Backend(script) as backend:
        assert check(f"dns://{backend.address}/one.example.test", tcp=True, expect=["10.0.0.1"]) == READY


# ---- the resolver of the system


def test_the_name_servers_of_the_system_are_asked_in_turn(
    check: CheckRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that refuses or fails is no reason to fail, if another one answers, as for the resolver of the C library."""
    monkeypatch.setattr(probe_module, "RESOLV_CONF", tmp_path / "resolv.conf")
    with UdpBackend(answering(ONE)) as backend:
        monkeypatch.setattr(probe_module, "PORT", backend.port)
        assert check("dns:one.example.test") == READY  # 127.0.0.1 without a file
        (tmp_path / "resolv.conf").write_text("search x\nnameserver 127.0.0.2\nnameserver 127.0.0.1\n")
        assert check("dns:one.example.test", expect=["10.0.0.1"]) == READY
    assert check("dns:one.example.test") == CONNECTION_REFUSED
    assert check("dns:one.example.test", tcp=True) == CONNECTION_REFUSED


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("", ["127.0.0.1"]),
        ("# nameserver 10.0.0.1\nnameserver\nnameserver x", ["127.0.0.1"]),
        ("nameserver 10.0.0.1\nnameserver  ::1 # x\nnameserver fe80::1%eth0", ["10.0.0.1", "::1", "fe80::1"]),
        ("\n".join(f"nameserver 10.0.0.{number}" for number in range(5)), ["10.0.0.0", "10.0.0.1", "10.0.0.2"]),
    ],
)
def test_the_file_of_the_system_is_read(text: str, servers: list[str]) -> None:
    assert servers_in(text.splitlines()) == servers


@pytest.mark.parametrize(
    "config",
    [
        "dns:",
        "dns://127.0.0.1",
        "dns:a..b",
        f"dns:{'x' * 64}.example",
        "dns:example.org?type=A",
        "dns://127.0.0.1/example.org?type=A",
        "dns://user@127.0.0.1/example.org",
        {"url": "dns:example.org", "type": "ANY"},
        {"url": "dns:example.org", "type": "B"},
        {"url": "dns:example.org", "expect": []},
        {"url": "dns:example.org", "expect": ["example.org"]},
        {"url": "dns:example.org", "type": "MX", "expect": ["mail.example.org"]},
    ],
)
def test_an_invalid_configuration_is_rejected(config: Any) -> None:
    with pytest.raises(ProbeError):
        make_probe(config)
