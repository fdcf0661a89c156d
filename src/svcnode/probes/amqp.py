"""`amqp://user:password@host:port/vhost`, `amqps://…` with TLS: an AMQP 0-9-1 broker, such as RabbitMQ.

ready      the login succeeds, a channel opens, and `queue` exists if it is set
not ready  the certificate expires within `min_cert_days`
failed     the broker reports an error, such as wrong credentials, unknown vhost or queue, too many connections;
           connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import aiormq
from aiormq.channel import EXCEPTION_MAPPING as CHANNEL_ERRORS
from aiormq.connection import EXCEPTION_MAPPING as CONNECTION_ERRORS
from aiormq.connection import FrameReceiver, TransportFactory
from aiormq.exceptions import AMQPError, AuthenticationError, ChannelNotFoundEntity, ProtocolSyntaxError
from pamqp.commands import Connection as ConnectionFrames
from yarl import URL

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import Streams, open_streams
from svcnode.net.trace import step
from svcnode.probes.base import CheckError
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
_ACCESS_REFUSED, _NOT_FOUND, _NOT_ALLOWED = 403, 404, 530
# By AMQP reply code. The driver keeps the code of some errors only as the type of the exception.
_CODES = {
    320: ReasonCode.SHUTTING_DOWN,  # connection forced
    402: ReasonCode.NOT_FOUND,  # invalid path
    _ACCESS_REFUSED: ReasonCode.PERMISSION_DENIED,
    _NOT_FOUND: ReasonCode.NOT_FOUND,
    405: ReasonCode.LOCKED,
    540: ReasonCode.NOT_SUPPORTED,
}
_REPLY_CODES: dict[type, int] = {error: code for code, error in (*CONNECTION_ERRORS.items(), *CHANNEL_ERRORS.items())}
# RabbitMQ uses one reply code, 530, for these; only its text distinguishes them.
_NOT_ALLOWED_CODES = (
    ("connection limit", ReasonCode.TOO_MANY_CONNECTIONS),
    (" not found", ReasonCode.NOT_FOUND),
    (" is down", ReasonCode.UNHEALTHY),
)


class _OpenStreamsFactory(TransportFactory):
    """Gives the driver streams that are already open."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def create(self, url: URL, **_: Any) -> Streams:  # noqa: ANN401  the driver's signature
        return self._streams


class _AmqpConnection(aiormq.Connection):
    """Reports why the broker rejects a login; the driver only reports an unexpected frame."""

    @staticmethod
    async def _rpc(
        request: Frame, writer: asyncio.StreamWriter, frame_receiver: FrameReceiver, wait_response: bool = True
    ) -> FrameTypes | None:
        return await aiormq.Connection._rpc(request, writer, _CloseFrameReceiver(frame_receiver), wait_response)


class _CloseFrameReceiver(FrameReceiver):
    def __init__(self, frames: FrameReceiver) -> None:
        super().__init__(frames.reader)
        self._frames = frames

    async def get_frame(self) -> ReceivedFrame:
        received = await self._frames.get_frame()
        if isinstance(received[2], ConnectionFrames.Close):
            raise _broker_error(received[2].reply_code, received[2].reply_text, is_login=True)
        return received


