"""What a faulty server does, and the codes that a check of it may have. Any kind can meet any of them."""

from __future__ import annotations

import gzip
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode as Code
from tests.contract.kinds import HTTP_OK, Kind
from tests.support.backends import Peer, start_tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator

CHUNKED = HTTP_OK + b"Transfer-Encoding: chunked\r\n\r\n"
DEEP = b"[" * 500_000
DRIP_S = 0.02
FIRST_BYTE_WAIT_S = 0.05  # then the server speaks first


class FaultyServer:
    """Runs the script of a fault for each connection, inside TLS if there is a context; counts the bytes it sends."""

    def __init__(self, kind: Kind, fault: Fault, tls: ssl.SSLContext | None = None) -> None:
        self.kind = kind
        self._fault = fault
        self._tls = tls
        self.sent_bytes = 0

    def __call__(self, peer: Peer) -> None:
        if (self._tls is not None or self._fault.is_in_handshake) and self.kind.row.upgrade is not None:
            self.kind.row.upgrade(peer)
        if self._tls is None:
            self._fault.script(self, peer)
            return
        with start_tls(peer.sock, self._tls) as encrypted:
            self._fault.script(self, Peer(encrypted))
            if encrypted.fileno() >= 0:
                while encrypted.recv(65536):
                    pass

    def wait_for_client(self, peer: Peer) -> bytes:
        """What the client sends first; nothing in a protocol in which the server does."""
        before_s = peer.sock.gettimeout()
        peer.sock.settimeout(FIRST_BYTE_WAIT_S)
        try:
            return peer.sock.recv(65536)
        except TimeoutError:
            return b""
        finally:
            peer.sock.settimeout(before_s)

    def send(self, peer: Peer, pieces: Iterable[bytes], pause_s: float = 0.0) -> None:
        for piece in pieces:
            peer.sock.sendall(piece)
            self.sent_bytes += len(piece)
            if pause_s:
                time.sleep(pause_s)

    @property
    def beginning(self) -> bytes:
        """Of a correct answer."""
        return next(iter(self.kind.row.beginnings), HTTP_OK if self.kind.is_http else b"")

    @property
    def lie(self) -> bytes:
        return self.kind.row.lie or HTTP_OK + b"Content-Length: 999999999999\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Fault:
    script: Callable[[FaultyServer, Peer], object]
    codes: frozenset[Code]
    concerns: Callable[[Kind], bool] = lambda _: True
    hangs: bool = False  # until the deadline of the check
    is_in_handshake: bool = False  # instead of TLS


