"""`dns://server/name`, `dns:name`: a name server answers for a name, with the expected records.

ready    the name has records of the `type`, exactly those of `expect` if it is set; with `authoritative`, from a server
         of the zone itself
failed   the name does not exist, has no such record, or other records; the server refuses, or reports a failure; it
         does not answer, or not in DNS; it is not authoritative
unknown  no file descriptors or ports left on this machine, no route from it, or the resolver fails for the name of the
         server

`dns:name` asks the name servers of this machine (/etc/resolv.conf), in turn. A truncated answer is asked for again over
TCP, as every resolver does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import unquote

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.model import Verdict
from svcnode.core.option_types import option_type, public_text
from svcnode.core.text import excerpt
from svcnode.core.url import UrlError, UrlForm
from svcnode.net.connect import TcpEndpoint
from svcnode.net.datagram import InvalidAnswerError, UdpQuestion, addresses_of, ask
from svcnode.net.dns import is_ip_address
from svcnode.net.os_errors import CodedOSError, verdict_for_os_error
from svcnode.net.streams import open_streams
from svcnode.net.threads import DaemonCall
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, UrlProbe
from svcnode.probes.options import strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

READY = Verdict.ready()
PORT = 53
RESOLV_CONF = Path("/etc/resolv.conf")
_UDP_BYTES = 1232  # the size that passes every network, by the flag day of DNS in 2020
_MAX_SERVERS = 3  # that resolv.conf(5) reads
_MAX_SHOWN = 5
_CODES = {
    dns.rcode.FORMERR: ReasonCode.BAD_REQUEST,
    dns.rcode.NOTIMP: ReasonCode.NOT_SUPPORTED,
    dns.rcode.REFUSED: ReasonCode.CLIENT_NOT_ALLOWED,
}


@option_type({"type": "string", "minLength": 1}, show=dns.rdatatype.to_text)
def record_type(value: object) -> dns.rdatatype.RdataType:
    text = public_text(value)
    try:
        found = dns.rdatatype.from_text(text)
    except dns.exception.DNSException:
        raise InvalidValueError(f'must be a type of records such as "A", "AAAA" or "TXT", not "{text}"') from None
    if dns.rdatatype.is_metatype(found):
        raise InvalidValueError(f'"{text}" asks for several types of records; name one, such as "A"')
    return found


@option_type({"type": "array", "items": {"type": "string"}, "minItems": 1}, show=list)
def records(value: object) -> tuple[str, ...]:
    texts = strings(value)
    if not texts:
        raise InvalidValueError("must have at least one record")
    return texts


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DnsProbe(UrlProbe):
    type: Annotated[dns.rdatatype.RdataType, record_type] = dns.rdatatype.A
    expect: Annotated[tuple[str, ...], records] = ()
    authoritative: bool = False
    tcp: bool = False  # without UDP
    _name: dns.name.Name = field(init=False, compare=False)
    _expected: frozenset[dns.rdata.Rdata] = field(init=False, compare=False)
    url_form: ClassVar = UrlForm(host="any", whole=r"(//[^/?#@]*/|/)?[^/?#][^?#]*")

    def __post_init__(self) -> None:
        if self.url.username or self.url.password:
            raise UrlError("credentials", "dns URLs have no user name and no password")
        if self.url.query or "?" in self.url.path:
            raise UrlError("query", 'dns URLs have no query; set the option type, as in type = "AAAA"')
        if self.url.host:
            self.url.require_host()
        object.__setattr__(self, "_name", _parse_name(unquote(self.url.path).removeprefix("/")))
        object.__setattr__(self, "_expected", frozenset(map(self._parse_record, self.expect)))

    def _parse_record(self, text: str) -> dns.rdata.Rdata:
        try:
            return dns.rdata.from_text(dns.rdataclass.IN, self.type, text, origin=dns.name.root, relativize=False)
        except (dns.exception.DNSException, ValueError) as exc:
            kind = dns.rdatatype.to_text(self.type)
            raise OptionError(
                "expect", f'"{text}" is not a valid {kind} record: {excerpt(str(exc)).rstrip(".")}'
            ) from exc

    async def check(self) -> Verdict:
        query = dns.message.make_query(self._name, self.type, use_edns=0, payload=_UDP_BYTES)
        try:
            servers = await self._servers()
            response = await (_ask_tcp(query, servers) if self.tcp else _ask_udp(query, servers))
            return self._verdict(response)
        except CheckError as exc:
            return exc.verdict(self.url)
        except EOFError:
            text = "connection closed before the response was complete"
            return self.failed(text, ReasonCode.CONNECTION_CLOSED)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.url))

    async def _servers(self) -> list[TcpEndpoint]:
        if self.url.host:
            return [TcpEndpoint.of(self.url.host, self.url.port or PORT)]
        return await DaemonCall("resolv.conf").call(_system_servers)

    def _verdict(self, response: dns.message.Message) -> Verdict:
        kind = dns.rdatatype.to_text(self.type)
        if response.rcode() == dns.rcode.NXDOMAIN:
            return self.failed("NXDOMAIN: the name does not exist", ReasonCode.HOST_NOT_FOUND)
        if self.authoritative and not response.flags & dns.flags.AA:
            return self.failed("the server is not authoritative for the name", ReasonCode.WRONG_ROLE)
        found = _answers(response)
        if not found:
            return self.failed(f"no {kind} record", ReasonCode.NOT_FOUND)
        if self._expected and frozenset(found) != self._expected:
            shown = excerpt(", ".join(str(record) for record in found[:_MAX_SHOWN]))
            text = f"{kind} {shown}, expected {', '.join(self.expect[:_MAX_SHOWN])}"
            return self.failed(text, ReasonCode.UNEXPECTED_RESPONSE)
        return READY


def _parse_name(text: str) -> dns.name.Name:
    if not text:
        raise UrlError(
            "path", 'the URL has no name to look up; write "dns:example.org" or "dns://10.0.0.1/example.org"'
        )
    try:
        return dns.name.from_text(text)
    except (dns.exception.DNSException, UnicodeError):
        raise UrlError("path", f'"{text}" is not a valid DNS name') from None


def _answers(response: dns.message.Message) -> Sequence[dns.rdata.Rdata]:
    """The records of the type, also behind aliases (CNAME)."""
    assert isinstance(response, dns.message.QueryMessage)
    try:
        answer = response.resolve_chaining().answer
    except dns.exception.DNSException as exc:
        raise CheckError(f"invalid answer: {excerpt(str(exc))}", ReasonCode.PROTOCOL_ERROR) from exc
    return list(answer) if answer is not None else []


def _system_servers() -> list[TcpEndpoint]:
    try:
        lines = RESOLV_CONF.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    return [TcpEndpoint.of(address, PORT) for address in servers_in(lines)]


def servers_in(resolv_conf: Iterable[str]) -> list[str]:
    """As resolv.conf(5) says: without a name server, the one of this machine is asked."""
    words = [line.split() for line in resolv_conf]
    found = [line[1].partition("%")[0] for line in words if line[:1] == ["nameserver"] and len(line) > 1]
    return [address for address in found if is_ip_address(address)][:_MAX_SERVERS] or ["127.0.0.1"]


# ---- asking


class _DnsQuestion(UdpQuestion):
    def __init__(self, query: dns.message.Message) -> None:
        self._query = query

    def encode(self) -> bytes:
        return self._query.to_wire()

    def decode(self, data: bytes) -> dns.message.Message:
        return _parse_response(self._query, data)


def _parse_response(query: dns.message.Message, data: bytes) -> dns.message.Message:
    try:
        response = dns.message.from_wire(data)
    except Exception as exc:  # the parser raises any type for bytes that are not DNS
        raise InvalidAnswerError("the answer is not DNS") from exc
    if not query.is_response(response):
        raise InvalidAnswerError("the answer is to another question")
    rcode = response.rcode()
    if rcode not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):  # another server may do better
        raise CodedOSError(dns.rcode.to_text(rcode), _CODES.get(rcode, ReasonCode.SERVER_ERROR))
    return response


async def _ask_udp(query: dns.message.Message, servers: Sequence[TcpEndpoint]) -> dns.message.Message:
    addresses = [address for server in servers for address in await addresses_of(server.host, server.port)]
    response, (host, port) = await ask(_DnsQuestion(query), addresses)
    if response.flags & dns.flags.TC:
        return await _ask_one_by_tcp(query, TcpEndpoint.of(host, port))
    return response


async def _ask_tcp(query: dns.message.Message, servers: Sequence[TcpEndpoint]) -> dns.message.Message:
    for server in servers[:-1]:
        try:
            return await _ask_one_by_tcp(query, server)
        except (OSError, EOFError):
            pass  # the next one may answer
    return await _ask_one_by_tcp(query, servers[-1])


async def _ask_one_by_tcp(query: dns.message.Message, server: TcpEndpoint) -> dns.message.Message:
    """RFC 1035: each message follows its length."""
    streams = await open_streams(server)
    try:
        with step("exchange"):
            data = query.to_wire()
            streams.writer.write(struct.pack("!H", len(data)) + data)
            (length,) = struct.unpack("!H", await streams.reader.readexactly(2))
            return _parse_response(query, await streams.reader.readexactly(length))
    finally:
        streams.abort()