@dataclass(frozen=True, slots=True)
class _AmqpSession:
    streams: Streams
    connection: aiormq.Connection


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AmqpProbe(LoginProbe[_AmqpSession]):
    vhost: str = ""  # without it, the path of the URL, and without that "/"
    queue: str = ""  # must exist
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        path = self.url.path.removeprefix("/")
        if self.url.query or "/" in path:
            raise ProbeError("only a vhost may follow the host, with %2F for a / in its name: amqp://host:port/vhost")
        if path and self.vhost:
            raise OptionError("vhost", "is also set in the URL; remove one of the two")
        for name, text in (("vhost", self.vhost or unquote(path)), ("queue", self.queue)):
            if len(text.encode()) > _MAX_NAME_BYTES:
                raise OptionError(name, f"is longer than {_MAX_NAME_BYTES} bytes, the limit of AMQP")
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
            with step("log in"), _translated_errors(streams):
                return _AmqpSession(streams, await self._log_in(streams))
        except BaseException:  # on cancellation too: nothing else closes the connection
            streams.abort()
            raise

    async def _log_in(self, streams: Streams) -> aiormq.Connection:
        username, password = self.credentials()
        url = URL.build(
            scheme="amqp",  # the streams already use TLS if they should
            user=username or "guest",
            password=password or "guest",
            host=self._endpoint.host,
            port=self._endpoint.port,
            query={"heartbeat": "0", "name": "svcnode"},
        )
        connection = _AmqpConnection(url, transport_factory=_OpenStreamsFactory(streams))
        connection.vhost = self.vhost or unquote(self.url.path.removeprefix("/")) or "/"
        await connection.connect()
        connection.server_properties.setdefault("capabilities", {})  # the driver needs it; not every broker sends it
        return connection

    async def check_connection(self, connection: _AmqpSession) -> Verdict:
        with _translated_errors(connection.streams):
            channel = await connection.connection.channel(publisher_confirms=False)
            if self.queue:
                try:
                    await channel.queue_declare(self.queue, passive=True)
                except ChannelNotFoundEntity as exc:
                    return _broker_error(_NOT_FOUND, exc.args[-1]).verdict(self.url)
            await channel.close()
        verdict = self.certificate_verdict(connection.streams.writer.transport) if self._uses_tls else None
        return verdict or READY

    async def disconnect(self, connection: _AmqpSession) -> None:
        await connection.connection.close()  # otherwise the broker logs a lost client

    def reset_byte_count(self, connection: _AmqpSession) -> None:
        connection.streams.reset_byte_count()

    def abort(self, connection: _AmqpSession) -> None:
        for task in (connection.connection._reader_task, connection.connection._writer_task):
            task.cancel()
        connection.streams.abort()


@contextmanager
def _translated_errors(streams: Streams) -> Iterator[None]:
    """The driver's errors derive from OSError, but carry no errno."""
    try:
        yield
    except Exception as exc:  # noqa: BLE001  the driver raises many types for invalid frames
        raise _translate_error(exc, streams) from None


def _translate_error(exc: Exception, streams: Streams) -> Exception:
    match exc:
        case AuthenticationError():
            return CheckError("the broker does not offer login by user name and password", ReasonCode.AUTH_FAILED)
        case AMQPError(__cause__=OSError() | EOFError() as cause):
            return cause
        case AMQPError(args=[*numbers, text]) if not isinstance(exc, ProtocolSyntaxError):
            return _broker_error(numbers[0] if numbers else _REPLY_CODES.get(type(exc)), text)
        case OSError() | MemoryError() | CheckError():
            return exc
        case _ if streams.reader.at_eof() and not isinstance(exc, ProtocolSyntaxError):
            return EOFError()
        case _:
            return CheckError("the response is not AMQP 0-9-1", ReasonCode.PROTOCOL_ERROR)


def _broker_error(reply_code: int | None, text: str, *, is_login: bool = False) -> CheckError:
    return CheckError(_one_line(text), _reason_code(reply_code, text, is_login=is_login))


def _reason_code(reply_code: int | None, text: str, *, is_login: bool) -> ReasonCode:
    if reply_code == _ACCESS_REFUSED and is_login:
        return ReasonCode.AUTH_FAILED
    if reply_code == _NOT_ALLOWED:
        return next((code for part, code in _NOT_ALLOWED_CODES if part in text), ReasonCode.PERMISSION_DENIED)
    if reply_code is None:
        return ReasonCode.CONNECTION_CLOSED
    return _CODES.get(reply_code, ReasonCode.SERVER_ERROR)


def _one_line(text: object) -> str:
    return driver_error_text(Exception(text)).rstrip(".")