def forever(first: bytes, then: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield then


def after_client(*pieces: bytes, ends: bool = False) -> Callable[[FaultyServer, Peer], None]:
    """Sends this when the client has sent something."""

    def script(server: FaultyServer, peer: Peer) -> None:
        server.wait_for_client(peer)
        server.send(peer, pieces)
        if ends:
            peer.shutdown_write()

    return script


def endlessly(first: bytes, then: bytes) -> Callable[[FaultyServer, Peer], None]:
    def script(server: FaultyServer, peer: Peer) -> None:
        server.wait_for_client(peer)
        server.send(peer, forever(first, then))

    return script


def say_nothing(server: FaultyServer, peer: Peer) -> None:
    pass


def reset(server: FaultyServer, peer: Peer) -> None:
    peer.reset()


def reset_after_first_byte(server: FaultyServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    peer.reset()


def reset_in_response(server: FaultyServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, [server.beginning[:5]])
    peer.reset()


def close(server: FaultyServer, peer: Peer) -> None:
    peer.shutdown_write()


def echo(server: FaultyServer, peer: Peer) -> None:
    """Also the secrets of the client."""
    server.send(peer, [server.wait_for_client(peer)])
    peer.shutdown_write()


def send_endless_lines(server: FaultyServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(server.beginning or HTTP_OK, b"X: y\r\n" * 8192))


def drip(server: FaultyServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    data = (server.kind.row.beginnings or (HTTP_OK + b"Content-Length: 1000\r\n\r\n",))[0] + b" " * 1000
    server.send(peer, (bytes([byte]) for byte in data), DRIP_S)


def lie(server: FaultyServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(server.lie, bytes(65536)))


def send_less_than_said(server: FaultyServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, [server.kind.row.lie or HTTP_OK + b"Content-Length: 1000\r\n\r\n{", b"ab"])
    peer.shutdown_write()


def nest(server: FaultyServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    body = HTTP_OK + b"Content-Length: %d\r\n\r\n" % len(DEEP) + DEEP
    server.send(peer, [body if server.kind.is_http else b"*1\r\n" * 500_000])
    peer.shutdown_write()


@cache
def bomb(times: int) -> bytes:
    """A probe accepts 1 MiB."""
    data = bytes(16 * 1024**2)
    for _ in range(times):
        data = gzip.compress(data)
    return data


def send_bomb(times: int) -> Callable[[FaultyServer, Peer], None]:
    def script(server: FaultyServer, peer: Peer) -> None:
        encoding = b", ".join([b"gzip"] * times)
        head = HTTP_OK + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (encoding, len(bomb(times)))
        while peer.sock.recv(65536):  # also the later requests of a check
            server.send(peer, [head, bomb(times)])

    return script


def redirect(location: bytes) -> Callable[[FaultyServer, Peer], None]:
    head = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % location
    return after_client(head, ends=True)


def reads_body(kind: Kind) -> bool:
    return kind.is_http and kind.row.reads_body


def is_http_client(kind: Kind) -> bool:
    return kind.is_http and kind.has_own_client


IN_TIME = frozenset({Code.TIMEOUT, Code.TLS_TIMEOUT})
CLOSED = frozenset({Code.CONNECTION_CLOSED})
WRONG = frozenset({Code.PROTOCOL_ERROR, Code.UNEXPECTED_RESPONSE})
BAD_TLS = frozenset({Code.TLS_FAILED, Code.TLS_NOT_OFFERED, Code.TLS_TIMEOUT})

# The sixteen kilobytes of a handshake that never ends.
ENDLESS_HANDSHAKE = b"\x16\x03\x03\x40\x00" + b"\x0b\x00\xff\xff" + bytes(16380)
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

# Of a server, and inside TLS if the kind uses it.
FAULTS = {
    "silent": Fault(script=say_nothing, codes=IN_TIME, hangs=True),
    "closed": Fault(script=close, codes=CLOSED),
    "reset before the first byte": Fault(script=reset, codes=CLOSED),
    "reset after the first byte": Fault(script=reset_after_first_byte, codes=CLOSED),
    "reset in the response": Fault(script=reset_in_response, codes=CLOSED | WRONG),
    "echo": Fault(script=echo, codes=WRONG | CLOSED | {Code.AUTH_FAILED}),
    "endless zeros": Fault(script=endlessly(b"", bytes(65536)), codes=WRONG, concerns=lambda kind: kind.has_own_client),
    "endless text": Fault(script=endlessly(b"", b"x" * 65536), codes=WRONG),
    # The first line may be read as the response to a login.
    "endless lines": Fault(script=send_endless_lines, codes=WRONG | {Code.AUTH_FAILED}),
    "endless body": Fault(
        script=endlessly(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"), codes=WRONG, concerns=reads_body
    ),
    "endless interim responses": Fault(
        script=endlessly(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" * 1000),
        codes=WRONG,
        concerns=is_http_client,
    ),
    "slow": Fault(script=drip, codes=IN_TIME | WRONG, hangs=True),
    "a length that is a lie, endless": Fault(
        script=lie, codes=WRONG | CLOSED, concerns=lambda kind: kind.row.reads_body
    ),
    "a length that is a lie, closed": Fault(
        script=send_less_than_said, codes=WRONG | CLOSED, concerns=lambda kind: kind.row.reads_body
    ),
    "a compressed bomb": Fault(script=send_bomb(1), codes=WRONG, concerns=reads_body),
    "a bomb in a bomb": Fault(script=send_bomb(2), codes=WRONG, concerns=is_http_client),
    "deep nesting": Fault(script=nest, codes=WRONG | CLOSED, concerns=lambda kind: kind.row.reads_body),
    "SMTP": Fault(script=lambda server, peer: server.send(peer, [b"220 mail\r\n"]), codes=WRONG | IN_TIME, hangs=True),
    "SSH": Fault(script=after_client(b"SSH-2.0-OpenSSH_9.2\r\n", ends=True), codes=WRONG | CLOSED),
    "Redis": Fault(
        script=after_client(b"-ERR unknown command\r\n", ends=True),
        codes=WRONG | CLOSED | {Code.SERVER_ERROR, Code.NOT_SUPPORTED},
    ),
    "HTTP": Fault(
        script=after_client(BAD_REQUEST, ends=True), codes=WRONG | CLOSED, concerns=lambda kind: not kind.is_http
    ),
    "redirects to itself": Fault(
        script=redirect(b"/again"), codes=frozenset({Code.REDIRECTED}), concerns=lambda kind: kind.is_http
    ),
    "redirects to a file": Fault(
        script=redirect(b"file:///etc/passwd"), codes=frozenset({Code.REDIRECTED}), concerns=is_http_client
    ),
}
# Of a server without TLS, for a kind without it.
PLAIN_FAULTS = {
    "a TLS alert": Fault(
        script=after_client(b"\x15\x03\x03\x00\x02\x02\x0a", ends=True),
        codes=WRONG | CLOSED,
    ),
}
# Where a handshake should be.
HANDSHAKE_FAULTS = {
    "no TLS": Fault(
        script=lambda server, peer: server.send(peer, [b"220 mail\r\n"]), codes=BAD_TLS | WRONG, hangs=True
    ),
    "silent": Fault(script=say_nothing, codes=frozenset({Code.TLS_TIMEOUT}), hangs=True, is_in_handshake=True),
    "stops": Fault(
        script=after_client(b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(20)),
        codes=frozenset({Code.TLS_TIMEOUT}),
        hangs=True,
        is_in_handshake=True,
    ),
    "closes": Fault(script=after_client(ends=True), codes=BAD_TLS | CLOSED, is_in_handshake=True),
    "resets": Fault(script=reset_after_first_byte, codes=BAD_TLS | CLOSED, is_in_handshake=True),
    "never ends": Fault(script=endlessly(b"", ENDLESS_HANDSHAKE), codes=BAD_TLS, is_in_handshake=True),
}
