"""Connections as streams, over real sockets: in the clear, under TLS, and under TLS from some moment on."""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import MAX_RECEIVED_BYTES, Streams, open_streams, upgrade_streams
from tests.support.backends import Backend, Peer, close, open_file_count, reset, reset_on_data, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S, becomes_true

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Script = Callable[[Peer], object]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For localhost and 127.0.0.1."""
    return make_certificate(tmp_path_factory.mktemp("streams"))


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, object]], object]]:
    """On a loop that must have nothing to complain about."""
    faults: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
        yield lambda story: runner.run(asyncio.wait_for(story, 2 * WAIT_TIMEOUT_S))
        runner.run(asyncio.sleep(0))
        gc.collect()
    assert faults == []


def echo(peer: Peer) -> None:
    while True:
        peer.send(peer.read_until(b"\n"))


def trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate.certificate)


class Way:
    """How a server is spoken to."""

    def __init__(self, name: str, certificate: Certificate) -> None:
        self.name = name
        self._certificate = certificate

    def backend(self, script: Script) -> Backend:
        if self.name == "upgraded":
            return Backend(self._upgrading(script))
        return Backend(script, tls=server_tls(self._certificate) if self.name == "tls" else None)

    def _upgrading(self, script: Script) -> Script:
        def begin_in_the_clear(peer: Peer) -> None:
            assert peer.read_until(b"\n") == b"let us whisper\n"
            peer.send(b"yes\n")
            with server_tls(self._certificate).wrap_socket(peer.sock, server_side=True) as encrypted:
                script(Peer(encrypted))
                if encrypted.fileno() >= 0:
                    while encrypted.recv(65536):
                        pass

        return begin_in_the_clear

    async def streams(self, backend: Backend, **words: Any) -> Streams:
        endpoint = TcpEndpoint.of(backend.host, backend.port)
        if self.name == "tls":
            return await open_streams(endpoint, trusting(self._certificate), "localhost", **words)
        streams = await open_streams(endpoint, **words)
        if self.name == "plain":
            return streams
        streams.writer.write(b"let us whisper\n")
        assert await streams.reader.readline() == b"yes\n"
        return await upgrade_streams(streams, trusting(self._certificate), "localhost")


@pytest.fixture(params=["plain", "tls", "upgraded"])
def way(request: pytest.FixtureRequest, certificate: Certificate) -> Way:
    return Way(request.param, certificate)


def test_what_is_said_is_heard_both_ways(run: Callable[..., object], way: Way) -> None:
    async def story() -> None:
        streams = await way.streams(backend)
        gc.collect()  # what nobody has any more, such as the streams that were upgraded, takes nothing with it
        for number in range(3):
            streams.writer.write(f"question {number}\n".encode())
            await streams.writer.drain()
            assert await streams.reader.readline() == f"question {number}\n".encode()
        streams.abort()

    with way.backend(echo) as backend:
        run(story())
    assert backend.connection_count == 1


def test_much_is_heard_whole(run: Callable[..., object], way: Way) -> None:
    async def story() -> None:
        streams = await way.streams(backend)
        streams.writer.write(much + b"\n")
        await streams.writer.drain()
        assert await streams.reader.readexactly(len(much) + 1) == much + b"\n"
        streams.abort()

    much = bytes(range(48, 58)) * 6_000
    with way.backend(echo) as backend:
        run(story())


def test_an_end_is_waited_for_no_longer_than_it_takes(run: Callable[..., object], way: Way) -> None:
    """A peer that says nothing more does not hold up whoever waits for the end."""

    async def story(end: Callable[[Streams], None]) -> None:
        streams = await way.streams(backend)
        end(streams)
        await streams.writer.wait_closed()
        assert streams.writer.is_closing()
        assert await streams.reader.read() == b""

    with way.backend(unresponsive) as backend:
        run(story(Streams.abort))
        run(story(lambda streams: streams.writer.close()))


def test_aborting_twice_is_aborting_once(run: Callable[..., object], way: Way) -> None:
    async def story() -> None:
        streams = await way.streams(backend)
        streams.abort()
        streams.abort()
        await streams.writer.wait_closed()
        streams.abort()

    with way.backend(unresponsive) as backend:
        run(story())


@pytest.mark.parametrize("script", [close, reset_on_data])
def test_whoever_reads_is_told_of_an_end_at_the_other_side(
    run: Callable[..., object], way: Way, script: Script
) -> None:
    async def story() -> None:
        streams = await way.streams(backend)
        streams.writer.write(b"are you there?\n")
        try:
            assert await streams.reader.read() == b""
        except ConnectionError:
            assert script is reset_on_data
        finally:
            streams.abort()

    with way.backend(script) as backend:
        run(story())


def test_a_line_that_does_not_end_is_refused(run: Callable[..., object], way: Way) -> None:
    async def story() -> None:
        streams = await way.streams(backend)
        with pytest.raises(ConnectionError, match="it said more than 64 KiB in one look"):
            await streams.reader.readuntil(b"\n")
        streams.abort()

    with way.backend(lambda peer: peer.send(b"x" * 1_000_000)) as backend:
        run(story())


def test_a_peer_that_never_stops_talking_is_cut_off(run: Callable[..., object], way: Way) -> None:
    """Or it would fill the memory for as long as a look may take."""

    def talk(peer: Peer) -> None:
        try:
            for _ in range(64):
                peer.send(b"x" * 1_000_000)
        except OSError:
            was_cut_off.set()

    async def story() -> None:
        streams = await way.streams(backend)
        assert await asyncio.to_thread(was_cut_off.wait, 5.0)
        assert len(streams.unread) <= MAX_RECEIVED_BYTES
        streams.abort()

    was_cut_off = threading.Event()
    with way.backend(talk) as backend:
        run(story())


def test_with_each_look_as_much_may_be_said_again(run: Callable[..., object], way: Way) -> None:
    async def story() -> None:
        streams = await way.streams(backend)
        for _ in range(3):
            streams.reset_byte_count()
            streams.writer.write(much)
            assert await streams.reader.readexactly(len(much)) == much
        streams.abort()

    much = b"x" * 60_000 + b"\n"
    with way.backend(echo) as backend:
        run(story())


def test_what_was_not_read_yet_can_be_seen(run: Callable[..., object], way: Way) -> None:
    async def story() -> None:
        streams = await way.streams(backend)
        assert await streams.reader.readline() == b"first\n"
        assert streams.unread == b"second\n"
        assert await streams.reader.readline() == b"second\n"
        assert streams.unread == b""
        streams.abort()

    with way.backend(lambda peer: peer.send(b"first\nsecond\n")) as backend:
        run(story())


# ---- whom we speak to under TLS


@pytest.mark.parametrize("name", ["tls", "upgraded"])
def test_the_server_is_asked_for_by_the_name_it_should_have_not_by_its_address(
    run: Callable[..., object], name: str, certificate: Certificate
) -> None:
    asked: list[str | None] = []
    context = server_tls(certificate)
    context.sni_callback = lambda _, server_name, __: asked.append(server_name)

    def whisper(peer: Peer) -> None:
        with context.wrap_socket(peer.sock, server_side=True) as encrypted:
            encrypted.recv(1)

    async def story(server_name: str) -> None:
        endpoint, tls = TcpEndpoint.of(backend.host, backend.port), trusting(certificate)
        if name == "tls":
            streams = await open_streams(endpoint, tls, server_name)
        else:
            streams = await upgrade_streams(await open_streams(endpoint), tls, server_name)
        streams.abort()

    with Backend(whisper) as backend:
        run(story("localhost"))
        with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
            run(story("elsewhere.example"))
        run(story("127.0.0.1"))  # an address is not asked for, but it is checked
    assert asked == ["localhost", "elsewhere.example", None]


@pytest.mark.parametrize("name", ["tls", "upgraded"])
def test_a_certificate_that_nobody_vouches_for_is_refused(
    run: Callable[..., object], name: str, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Way(name, make_certificate(tmp_path_factory.mktemp("stranger"), "stranger"))
    with stranger.backend(unresponsive) as backend, pytest.raises(ssl.SSLCertVerificationError, match=r"self.signed"):
        run(Way(name, certificate).streams(backend))


@pytest.mark.parametrize("script", [unresponsive, close, reset])
def test_a_handshake_that_does_not_come_to_an_end_leaves_nothing_open(
    run: Callable[..., object], script: Script, certificate: Certificate
) -> None:
    async def attempt(*, is_upgrade: bool) -> None:
        endpoint, tls = TcpEndpoint.of(backend.host, backend.port), trusting(certificate)
        try:
            async with asyncio.timeout(0.2):
                if is_upgrade:
                    await upgrade_streams(await open_streams(endpoint), tls, "localhost")
                else:
                    await open_streams(endpoint, tls, "localhost")
        except (TimeoutError, OSError):
            return
        raise AssertionError("it shook hands")

    with Backend(script) as backend:
        run(attempt(is_upgrade=False))
        before = open_file_count()
        run(attempt(is_upgrade=False))
        run(attempt(is_upgrade=True))
        assert becomes_true(lambda: open_file_count() <= before), f"{before} before: {open_file_count()}"
