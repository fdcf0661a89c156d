"""`icmp:host`: a host answers an ICMP echo request, as of ping.

ready    a reply with the number and the data of the request
failed   no reply in time; a router says that the host cannot be reached; the name does not exist
unknown  the kernel does not allow this process to send echo requests; no route from this machine, no file descriptors
         left on it, or the resolver failed
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.core.text import os_error_text
from svcnode.core.url import UrlError, UrlForm, ascii_host
from svcnode.net.datagram import InvalidAnswerError, addresses_of, ask
from svcnode.net.os_errors import InconclusiveError, verdict_for_os_error
from svcnode.probes.base import UrlProbe

READY = Verdict.ready()
SYSCTL = "net.ipv4.ping_group_range"  # for IPv6 too
_HEADER = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number; the kernel sets two of them
_DATA_BYTES = 32
# RFC 792 and RFC 4443: the types of request and reply.
_TYPES = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}
_IP_RECVERR, _IPV6_RECVERR = 11, 25  # errors that routers report are errors of the socket


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IcmpProbe(UrlProbe):
    url_form: ClassVar = UrlForm(host="any", whole=r"(//(\[[0-9A-Fa-f:.]+\]|[^:/?#@\[\]\s]+)/?|[^/?#@\s]+)")

    def __post_init__(self) -> None:
        url = self.url
        if url.port or url.username or url.password or url.query or (url.host and url.path not in ("", "/")):
            raise UrlError("url", 'the URL has only a host; write "icmp:10.0.0.1"')
        if not self._host or ascii_host(self._host) != self._host:
            raise UrlError("host", 'the URL has no host; write "icmp:10.0.0.1"')

    @property
    def _host(self) -> str:
        return self.url.host or self.url.path

    async def check(self) -> Verdict:
        try:
            await ask(EchoQuestion(), await addresses_of(self._host, 0))
        except OSError as exc:
            return verdict_for_os_error(exc, self._host)
        return READY


class EchoQuestion:
    def __init__(self) -> None:
        self._number = 0
        self._data = os.urandom(_DATA_BYTES)
        self._types = (0, 0)

    def open_socket(self, family: socket.AddressFamily) -> socket.socket:
        is_ipv6 = family == socket.AF_INET6
        self._types = _TYPES[family]
        try:
            protocol = socket.IPPROTO_ICMPV6 if is_ipv6 else socket.IPPROTO_ICMP
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, protocol)
        except PermissionError as exc:
            raise InconclusiveError(
                f"the kernel does not allow echo requests ({os_error_text(exc)}): set {SYSCTL} to a range with a group "
                'of the node, such as "0 2147483647"',
                ReasonCode.PERMISSION_DENIED,
            ) from exc
        level, option = (socket.IPPROTO_IPV6, _IPV6_RECVERR) if is_ipv6 else (socket.IPPROTO_IP, _IP_RECVERR)
        sock.setsockopt(level, option, 1)
        return sock

    def encode(self) -> bytes:
        self._number += 1
        return _HEADER.pack(self._types[0], 0, 0, 0, self._number) + self._data

    def decode(self, data: bytes) -> None:
        """The kernel passes on only messages with the identifier of this socket."""
        if len(data) >= _HEADER.size:
            kind, code, *_, number = _HEADER.unpack_from(data)
            is_of_this_check = 0 < number <= self._number and data[_HEADER.size :] == self._data
            if (kind, code) == (self._types[1], 0) and is_of_this_check:
                return
        raise InvalidAnswerError("the reply is to another request, or its data is damaged")
