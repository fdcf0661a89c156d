"""`amqp://user:password@host:port/vhost`, `amqps://…` with TLS: an AMQP 0-9-1 broker, such as RabbitMQ.

ready      connected, a channel opened, and `queue` is there where it is set
not ready  the certificate ends within `min_cert_days`
failed     any refusal, such as wrong credentials, no such vhost or queue, no connections left; refused, unreachable
unknown    no file descriptors or ports left here, or the resolver does not work
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import aiormq
from aiormq.connection import FrameReceiver, TransportFactory
from aiormq.exceptions import AMQPError, AuthenticationError, ChannelNotFoundEntity, ProtocolSyntaxError
from pamqp.commands import Connection as ConnectionFrames
from yarl import URL

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import Streams, open_streams
from svcnode.net.trace import step
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from aiormq.connection import ReceivedFrame
    from pamqp.base import Frame
    from pamqp.frame import FrameTypes

READY = Verdict.ready()
_MAX_NAME_BYTES = 255
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


class _OpenStreamsFactory(TransportFactory):
    """Hands the driver streams that are open already."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def create(self, url: URL, **_: Any) -> Streams:  # noqa: ANN401  as the driver has it
        return self._streams


class _AmqpConnection(aiormq.Connection):
    """The driver's connection, which tells why it was not let in."""

    @staticmethod
    async def _rpc(
        request: Frame, writer: asyncio.StreamWriter, frame_receiver: FrameReceiver, wait_response: bool = True
    ) -> FrameTypes | None:
        return await aiormq.Connection._rpc(request, writer, _CloseFrameReceiver(frame_receiver), wait_response)


class _CloseFrameReceiver(FrameReceiver):
    """The driver has no words for a refusal that comes where it expects another answer."""

    def __init__(self, frames: FrameReceiver) -> None:
        super().__init__(frames.reader)
        self._frames = frames

    async def get_frame(self) -> ReceivedFrame:
        received = await self._frames.get_frame()
        if isinstance(received[2], ConnectionFrames.Close):
            raise _broker_error(received[2].reply_text)
        return received


@dataclass(frozen=True, slots=True)
class _AmqpSession:
    streams: Streams
    connection: aiormq.Connection


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AmqpProbe(LoginProbe[_AmqpSession]):
    vhost: str = ""  # without it, the path of the URL, and without that "/"
    queue: str = ""  # must be there
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        path = self.url.path.removeprefix("/")
        if self.url.query or "/" in path:
            raise ProbeError("after the host stands at most a vhost, with %2F for a / in it")
        if path and self.vhost:
            raise OptionError("vhost", "stands in the URL as well; only one of the two can count")
        for name, text in (("vhost", self.vhost or unquote(path)), ("queue", self.queue)):
            if len(text.encode()) > _MAX_NAME_BYTES:
                raise OptionError(name, f"is longer than the {_MAX_NAME_BYTES} bytes that AMQP has for it")
        self.credentials()
        self.validate_tls_options(uses_tls=self._uses_tls)
        port = self.url.port or _DEFAULT_PORTS[self.url.scheme]
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), port))

    @property
    def _uses_tls(self) -> bool:
        return self.url.scheme == "amqps"

    async def open(self) -> _AmqpSession:
        tls = self.tls_context() if self._uses_tls else None
        streams = await open_streams(self._endpoint, tls, self.server_name or self._endpoint.host)
        try:
            with step("log in"), _translate_errors(streams):
                return _AmqpSession(streams, await self._log_in(streams))
        except BaseException:  # also when cancelled: nobody else knows the connection yet
            streams.abort()
            raise

    async def _log_in(self, streams: Streams) -> aiormq.Connection:
        username, password = self.credentials()
        url = URL.build(
            scheme="amqp",  # whether there is TLS below is none of the driver's business
            user=username or "guest",
            password=password or "guest",
            host=self._endpoint.host,
            port=self._endpoint.port,
            query={"heartbeat": "0", "name": "svcnode"},
        )
        connection = _AmqpConnection(url, transport_factory=_OpenStreamsFactory(streams))
        connection.vhost = self.vhost or unquote(self.url.path.removeprefix("/")) or "/"
        await connection.connect()
        connection.server_properties.setdefault("capabilities", {})  # the driver takes it for given; brokers do not
        return connection

    async def check_connection(self, connection: _AmqpSession) -> Verdict:
        with _translate_errors(connection.streams):
            channel = await connection.connection.channel(publisher_confirms=False)
            if self.queue:
                try:
                    await channel.queue_declare(self.queue, passive=True)
                except ChannelNotFoundEntity:
                    return Verdict.failed(f'there is no queue "{self.queue}": {self.url}')
            await channel.close()
        expiring = self.certificate_verdict(connection.streams.writer.transport) if self._uses_tls else None
        return expiring or READY

    async def disconnect(self, connection: _AmqpSession) -> None:
        await connection.connection.close()  # or the broker would log a client that was lost

    def reset_byte_count(self, connection: _AmqpSession) -> None:
        connection.streams.reset_byte_count()

    def abort(self, connection: _AmqpSession) -> None:
        for task in (connection.connection._reader_task, connection.connection._writer_task):
            task.cancel()  # what it still has to say goes nowhere
        connection.streams.abort()


@contextmanager
def _translate_errors(streams: Streams) -> Iterator[None]:
    """The driver's errors are errors of the system by their type, but not by what they hold."""
    try:
        yield
    except Exception as exc:  # noqa: BLE001  whatever the driver makes of what a broker says
        raise _translate_error(exc, streams) from None


def _translate_error(exc: Exception, streams: Streams) -> Exception:
    match exc:
        case AuthenticationError():
            return ConnectionError("it lets nobody in by name and password")
        case AMQPError(__cause__=OSError() | EOFError() as cause):
            return cause
        case AMQPError(args=[*_, words]) if not isinstance(exc, ProtocolSyntaxError):  # the code stands before them
            return _broker_error(words)
        case OSError() | MemoryError():
            return exc
        case _ if streams.reader.at_eof() and not isinstance(exc, ProtocolSyntaxError):
            return EOFError()
        case _:
            return ConnectionError("what came back is not AMQP 0-9-1")


def _broker_error(words: object) -> ConnectionError:
    return ConnectionError(driver_error_text(Exception(words)).rstrip("."))
