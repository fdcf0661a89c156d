"""Small real servers on free loopback ports: correct, faulty and unresponsive ones.

Each server runs in its own threads inside a `with` block. The end of the block waits until the clients have closed all
connections, so a check that leaves one open fails its test.
"""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import struct
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from tests.support.certificates import Certificate
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


# ---- any protocol


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = b""

    def read_until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._receive()
        found, end, self._received = self._received.partition(end)
        return found + end

    def read_exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        found, self._received = self._received[:count], self._received[count:]
        return found

    def read_to_end(self) -> bytes:
        with suppress(OSError):
            while True:
                self._receive()
        found, self._received = self._received, b""
        return found

    def _receive(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("the client closed the connection")
        self._received += data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def shutdown_write(self) -> None:
        """Send EOF. Closing the socket at once could discard data that was sent."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Backend:
    """Runs its script for each connection, in a thread per connection."""

    def __init__(
        self,
        script: Callable[[Peer], object],
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "",
        port: int = 0,
        path: Path | None = None,
    ) -> None:
        """`path` is that of a Unix socket, instead of host and port."""
        self._script = script
        self._tls = tls
        self.host = host or "127.0.0.1"
        self._path = path
        if path is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
        else:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            self._listener = socket.create_server((self.host, port), family=family)
        self.port: int = 0 if path is not None else self._listener.getsockname()[1]
        self.connection_count = 0
        self._waker_address: object = None
        self._errors: list[Exception] = []
        self._loop_threads: list[threading.Thread] = []
        self._accept_thread = threading.Thread(target=self._accept, name=f"backend {self.port}")

    @property
    def address(self) -> str:
        if self._path is not None:
            return str(self._path)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self._accept_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(self._listener.family) as waker:
            waker.bind("" if self._path is not None else (self.host, 0))  # "": the kernel chooses a name
            self._waker_address = waker.getsockname()[:2] if self._path is None else waker.getsockname()
            waker.connect(self._listener.getsockname())
        self._accept_thread.join()
        self._listener.close()
        for thread in self._loop_threads:
            thread.join()
        assert not self._errors, self._errors

    def _accept(self) -> None:
        while True:
            sock, client = self._listener.accept()
            sock.settimeout(4 * WAIT_TIMEOUT_S)  # longer than any check
            if (
                client if self._path is not None else client[:2]
            ) == self._waker_address:  # connections before it are served
                sock.close()
                return
            self.connection_count += 1
            thread = threading.Thread(target=self._serve, args=(sock,))
            thread.start()
            self._loop_threads.append(thread)

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                if self._tls is None:
                    self._run_script(sock)
                    return
                with start_tls(sock, self._tls) as encrypted:
                    self._run_script(encrypted)
        except TimeoutError:
            self._errors.append(TimeoutError("a connection was left open"))
        except OSError:
            pass  # the client closed the connection
        except Exception as exc:  # noqa: BLE001  reported at the end
            self._errors.append(exc)

    def _run_script(self, sock: socket.socket) -> None:
        self._script(Peer(sock))
        if sock.fileno() >= 0:
            while sock.recv(65536):
                pass


def unresponsive(peer: Peer) -> None:
    """Accepts the connection and sends nothing."""


def reset(peer: Peer) -> None:
    peer.reset()


def reset_on_data(peer: Peer) -> None:
    """After the first byte: an immediate reset may arrive while the client still connects or sends."""
    peer.read_exactly(1)
    peer.reset()


def close(peer: Peer) -> None:
    peer.shutdown_write()


def sending(data: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(data)
        peer.shutdown_write()

    return script


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that is bound but does not listen, so that connections to it are refused."""
    port = free_port()  # which no outgoing connection takes when the block has ended
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        yield port


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose accept queue stays full, so that connections to it hang."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(64):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(listener.getsockname())
            except TimeoutError:
                break
        else:
            raise AssertionError("the accept queue does not fill")
        yield listener.getsockname()[1]


def open_file_count() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208  numbers, not paths


# ---- HTTP


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    method: str
    target: str
    headers: dict[str, str]  # by lower-case name
    body: bytes

    @classmethod
    def read(cls, peer: Peer) -> ReceivedRequest:
        request_line, *lines = peer.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        method, _, rest = request_line.partition(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = peer.read_exactly(int(headers.get("content-length", "0")))
        return cls(method, rest.rpartition(" ")[0], headers, body)


class HttpBackend(Backend):
    """Sends the given response to every request, then closes the connection."""

    def __init__(
        self,
        response: bytes | Callable[[ReceivedRequest], bytes],
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "",
        port: int = 0,
        path: Path | None = None,
    ) -> None:
        super().__init__(self._respond, tls=tls, host=host, port=port, path=path)
        self._response = response
        self.requests: list[ReceivedRequest] = []

    @property
    def last_request(self) -> ReceivedRequest:
        return self.requests[-1]

    def _respond(self, peer: Peer) -> None:
        request = ReceivedRequest.read(peer)
        self.requests.append(request)
        peer.send(self._response if isinstance(self._response, bytes) else self._response(request))
        peer.shutdown_write()


def http_response(status: int = 200, body: bytes | str = b"", **headers: str) -> bytes:
    """A response with its length. `Content_Type="…"` is the header Content-Type."""
    raw = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Reason", f"Content-Length: {len(raw)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + raw


class ProxyBackend(Backend):
    """A working proxy: absolute-form for http, CONNECT for anything else."""

    def __init__(self) -> None:
        super().__init__(self._forward)
        self.requests: list[ReceivedRequest] = []

    def _forward(self, peer: Peer) -> None:
        request = ReceivedRequest.read(peer)
        self.requests.append(request)
        if request.method == "CONNECT":
            host, _, port = request.target.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), WAIT_TIMEOUT_S) as upstream:
                peer.send(b"HTTP/1.1 200 Connection established\r\nVia: proxy\r\n\r\n")
                _relay(peer.sock, upstream)
            return
        url = urlsplit(request.target)
        assert url.scheme == "http", request.target
        assert url.hostname is not None
        with socket.create_connection((url.hostname, url.port or 80), WAIT_TIMEOUT_S) as upstream:
            lines = [f"{request.method} {url.path} HTTP/1.1", *(f"{name}: {v}" for name, v in request.headers.items())]
            upstream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + request.body)
            _copy(upstream, peer.sock)


def _relay(one: socket.socket, other: socket.socket) -> None:
    back = threading.Thread(target=_copy, args=(other, one))
    back.start()
    _copy(one, other)
    back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


# ---- TLS


class _TlsSocket(ssl.SSLSocket):
    """`wrap_socket` forgets a socket whose client resets the connection in that moment."""

    def __del__(self) -> None:
        self.close()


def server_tls(pair: Certificate, *, clients: Path | None = None) -> ssl.SSLContext:
    """The context of a server. With `clients`, a client needs a certificate that this file signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _TlsSocket
    context.load_cert_chain(pair.certificate, pair.key)
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def start_tls(sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """The server's side of a handshake. Raises OSError if the client has gone: `wrap_socket` would leak its socket."""
    sock.getpeername()
    return context.wrap_socket(sock, server_side=True)


def reissued(pair: Certificate, directory: Path, *, days_left: float) -> Certificate:
    """The same certificate with another expiry date, which may be in the past."""
    old = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    key = load_pem_private_key(pair.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days_left)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=365))
        .not_valid_after(end)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    new = Certificate(directory / f"{days_left}-days.pem", pair.key)
    new.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return new
