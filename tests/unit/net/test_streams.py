"""Streams over real sockets: without TLS, with TLS, and with TLS started on an open connection."""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import (
    MAX_RECEIVED_BYTES,
    ConnectionStreams,
    LimitedStreamReader,
    ResponseTooLargeError,
    open_streams,
    upgrade_streams,
)
from tests.support.backends import Backend, Peer, close, reset_on_data, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Script = Callable[[Peer], object]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For localhost and 127.0.0.1."""
    return make_certificate(tmp_path_factory.mktemp("streams"))


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.wide)])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, object]], object]]:
    """Runs a coroutine on a loop that must report no errors."""
    loop_errors: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
        yield lambda scenario: runner.run(asyncio.wait_for(scenario, 2 * WAIT_TIMEOUT_S))
        runner.run(asyncio.sleep(0))
        gc.collect()
    assert loop_errors == []


def echo(peer: Peer) -> None:
    while True:
        peer.send(peer.read_until(b"\n"))


def trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate.certificate)


class Mode:
    """How a connection uses TLS."""

    def __init__(self, name: str, certificate: Certificate) -> None:
        self.name = name
        self._certificate = certificate

    def backend(self, script: Script) -> Backend:
        if self.name == "upgraded":
            return Backend(self._upgrading(script))
        return Backend(script, tls=server_tls(self._certificate) if self.name == "tls" else None)

    def _upgrading(self, script: Script) -> Script:
        def start_without_tls(peer: Peer) -> None:
            assert peer.read_until(b"\n") == b"STARTTLS\n"
            peer.send(b"yes\n")
            with server_tls(self._certificate).wrap_socket(peer.sock, server_side=True) as encrypted:
                script(Peer(encrypted))
                if encrypted.fileno() >= 0:
                    while encrypted.recv(65536):
                        pass

        return start_without_tls

    async def streams(self, backend: Backend, **options: Any) -> ConnectionStreams:
        endpoint = TcpEndpoint.of(backend.host, backend.port)
        if self.name == "tls":
            return await open_streams(endpoint, trusting(self._certificate), "localhost", **options)
        streams = await open_streams(endpoint, **options)
        if self.name == "plain":
            return streams
        streams.writer.write(b"STARTTLS\n")
        assert await streams.reader.readline() == b"yes\n"
        return await upgrade_streams(streams, trusting(self._certificate), "localhost")


@pytest.fixture(params=["plain", "tls", "upgraded"])
def mode(request: pytest.FixtureRequest, certificate: Certificate) -> Mode:
    return Mode(request.param, certificate)


def test_data_arrives_in_both_directions(run: Callable[..., object], mode: Mode) -> None:
    async def scenario() -> None:
        streams = await mode.streams(backend)
        gc.collect()  # collecting the streams from before the upgrade must not close the connection
        for number in range(3):
            streams.writer.write(f"message {number}\n".encode())
            await streams.writer.drain()
            assert await streams.reader.readline() == f"message {number}\n".encode()
        streams.abort()

    with mode.backend(echo) as backend:
        run(scenario())
    assert backend.connection_count == 1


def test_closing_does_not_wait_for_an_unresponsive_peer(run: Callable[..., object], mode: Mode) -> None:
    async def scenario(end: Callable[[ConnectionStreams], None]) -> None:
        streams = await mode.streams(backend)
        end(streams)
        await streams.writer.wait_closed()
        assert streams.writer.is_closing()
        assert await streams.reader.read() == b""

    with mode.backend(unresponsive) as backend:
        run(scenario(ConnectionStreams.abort))
        run(scenario(lambda streams: streams.writer.close()))


@pytest.mark.parametrize("script", [close, reset_on_data])
def test_a_reader_notices_that_the_peer_closed_the_connection(
    run: Callable[..., object], mode: Mode, script: Script
) -> None:
    async def scenario() -> None:
        streams = await mode.streams(backend)
        streams.writer.write(b"ping\n")
        try:
            assert await streams.reader.read() == b""
        except ConnectionError:
            assert script is reset_on_data
        finally:
            streams.abort()

    with mode.backend(script) as backend:
        run(scenario())


def test_a_line_without_an_end_is_too_large(run: Callable[..., object], mode: Mode) -> None:
    async def scenario() -> None:
        streams = await mode.streams(backend)
        with pytest.raises(ResponseTooLargeError):
            await streams.reader.readuntil(b"\n")
        streams.abort()

    with mode.backend(lambda peer: peer.send(b"x" * 1_000_000)) as backend:
        run(scenario())


def test_a_reader_notices_the_limit_that_is_reached_before_it_goes_on(run: Callable[..., object]) -> None:
    async def scenario() -> None:
        reader = LimitedStreamReader()
        reading = asyncio.create_task(reader.readuntil(b"\n"))
        await asyncio.sleep(0)
        for _ in range(2):  # the first part ends the wait of the reader
            reader.feed_data(b"x" * MAX_RECEIVED_BYTES)
        reader.feed_eof()
        with pytest.raises(ResponseTooLargeError):
            await reading

    run(scenario())


def test_a_connection_that_receives_too_much_is_aborted(run: Callable[..., object], mode: Mode) -> None:
    def send_endlessly(peer: Peer) -> None:
        try:
            for _ in range(64):
                peer.send(b"x" * 1_000_000)
        except OSError:
            was_aborted.set()

    async def scenario() -> None:
        streams = await mode.streams(backend)
        assert await asyncio.to_thread(was_aborted.wait, WAIT_TIMEOUT_S)
        assert len(streams.unread) <= MAX_RECEIVED_BYTES
        streams.abort()

    was_aborted = threading.Event()
    with mode.backend(send_endlessly) as backend:
        run(scenario())


def test_the_limit_starts_again_with_each_check(run: Callable[..., object], mode: Mode) -> None:
    async def scenario() -> None:
        streams = await mode.streams(backend)
        for _ in range(3):
            streams.reset_byte_count()
            streams.writer.write(data)
            assert await streams.reader.readexactly(len(data)) == data
        streams.abort()

    data = b"x" * 60_000 + b"\n"
    with mode.backend(echo) as backend:
        run(scenario())


def test_unread_data_is_available(run: Callable[..., object], mode: Mode) -> None:
    async def scenario() -> None:
        streams = await mode.streams(backend)
        assert await streams.reader.readline() == b"first\n"
        assert streams.unread == b"second\n"
        assert await streams.reader.readline() == b"second\n"
        assert streams.unread == b""
        streams.abort()

    with mode.backend(lambda peer: peer.send(b"first\nsecond\n")) as backend:
        run(scenario())


@pytest.mark.parametrize("name", ["tls", "upgraded"])
def test_the_server_name_is_sent_as_sni_and_verified(
    run: Callable[..., object], name: str, certificate: Certificate
) -> None:
    requested: list[str | None] = []
    context = server_tls(certificate)
    context.sni_callback = lambda _, server_name, __: requested.append(server_name)

    def accept_tls(peer: Peer) -> None:
        with context.wrap_socket(peer.sock, server_side=True) as encrypted:
            encrypted.recv(1)

    async def scenario(server_name: str) -> None:
        endpoint, tls = TcpEndpoint.of(backend.host, backend.port), trusting(certificate)
        if name == "tls":
            streams = await open_streams(endpoint, tls, server_name)
        else:
            streams = await upgrade_streams(await open_streams(endpoint), tls, server_name)
        streams.abort()

    with Backend(accept_tls) as backend:
        run(scenario("localhost"))
        with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
            run(scenario("elsewhere.example"))
        run(scenario("127.0.0.1"))  # SNI has no addresses, but the certificate is checked for it
    assert requested == ["localhost", "elsewhere.example", None]
